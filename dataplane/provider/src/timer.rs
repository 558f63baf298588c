//! The table of RNR timer codes.

/// RNR timer in units of 10 us by code (InfiniBand architecture, 9.7.5.2.8, table 45).
const RNR_TIMER_10US: [u32; 32] = [
    65536, 1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024, 1536,
    2048, 3072, 4096, 6144, 8192, 12288, 16384, 24576, 32768, 49152,
];

/// Nanoseconds that RNR timer `code` stands for; `None` for a code over 31.
pub fn rnr_timer_ns(code: u8) -> Option<u64> {
    RNR_TIMER_10US
        .get(usize::from(code))
        .map(|units| u64::from(*units) * 10_000)
}

#[cfg(test)]
mod tests {
    use super::rnr_timer_ns;

    #[test]
    fn known_codes_have_their_times() {
        assert_eq!(rnr_timer_ns(0), Some(655_360_000));
        assert_eq!(rnr_timer_ns(1), Some(10_000));
        assert_eq!(rnr_timer_ns(5), Some(60_000));
        assert_eq!(rnr_timer_ns(12), Some(640_000));
        assert_eq!(rnr_timer_ns(31), Some(491_520_000));
        assert_eq!(rnr_timer_ns(32), None);
    }
}
