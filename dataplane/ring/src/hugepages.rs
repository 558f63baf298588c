//! What the kernel says about its pool of 2 MiB pages.

use std::fs;
use std::path::Path;

/// Bytes of the only hugepage size that this crate uses.
pub const HUGEPAGE_BYTES: usize = 2 << 20;

const SYSFS: &str = "sys/kernel/mm/hugepages/hugepages-2048kB";
const MEMINFO: &str = "/proc/meminfo";

/// State of the kernel's pool of 2 MiB pages.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct HugepageInfo {
    /// Pages that nobody uses and nobody has reserved.
    pub free: usize,
    /// Pages in the pool.
    pub total: usize,
    /// Bytes of one page.
    pub page_bytes: usize,
}

/// Reads the pool's state from sysfs. A kernel without hugepages has a pool of 0 pages.
pub fn hugepages_free() -> HugepageInfo {
    hugepages_below(Path::new("/"))
}

/// As [`hugepages_free`], from the `sys` in another root folder.
pub fn hugepages_below(root: &Path) -> HugepageInfo {
    let pool = root.join(SYSFS);
    let free = read_number(&pool, "free_hugepages");
    let reserved = read_number(&pool, "resv_hugepages");
    HugepageInfo {
        free: free.saturating_sub(reserved),
        total: read_number(&pool, "nr_hugepages"),
        page_bytes: HUGEPAGE_BYTES,
    }
}

/// Whether the kernel's default hugepage is the 2 MiB one.
///
/// An allocator that asks for "a hugepage" without saying the size gets this one, and rounds to it.
pub(crate) fn default_hugepage_is_2m() -> bool {
    fs::read_to_string(MEMINFO)
        .is_ok_and(|text| default_hugepage_bytes(&text) == Some(HUGEPAGE_BYTES))
}

fn default_hugepage_bytes(meminfo: &str) -> Option<usize> {
    let line = meminfo
        .lines()
        .find_map(|line| line.strip_prefix("Hugepagesize:"))?;
    let mut words = line.split_whitespace();
    let number: usize = words.next()?.parse().ok()?;
    match words.next() {
        Some("kB") => number.checked_mul(1024),
        Some(_) | None => None,
    }
}

fn read_number(pool: &Path, file: &str) -> usize {
    fs::read_to_string(pool.join(file))
        .ok()
        .and_then(|text| text.trim().parse().ok())
        .unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn free_pages_never_exceed_the_pool() {
        let info = hugepages_free();
        assert!(info.free <= info.total);
        assert_eq!(info.page_bytes, 2_097_152);
    }

    #[test]
    fn default_size_is_read_with_its_unit() {
        let text = "HugePages_Free:  0\nHugepagesize:       2048 kB\nHugetlb: 0 kB\n";
        assert_eq!(default_hugepage_bytes(text), Some(HUGEPAGE_BYTES));
        assert_eq!(
            default_hugepage_bytes("Hugepagesize: 1048576 kB"),
            Some(1 << 30)
        );
    }

    #[test]
    fn odd_meminfo_gives_no_size() {
        for text in [
            "",
            "Hugepagesize:",
            "Hugepagesize: x kB",
            "Hugepagesize: 2 MB",
        ] {
            assert_eq!(default_hugepage_bytes(text), None, "{text}");
        }
    }
}
