//! What a run makes for itself: a folder to meet in, and the process at the other end.

use std::io::{BufRead, BufReader, ErrorKind};
use std::net::{Ipv4Addr, SocketAddr};
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use anyhow::{Context, Result, bail};
use pollux_control::rpc::{CALL_TIMEOUT, Method};
use serde_json::json;

use crate::embedded::echo_client;
use crate::inprocess::{Meeting, resolve};

/// Most folders of one process at a time.
const FOLDERS_MAX: u32 = 64;

/// A temporary folder of this user, removed at the end.
pub(crate) struct OwnFolder(PathBuf);

impl OwnFolder {
    /// A folder with a name that no other has.
    pub(crate) fn new() -> Result<OwnFolder> {
        let mut tries = 0..FOLDERS_MAX;
        loop {
            let number = tries.next().unwrap_or(FOLDERS_MAX);
            let name = format!("pollux-perf-{}-{number}", std::process::id());
            let path = std::env::temp_dir().join(name);
            match std::fs::DirBuilder::new().mode(0o700).create(&path) {
                Ok(()) => return Ok(OwnFolder(path)),
                Err(error) if error.kind() == ErrorKind::AlreadyExists && number < FOLDERS_MAX => {}
                Err(error) => {
                    let text = format!("cannot make the folder {}", path.display());
                    return Err(error).context(text);
                }
            }
        }
    }

    pub(crate) fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for OwnFolder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// The process that answers; ended with the value.
pub(crate) struct OwnEcho {
    child: Child,
    address: String,
    folder: PathBuf,
}

impl OwnEcho {
    /// Starts it on `core`, to be met as `meeting` says.
    pub(crate) fn start(core: u32, meeting: &Meeting) -> Result<OwnEcho> {
        let here = SocketAddr::from((Ipv4Addr::LOCALHOST, 0)).to_string();
        let mut command = Command::new("/proc/self/exe");
        command
            .args(["lat", "--listen", &here, "--poll", meeting.poll.as_str()])
            .args(["--personality", &meeting.personality.to_string()])
            .args(["--core", &core.to_string(), "--fabric-dir"])
            .arg(&meeting.folder)
            .stdin(Stdio::null())
            .stdout(Stdio::piped());
        if let Some(dir) = &meeting.lock_dir {
            command.arg("--lock-dir").arg(dir);
        }
        if let Some(bytes) = meeting.threshold {
            command.args(["--threshold", &bytes.to_string()]);
        }
        let mut child = command.spawn().context("cannot start the other end")?;
        let mut line = String::new();
        if let Some(out) = child.stdout.take() {
            BufReader::new(out)
                .read_line(&mut line)
                .context("cannot read from the other end")?;
        }
        let address = line
            .strip_prefix("listening on ")
            .and_then(|rest| rest.split(',').next())
            .map(str::to_owned);
        let mut echo = OwnEcho {
            child,
            address: String::new(),
            folder: meeting.folder.clone(),
        };
        match address {
            Some(address) => echo.address = address,
            None => {
                let status = echo.child.wait().context("cannot wait for the other end")?;
                bail!("the other end did not start ({status}); its reason stands above");
            }
        }
        Ok(echo)
    }

    /// Where it listens.
    pub(crate) fn address(&self) -> &str {
        &self.address
    }

    /// Ends it in order.
    pub(crate) fn stop(mut self) -> Result<()> {
        let address = resolve(&self.address)?;
        match echo_client(&self.folder, address) {
            Some(mut client) => {
                // It may be gone before its answer is read; its status is what counts.
                let _ = client.call(Method::Stop, json!({}), CALL_TIMEOUT);
            }
            None => bail!("the other end is gone"),
        }
        let status = self.child.wait().context("cannot wait for the other end")?;
        if status.success() {
            Ok(())
        } else {
            bail!("the other end ended with {status}")
        }
    }
}

impl Drop for OwnEcho {
    fn drop(&mut self) {
        // Harmless after an orderly end: the process has been waited for then.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
