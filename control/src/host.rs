//! What the surroundings of the process say: user and runtime folders.
//!
//! This is the only place that reads the environment, and only the two programs call it;
//! everything below is told by value.

use std::path::{Path, PathBuf};

/// Longest path of a Unix socket, in bytes, without the closing zero (`sun_path` of Linux is
/// 108 bytes).
pub const SOCKET_PATH_MAX: usize = 107;

/// The folder below which `/proc` and `/sys` are looked for: `/`, or a model of a host in a test.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Root(PathBuf);

impl Root {
    /// That of this host.
    #[must_use]
    pub fn system() -> Root {
        Root(PathBuf::from("/"))
    }

    /// That of a model.
    #[must_use]
    pub fn at(folder: impl Into<PathBuf>) -> Root {
        Root(folder.into())
    }

    /// The folder itself.
    #[must_use]
    pub fn folder(&self) -> &Path {
        &self.0
    }

    /// The place of an absolute path below it.
    #[must_use]
    pub fn path(&self, path: &str) -> PathBuf {
        self.0.join(path.trim_start_matches('/'))
    }

    /// The text of a file without blanks at its ends; `None` if it cannot be read.
    #[must_use]
    pub fn text(&self, path: &str) -> Option<String> {
        let text = std::fs::read_to_string(self.path(path)).ok()?;
        Some(text.trim().to_string())
    }

    /// The names in a folder, sorted; none if it cannot be read.
    #[must_use]
    pub fn names(&self, path: &str) -> Vec<String> {
        let entries = std::fs::read_dir(self.path(path)).into_iter().flatten();
        let names = entries.flatten().map(|entry| entry.file_name());
        let mut names: Vec<String> = names
            .map(|name| name.to_string_lossy().into_owned())
            .collect();
        names.sort();
        names
    }
}

/// Who runs the process and where it may keep files that live as long as it does.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Host {
    /// Effective user id.
    pub uid: u32,
    /// `XDG_RUNTIME_DIR`, when it is an absolute path. Not used for root.
    pub xdg_runtime_dir: Option<PathBuf>,
}

impl Host {
    /// Reads user id and environment of the process.
    #[must_use]
    pub fn current() -> Host {
        let xdg_runtime_dir = std::env::var_os("XDG_RUNTIME_DIR")
            .map(PathBuf::from)
            .filter(|path| path.is_absolute() && path.is_dir());
        Host {
            uid: rustix::process::geteuid().as_raw(),
            xdg_runtime_dir,
        }
    }

    /// The folder shared by all appliances of this user on this host: `/run/pollux` for root,
    /// else `$XDG_RUNTIME_DIR/pollux`, else `/tmp/pollux-UID`.
    #[must_use]
    pub fn base_dir(&self) -> PathBuf {
        match (&self.xdg_runtime_dir, self.uid) {
            (_, 0) => PathBuf::from("/run/pollux"),
            (Some(dir), _) => dir.join("pollux"),
            (None, uid) => PathBuf::from(format!("/tmp/pollux-{uid}")),
        }
    }

    /// The runtime folder of the appliance called `name` when the configuration says `"auto"`.
    #[must_use]
    pub fn runtime_dir(&self, name: &str) -> PathBuf {
        self.base_dir().join(name)
    }

    /// The folder of the core locks when the configuration says `"auto"`: `/run/lock` or
    /// `/var/lock` for root, because every appliance of the host must meet there; the user's own
    /// folder otherwise, which tells users apart.
    #[must_use]
    pub fn lock_dir(&self) -> PathBuf {
        if self.uid != 0 {
            return self.base_dir();
        }
        let run = Path::new("/run/lock");
        if run.is_dir() {
            run.to_path_buf()
        } else {
            PathBuf::from("/var/lock")
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_user_gets_a_folder_of_its_own() {
        let xdg = Some(PathBuf::from("/run/user/1000"));
        let root = Host {
            uid: 0,
            xdg_runtime_dir: xdg.clone(),
        };
        let user = Host {
            uid: 1000,
            xdg_runtime_dir: xdg,
        };
        let bare = Host {
            uid: 1001,
            xdg_runtime_dir: None,
        };
        assert_eq!(root.runtime_dir("a"), Path::new("/run/pollux/a"));
        assert_eq!(user.runtime_dir("a"), Path::new("/run/user/1000/pollux/a"));
        assert_eq!(bare.runtime_dir("a"), Path::new("/tmp/pollux-1001/a"));
        assert_eq!(bare.lock_dir(), Path::new("/tmp/pollux-1001"));
    }
}
