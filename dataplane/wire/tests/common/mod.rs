//! Where the golden messages are and how to load them.

use std::collections::BTreeMap;
use std::fs;
use std::path::PathBuf;

/// The folder of the golden messages.
pub(crate) fn folder() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/golden")
}

/// Name and bytes of every golden message.
pub(crate) fn golden() -> BTreeMap<String, Vec<u8>> {
    let files = fs::read_dir(folder())
        .unwrap()
        .map(|entry| entry.unwrap().path());
    let hex = files.filter(|path| path.extension().is_some_and(|extension| extension == "hex"));
    hex.map(|path| {
        let name = path.file_stem().unwrap().to_str().unwrap().to_owned();
        (name, unhex(&fs::read_to_string(&path).unwrap()))
    })
    .collect()
}

fn unhex(text: &str) -> Vec<u8> {
    let lines = text.lines().filter(|line| !line.starts_with('#'));
    let digits: Vec<u8> = lines
        .flat_map(str::bytes)
        .filter(|b| !b.is_ascii_whitespace())
        .collect();
    let pairs = digits.chunks_exact(2);
    pairs
        .map(|p| u8::from_str_radix(str::from_utf8(p).unwrap(), 16).unwrap())
        .collect()
}
