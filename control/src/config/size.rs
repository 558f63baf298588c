//! Sizes in bytes as people write them: `65536`, `64K`, `64k`, `1M`, `0x10000`.

/// Why a text is no size.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SizeError {
    /// No digits, or something else among them.
    #[error("is no size like 65536, 64K, 1M or 0x10000")]
    Form,
    /// More than 64 bits.
    #[error("does not fit into 64 bits")]
    TooLarge,
}

/// Reads a size: decimal or `0x` hexadecimal, with `k`, `K` (1024), `m`, `M` (1024²) or `g`, `G`
/// (1024³) behind it.
///
/// # Errors
/// The text is no size, or too large.
pub fn parse_size(text: &str) -> Result<u64, SizeError> {
    let text = text.trim();
    let (number, shift) = match text.char_indices().last() {
        Some((at, 'k' | 'K')) => (&text[..at], 10),
        Some((at, 'm' | 'M')) => (&text[..at], 20),
        Some((at, 'g' | 'G')) => (&text[..at], 30),
        _ => (text, 0),
    };
    let (digits, radix) = match number
        .strip_prefix("0x")
        .or_else(|| number.strip_prefix("0X"))
    {
        Some(digits) => (digits, 16),
        None => (number, 10),
    };
    // from_str_radix would take a sign.
    if digits.is_empty() || !digits.chars().all(|c| c.is_digit(radix)) {
        return Err(SizeError::Form);
    }
    let number = u64::from_str_radix(digits, radix).map_err(|_| SizeError::TooLarge)?;
    number.checked_mul(1 << shift).ok_or(SizeError::TooLarge)
}

/// Writes a size in the largest unit that divides it; [`parse_size`] reads it back.
#[must_use]
pub fn format_size(bytes: u64) -> String {
    for (shift, unit) in [(30, "G"), (20, "M"), (10, "K")] {
        if bytes != 0 && bytes.is_multiple_of(1 << shift) {
            return format!("{}{unit}", bytes >> shift);
        }
    }
    bytes.to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn suffixes_and_hexadecimal_are_sizes() {
        for (text, bytes) in [
            ("0", 0),
            ("65536", 65536),
            ("64K", 65536),
            ("64k", 65536),
            ("0x10000", 65536),
            ("0x40K", 65536),
            ("1M", 1 << 20),
            ("4294967296", 1 << 32),
            ("2G", 2 << 30),
        ] {
            assert_eq!(parse_size(text), Ok(bytes), "{text}");
        }
    }

    #[test]
    fn other_texts_are_refused() {
        for text in ["", "K", "0x", "-1", "+1", "1.5K", "64KB", "1 K", "ten"] {
            assert_eq!(parse_size(text), Err(SizeError::Form), "{text}");
        }
        assert_eq!(parse_size("18446744073709551616"), Err(SizeError::TooLarge));
        assert_eq!(parse_size("17179869184G"), Err(SizeError::TooLarge));
    }

    #[test]
    fn a_written_size_reads_back() {
        for bytes in [
            0,
            1,
            1023,
            1024,
            65536,
            1 << 20,
            (1 << 20) + 1,
            3 << 30,
            u64::MAX,
        ] {
            assert_eq!(parse_size(&format_size(bytes)), Ok(bytes));
        }
        assert_eq!(format_size(524_288), "512K");
    }
}
