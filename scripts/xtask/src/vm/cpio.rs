//! The archive that the kernel unpacks into its first file system: cpio in the "newc" format of the
//! kernel's `Documentation/driver-api/early-userspace/buffer-format.rst`, without compression, which
//! an emulated processor would only have to undo.

use std::collections::BTreeMap;
use std::fs;
use std::io::{self, Write};
use std::path::PathBuf;

use anyhow::{Context, Result, bail};

/// Number of the file type in the mode, as of stat(2).
const DIRECTORY: u32 = 0o040_000;
const FILE: u32 = 0o100_000;
const LINK: u32 = 0o120_000;
const CHARACTER_DEVICE: u32 = 0o020_000;

/// One thing at one path.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Entry {
    Directory,
    /// A file with these bytes.
    Bytes {
        bytes: Vec<u8>,
        mode: u32,
    },
    /// A file with what this file of the host has in it when the archive is written.
    Copy {
        from: PathBuf,
        mode: u32,
    },
    Link(String),
    Device {
        major: u32,
        minor: u32,
    },
}

/// What the guest finds below `/`. Paths have no leading `/`; the folders above an entry come with it.
#[derive(Clone, Debug, Default)]
pub(crate) struct Tree {
    entries: BTreeMap<String, Entry>,
}

impl Tree {
    /// An empty folder.
    pub(crate) fn directory(&mut self, path: &str) -> Result<()> {
        self.put(path, Entry::Directory)
    }

    /// A file with these bytes and permissions.
    pub(crate) fn bytes(&mut self, path: &str, bytes: Vec<u8>, mode: u32) -> Result<()> {
        self.put(path, Entry::Bytes { bytes, mode })
    }

    /// A file of the host, which is read when the archive is written.
    pub(crate) fn copy(&mut self, path: &str, from: PathBuf, mode: u32) -> Result<()> {
        self.put(path, Entry::Copy { from, mode })
    }

    /// A symbolic link.
    pub(crate) fn link(&mut self, path: &str, target: &str) -> Result<()> {
        self.put(path, Entry::Link(target.to_owned()))
    }

    /// A character device.
    pub(crate) fn device(&mut self, path: &str, major: u32, minor: u32) -> Result<()> {
        self.put(path, Entry::Device { major, minor })
    }

    /// Whether something stands at this path.
    pub(crate) fn has(&self, path: &str) -> bool {
        self.entries.contains_key(path)
    }

    /// The same thing may be put twice; two things at one path are a mistake.
    fn put(&mut self, path: &str, entry: Entry) -> Result<()> {
        if path.is_empty() || path.starts_with('/') || path.ends_with('/') {
            bail!("`{path}` is no path below the root of the guest");
        }
        let mut above = path;
        while let Some((folder, _)) = above.rsplit_once('/') {
            match self.entries.get(folder) {
                None => {
                    self.entries.insert(folder.to_owned(), Entry::Directory);
                }
                Some(Entry::Directory) => break,
                Some(_) => bail!("/{path} cannot be packed: /{folder} is no folder"),
            }
            above = folder;
        }
        match self.entries.get(path) {
            Some(there) if *there != entry => bail!("/{path} is packed twice, as two things"),
            Some(_) => {}
            None => {
                self.entries.insert(path.to_owned(), entry);
            }
        }
        Ok(())
    }

    /// Writes the archive: folders before what is in them, which is their order in the map.
    pub(crate) fn write(&self, to: &mut impl Write) -> Result<()> {
        let mut archive = Archive { to, inode: 0 };
        for (path, entry) in &self.entries {
            archive
                .entry(path, entry)
                .with_context(|| format!("cannot pack /{path}"))?;
        }
        archive.member("TRAILER!!!", 0, (0, 0), &[])?;
        archive.to.flush()?;
        Ok(())
    }
}

/// An archive that is being written. Owners are 0 and times are 0, so that the same tree gives the
/// same bytes.
struct Archive<'a, W> {
    to: &'a mut W,
    inode: u32,
}

impl<W: Write> Archive<'_, W> {
    fn entry(&mut self, path: &str, entry: &Entry) -> Result<()> {
        const NO_DEVICE: (u32, u32) = (0, 0);
        match entry {
            Entry::Directory => self.member(path, DIRECTORY | 0o755, NO_DEVICE, &[])?,
            Entry::Bytes { bytes, mode } => self.member(path, FILE | mode, NO_DEVICE, bytes)?,
            Entry::Copy { from, mode } => {
                let bytes =
                    fs::read(from).with_context(|| format!("cannot read {}", from.display()))?;
                self.member(path, FILE | mode, NO_DEVICE, &bytes)?;
            }
            Entry::Link(target) => {
                self.member(path, LINK | 0o777, NO_DEVICE, target.as_bytes())?;
            }
            Entry::Device { major, minor } => {
                self.member(path, CHARACTER_DEVICE | 0o600, (*major, *minor), &[])?;
            }
        }
        Ok(())
    }

    /// A header of 13 numbers in 8 hexadecimal digits each, the name with a zero byte, and the
    /// contents; name and contents are both filled up to a multiple of four bytes.
    fn member(
        &mut self,
        name: &str,
        mode: u32,
        device: (u32, u32),
        bytes: &[u8],
    ) -> io::Result<()> {
        let too_large = |_| io::Error::other("larger than an archive can hold, 4 GiB");
        let size = u32::try_from(bytes.len()).map_err(too_large)?;
        let name_size = u32::try_from(name.len() + 1).map_err(too_large)?;
        self.inode += 1;
        let links = if mode & DIRECTORY == DIRECTORY { 2 } else { 1 };
        write!(self.to, "070701{:08x}{mode:08x}", self.inode)?;
        let (user, group, time) = (0, 0, 0);
        write!(
            self.to,
            "{user:08x}{group:08x}{links:08x}{time:08x}{size:08x}"
        )?;
        let (major, minor) = device;
        write!(self.to, "{:08x}{:08x}{major:08x}{minor:08x}", 0, 0)?;
        let checksum = 0;
        write!(self.to, "{name_size:08x}{checksum:08x}{name}\0")?;
        self.fill(HEADER_BYTES + name.len() + 1)?;
        self.to.write_all(bytes)?;
        self.fill(bytes.len())
    }

    fn fill(&mut self, written: usize) -> io::Result<()> {
        let zeros = [0; 4];
        self.to
            .write_all(&zeros[..written.next_multiple_of(4) - written])
    }
}

/// The magic number and 13 numbers.
const HEADER_BYTES: usize = 6 + 13 * 8;

#[cfg(test)]
mod tests {
    use super::*;

    fn written(tree: &Tree) -> Vec<u8> {
        let mut bytes = Vec::new();
        tree.write(&mut bytes).unwrap();
        bytes
    }

    /// Name, mode, device and contents.
    type Member = (String, u32, (u32, u32), Vec<u8>);

    fn members(mut bytes: &[u8]) -> Vec<Member> {
        let mut found = Vec::new();
        loop {
            let number = |field: usize| {
                let digits = &bytes[6 + field * 8..14 + field * 8];
                u32::from_str_radix(std::str::from_utf8(digits).unwrap(), 16).unwrap()
            };
            assert_eq!(&bytes[..6], b"070701");
            let (name_size, size) = (number(11) as usize, number(6) as usize);
            let name = String::from_utf8(bytes[110..110 + name_size - 1].to_vec()).unwrap();
            assert_eq!(bytes[110 + name_size - 1], 0);
            if name == "TRAILER!!!" {
                return found;
            }
            let start = (110 + name_size).next_multiple_of(4);
            let contents = bytes[start..start + size].to_vec();
            found.push((name, number(1), (number(9), number(10)), contents));
            bytes = &bytes[(start + size).next_multiple_of(4)..];
        }
    }

    #[test]
    fn every_kind_of_entry_is_read_back() {
        let mut tree = Tree::default();
        tree.bytes("init", b"hello".to_vec(), 0o755).unwrap();
        tree.device("dev/console", 5, 1).unwrap();
        tree.link("lib", "usr/lib").unwrap();
        tree.directory("tmp").unwrap();
        let found = members(&written(&tree));
        let folder = |name: &str| (name.to_owned(), 0o040_755, (0, 0), Vec::new());
        assert_eq!(
            found,
            [
                folder("dev"),
                ("dev/console".to_owned(), 0o020_600, (5, 1), Vec::new()),
                ("init".to_owned(), 0o100_755, (0, 0), b"hello".to_vec()),
                ("lib".to_owned(), 0o120_777, (0, 0), b"usr/lib".to_vec()),
                folder("tmp"),
            ]
        );
    }

    #[test]
    fn folders_come_with_what_is_in_them_and_before_it() {
        let mut tree = Tree::default();
        tree.bytes("a/b/c", Vec::new(), 0o644).unwrap();
        let names: Vec<_> = members(&written(&tree)).into_iter().map(|m| m.0).collect();
        assert_eq!(names, ["a", "a/b", "a/b/c"]);
    }

    #[test]
    fn the_archive_has_whole_words_whatever_the_lengths() {
        for length in 0..9 {
            let mut tree = Tree::default();
            let name = &"abcdefghi"[..=length];
            tree.bytes(name, vec![7; length], 0o600).unwrap();
            let bytes = written(&tree);
            assert_eq!(bytes.len() % 4, 0);
            assert_eq!(members(&bytes)[0].3, vec![7; length]);
        }
    }

    #[test]
    fn two_things_at_one_path_are_refused_and_the_same_twice_is_not() {
        let mut tree = Tree::default();
        tree.link("lib", "usr/lib").unwrap();
        tree.link("lib", "usr/lib").unwrap();
        let error = tree.link("lib", "elsewhere").unwrap_err();
        assert!(
            error.to_string().contains("/lib is packed twice"),
            "{error}"
        );
        let error = tree.directory("lib/a").unwrap_err();
        assert!(error.to_string().contains("/lib is no folder"), "{error}");
        assert!(tree.directory("/lib").is_err());
    }

    #[test]
    fn a_file_that_is_gone_is_named() {
        let mut tree = Tree::default();
        tree.copy("a", PathBuf::from("/no/such/file"), 0o644)
            .unwrap();
        let error = format!("{:#}", tree.write(&mut Vec::new()).unwrap_err());
        assert!(error.contains("cannot read /no/such/file"), "{error}");
    }
}
