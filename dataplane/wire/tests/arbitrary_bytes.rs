//! The parsers face the network: no bytes make them panic, and whatever they accept they can write
//! and read again.

mod common;

use pollux_wire::llc::Form;
use pollux_wire::{cdc, clc, imm, llc};
use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::{Index, select};

/// Gives bytes to every parser; an accepted message must survive being written and read again.
fn read_all(bytes: &[u8]) -> Result<(), TestCaseError> {
    let mut out = [0; 2048];
    let _ = clc::Header::parse(bytes);
    if let Ok(message) = clc::Message::parse(bytes) {
        let len = message.emit(&mut out).unwrap();
        let again = clc::Message::parse(&out[..len]);
        prop_assert_eq!(again.as_ref(), Ok(&message));
        prop_assert!(!message.to_string().is_empty());
    }
    for form in [Form::V1, Form::V2] {
        if let Ok(message) = llc::Message::parse(form, bytes) {
            let len = message.emit(form, &mut out).unwrap();
            let again = llc::Message::parse(form, &out[..len]);
            prop_assert_eq!(again.as_ref(), Ok(&message));
            prop_assert!(!message.to_string().is_empty());
        }
    }
    if let Ok(message) = cdc::Repr::parse(bytes) {
        let mut out = [0; cdc::CDC_BYTES];
        message.emit(&mut out);
        prop_assert_eq!(cdc::Repr::parse(&out), Ok(message));
    }
    Ok(())
}

fn golden_bytes() -> impl Strategy<Value = Vec<u8>> {
    select(common::golden().into_values().collect::<Vec<_>>())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(5000))]

    #[test]
    fn no_bytes_make_a_parser_panic(bytes in vec(any::<u8>(), 0..700)) {
        read_all(&bytes)?;
    }

    #[test]
    fn no_bytes_behind_a_good_header_make_a_parser_panic(
        kind in 1..=4u8,
        byte7 in any::<u8>(),
        body in vec(any::<u8>(), 44..700),
    ) {
        let length = body.len() as u16 + 8;
        let mut bytes = vec![0xe2, 0xd4, 0xc3, 0xd9, kind];
        bytes.extend(length.to_be_bytes());
        bytes.push(byte7);
        bytes.extend(body);
        let end = bytes.len();
        bytes[end - 4..].copy_from_slice(&[0xe2, 0xd4, 0xc3, 0xd9]);
        read_all(&bytes)?;
    }

    #[test]
    fn no_bytes_behind_an_llc_type_make_a_parser_panic(
        type_byte in (1..=10u8, any::<bool>()).prop_map(|(kind, v2)| kind + u8::from(v2) * 0x20),
        length in 44..200u16,
        flags in any::<u8>(),
        body in vec(any::<u8>(), 40..300),
    ) {
        let length = if type_byte < 0x20 { 44 } else { length };
        let mut bytes = vec![type_byte, length as u8, 0, flags];
        bytes.extend(body);
        read_all(&bytes)?;
    }

    #[test]
    fn no_change_of_a_golden_message_makes_a_parser_panic(
        mut bytes in golden_bytes(),
        changes in vec((any::<Index>(), any::<u8>()), 1..6),
        cut in any::<Index>(),
        is_cut in any::<bool>(),
    ) {
        for (at, value) in changes {
            let at = at.index(bytes.len());
            bytes[at] = value;
        }
        if is_cut {
            bytes.truncate(cut.index(bytes.len()));
        }
        read_all(&bytes)?;
    }

    #[test]
    fn no_word_makes_the_immediate_parser_panic(word in any::<u32>()) {
        if let Ok(immediate) = imm::Immediate::parse(word) {
            let again = immediate.emit().unwrap();
            prop_assert_eq!(imm::Immediate::parse(again), Ok(immediate));
        }
    }
}
