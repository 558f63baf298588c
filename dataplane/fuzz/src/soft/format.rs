//! Lines of a port and packets of the rendezvous, as bytes.
//!
//! What is accepted is written again as it was, but for what is said to be ignored; a line promises no
//! more bytes and lines than there can be.

use pollux_provider::soft::testing::{CARRIED_BYTES_MAX, Words, line_again, packet_again};

/// Longest message by reference.
const REFERENCED_BYTES_MAX: u32 = 1 << 30;
const SEND: u64 = 1;
/// Says nothing but what it is.
const NOTICE: u64 = 4;
const REFUSED: u16 = 3;

/// Drives one target run: the first byte says whether lines follow, or a packet with so many
/// descriptors.
pub(crate) fn run(bytes: &[u8]) {
    let Some((how, bytes)) = bytes.split_first() else {
        return;
    };
    if how & 1 == 0 {
        for line in bytes.as_chunks::<56>().0 {
            let mut words = Words::default();
            for (word, bytes) in words.iter_mut().zip(line.as_chunks().0) {
                *word = u64::from_le_bytes(*bytes);
            }
            judge_line(&words);
        }
    } else {
        judge_packet(bytes, usize::from(how >> 1 & 3));
    }
}

fn judge_line(words: &Words) {
    let Some(said) = line_again(words) else {
        return;
    };
    let is_referenced = words[0] >> 8 & 0xf == 1;
    let most = if is_referenced {
        REFERENCED_BYTES_MAX
    } else {
        CARRIED_BYTES_MAX
    };
    assert!(said.len <= most, "{said:?}");
    let lines_most = 1 + (CARRIED_BYTES_MAX as usize).div_ceil(56);
    assert!((1..=lines_most).contains(&said.lines), "{said:?}");
    assert!(!is_referenced || said.lines == 1, "{said:?}");
    if words[0] == NOTICE {
        return;
    }
    let mut expected = *words;
    if is_referenced && words[0] & 0x7f == SEND {
        // A SEND goes nowhere by address.
        expected[1] = 0;
    }
    assert_eq!(said.again, expected);
    let second = line_again(&said.again);
    assert_eq!(
        second.map(|second| (second.len, second.lines)),
        Some((said.len, said.lines))
    );
}

fn judge_packet(packet: &[u8], fds: usize) {
    match packet_again(packet, fds) {
        Ok(again) => {
            let kind = u16::from_le_bytes([packet[6], packet[7]]);
            if kind == REFUSED {
                // A text for people: it may be cut, and what is no text is shown as such.
                assert_eq!(again[..8], packet[..8]);
                assert!(again.len() <= 256);
                return;
            }
            assert_eq!(again, packet);
            assert!(packet_again(packet, fds + 1).is_err());
            assert!(packet_again(&packet[..packet.len() - 1], fds).is_err());
            assert!(packet_again(&[packet, &[0]].concat(), fds).is_err());
        }
        Err(text) => assert!(!text.is_empty()),
    }
}
