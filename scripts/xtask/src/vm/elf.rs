//! The few facts about programs, libraries and kernel modules that packing them needs: sections by
//! name, and from them what a file needs beside itself. Only 64-bit little-endian ELF, which is what
//! the guests run.

use std::ops::Range;

use anyhow::{Context, Result, ensure};

/// Tag of an entry of `.dynamic` that names a library (ELF specification, dynamic section).
const DT_NEEDED: u64 = 1;

/// A file in memory.
pub(crate) struct Elf<'a> {
    sections: Vec<(&'a str, &'a [u8])>,
}

impl<'a> Elf<'a> {
    /// Reads the table of sections.
    pub(crate) fn read(bytes: &'a [u8]) -> Result<Elf<'a>> {
        ensure!(
            bytes.starts_with(b"\x7fELF\x02\x01"),
            "not a 64-bit little-endian ELF file"
        );
        let table = number(bytes, 0x28..0x30)?;
        let size = number(bytes, 0x3a..0x3c)?;
        let count = number(bytes, 0x3c..0x3e)?;
        let names_index = number(bytes, 0x3e..0x40)?;
        ensure!(size == 64, "section headers of {size} bytes instead of 64");
        let header = |index: usize| {
            let start = table.checked_add(index * size)?;
            bytes.get(start..start.checked_add(size)?)
        };
        let mut found = Vec::new();
        for index in 0..count {
            let header = header(index).context("the table of sections is cut off")?;
            found.push((number(header, 0..4)?, contents(bytes, header)?));
        }
        let names = found.get(names_index).map_or(&[][..], |(_, names)| names);
        let sections = found
            .iter()
            .map(|(name, contents)| (text_at(names, *name), *contents))
            .collect();
        Ok(Elf { sections })
    }

    /// What a section has in it; nothing if there is none of that name.
    fn section(&self, name: &str) -> Option<&'a [u8]> {
        self.sections
            .iter()
            .find(|(found, _)| *found == name)
            .map(|(_, contents)| *contents)
    }

    /// Names of the libraries that it needs.
    pub(crate) fn libraries(&self) -> Result<Vec<&'a str>> {
        let (Some(dynamic), Some(names)) = (self.section(".dynamic"), self.section(".dynstr"))
        else {
            return Ok(Vec::new());
        };
        let mut libraries = Vec::new();
        for entry in dynamic.chunks_exact(16) {
            if number(entry, 0..8)? as u64 == DT_NEEDED {
                libraries.push(text_at(names, number(entry, 8..16)?));
            }
        }
        Ok(libraries)
    }

    /// Path of the program that loads it, if it is not static.
    pub(crate) fn loader(&self) -> Option<&'a str> {
        self.section(".interp").map(|path| text_at(path, 0))
    }

    /// The values of `key` in a kernel module's own description.
    pub(crate) fn module_facts(&self, key: &str) -> Vec<&'a str> {
        let facts = self.section(".modinfo").unwrap_or(&[]);
        facts
            .split(|byte| *byte == 0)
            .filter_map(|fact| std::str::from_utf8(fact).ok()?.split_once('='))
            .filter(|(found, _)| *found == key)
            .map(|(_, value)| value)
            .collect()
    }
}

/// The bytes that a section header points at; none for those that have no bytes in the file.
fn contents<'a>(bytes: &'a [u8], header: &[u8]) -> Result<&'a [u8]> {
    const NO_BITS: usize = 8;
    if number(header, 4..8)? == NO_BITS {
        return Ok(&[]);
    }
    let start = number(header, 0x18..0x20)?;
    let size = number(header, 0x20..0x28)?;
    start
        .checked_add(size)
        .and_then(|end| bytes.get(start..end))
        .with_context(|| format!("a section of {size} bytes at {start} is cut off"))
}

/// A little-endian number of up to eight bytes.
fn number(bytes: &[u8], at: Range<usize>) -> Result<usize> {
    let digits = bytes.get(at).context("the file is cut off")?;
    let number = digits
        .iter()
        .rev()
        .fold(0u64, |number, byte| number << 8 | u64::from(*byte));
    usize::try_from(number).context("a number is too large")
}

/// The text from there to the next zero byte.
fn text_at(bytes: &[u8], start: usize) -> &str {
    let rest = bytes.get(start..).unwrap_or(&[]);
    let end = rest.iter().position(|byte| *byte == 0);
    std::str::from_utf8(&rest[..end.unwrap_or(rest.len())]).unwrap_or("")
}

/// Makes small ELF files for tests.
#[cfg(test)]
pub(crate) mod testing {
    /// A file with these sections and no more than a reader of sections looks at.
    pub(crate) fn elf(sections: &[(&str, &[u8])]) -> Vec<u8> {
        let mut names = vec![0];
        let mut bytes = vec![0; 64];
        let mut table = vec![0; 64];
        let mut add = |name: &str, contents: &[u8], names: &mut Vec<u8>| {
            let at = names.len();
            names.extend(name.bytes().chain([0]));
            let own = if name == ".shstrtab" {
                &names[..]
            } else {
                contents
            };
            let mut header = [0; 64];
            header[..4].copy_from_slice(&(at as u32).to_le_bytes());
            header[4..8].copy_from_slice(&1u32.to_le_bytes());
            header[0x18..0x20].copy_from_slice(&(bytes.len() as u64).to_le_bytes());
            header[0x20..0x28].copy_from_slice(&(own.len() as u64).to_le_bytes());
            bytes.extend(own);
            table.extend(header);
        };
        for (name, contents) in sections {
            add(name, contents, &mut names);
        }
        add(".shstrtab", &[], &mut names);
        bytes[..6].copy_from_slice(b"\x7fELF\x02\x01");
        let count = (table.len() / 64) as u16;
        let start = bytes.len() as u64;
        bytes[0x28..0x30].copy_from_slice(&start.to_le_bytes());
        bytes[0x3a..0x3c].copy_from_slice(&64u16.to_le_bytes());
        bytes[0x3c..0x3e].copy_from_slice(&count.to_le_bytes());
        bytes[0x3e..0x40].copy_from_slice(&(count - 1).to_le_bytes());
        bytes.extend(table);
        bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn needing(libraries: &[&str]) -> Vec<u8> {
        let (mut names, mut dynamic) = (vec![0], Vec::new());
        for library in libraries {
            dynamic.extend(DT_NEEDED.to_le_bytes());
            dynamic.extend((names.len() as u64).to_le_bytes());
            names.extend(library.bytes().chain([0]));
        }
        dynamic.extend([0; 16]);
        testing::elf(&[(".dynstr", &names), (".dynamic", &dynamic)])
    }

    #[test]
    fn libraries_are_read_in_their_order() {
        let bytes = needing(&["libb.so.1", "liba.so.2"]);
        let elf = Elf::read(&bytes).unwrap();
        assert_eq!(elf.libraries().unwrap(), ["libb.so.1", "liba.so.2"]);
        assert_eq!(elf.loader(), None);
    }

    #[test]
    fn this_test_itself_names_its_loader_and_the_c_library() {
        let bytes = std::fs::read(std::env::current_exe().unwrap()).unwrap();
        let elf = Elf::read(&bytes).unwrap();
        assert!(elf.libraries().unwrap().contains(&"libc.so.6"));
        assert!(elf.loader().unwrap().starts_with("/lib"));
    }

    #[test]
    fn facts_of_a_module_are_found_by_their_key() {
        let facts = b"alias=a\0depends=b,c\0alias=d\0";
        let bytes = testing::elf(&[(".modinfo", facts)]);
        let elf = Elf::read(&bytes).unwrap();
        assert_eq!(elf.module_facts("alias"), ["a", "d"]);
        assert_eq!(elf.module_facts("depends"), ["b,c"]);
        assert_eq!(elf.module_facts("softdep"), [""; 0]);
    }

    #[test]
    fn whatever_is_cut_off_is_refused_and_never_a_panic() {
        let bytes = needing(&["liba.so.2"]);
        for length in 0..bytes.len() {
            assert!(Elf::read(&bytes[..length]).is_err(), "{length}");
        }
        assert!(Elf::read(b"#!/bin/sh\n").is_err());
    }
}
