//! Golden bytes: each `golden/<name>.hex` is one message, `golden/<name>.txt` its printed form.
//!
//! The first part of the name says how to read it: `clc`, `llc1` and `llc2` (LLC of version 1 and
//! 2), `cdc`. The second says where the bytes come from: `kernel` and `run1` are captures of Linux
//! 6.12, `hand` was laid out from the specification, `short` is a form that is only ever read.

mod common;

use std::fs;

use common::{folder, golden};
use pollux_wire::llc::Form;
use pollux_wire::{Error, cdc, clc, llc};

/// Parses a message by its name's first part; returns its printed form and its bytes when written
/// again.
fn read(name: &str, bytes: &[u8]) -> Result<(String, Vec<u8>), Error> {
    let mut out = [0xee; 2048];
    let (line, len) = match name.split('-').next() {
        Some("clc") => {
            let message = clc::Message::parse(bytes)?;
            (message.to_string(), message.emit(&mut out)?)
        }
        Some("llc1") => read_llc(Form::V1, bytes, &mut out)?,
        Some("llc2") => read_llc(Form::V2, bytes, &mut out)?,
        Some("cdc") => {
            let message = cdc::Repr::parse(bytes)?;
            message.emit(out.first_chunk_mut().unwrap());
            (message.to_string(), cdc::CDC_BYTES)
        }
        other => panic!("no parser for {other:?}"),
    };
    Ok((line, out[..len].to_vec()))
}

fn read_llc(form: Form, bytes: &[u8], out: &mut [u8]) -> Result<(String, usize), Error> {
    let message = llc::Message::parse(form, bytes)?;
    Ok((message.to_string(), message.emit(form, out)?))
}

#[test]
fn every_golden_message_prints_as_recorded() {
    for (name, bytes) in golden() {
        let (line, _) = read(&name, &bytes).unwrap_or_else(|error| panic!("{name}: {error}"));
        let recorded = fs::read_to_string(folder().join(format!("{name}.txt")));
        let recorded =
            recorded.unwrap_or_else(|_| panic!("{name}.txt is missing; it reads\n{line}"));
        assert_eq!(line, recorded.trim_end(), "{name}");
    }
}

#[test]
fn every_golden_message_is_written_again_to_the_byte() {
    for (name, bytes) in golden() {
        if !name.contains("-short-") {
            let (_, written) = read(&name, &bytes).unwrap();
            assert_eq!(written, bytes, "{name}");
        }
    }
}

#[test]
fn forms_that_are_only_read_are_written_in_the_current_form() {
    for (name, bytes) in golden() {
        if name.contains("-short-") {
            let (line, written) = read(&name, &bytes).unwrap();
            assert_eq!(written.len(), bytes.len() + 16, "{name}");
            let (again, _) = read(&name, &written).unwrap();
            assert_eq!(again, line, "{name}");
        }
    }
}

#[test]
fn every_cut_of_a_golden_message_is_refused() {
    for (name, bytes) in golden() {
        for len in 0..bytes.len() {
            assert!(
                read(&name, &bytes[..len]).is_err(),
                "{name} cut to {len} bytes"
            );
        }
    }
}

#[test]
fn bytes_behind_a_message_do_not_change_it() {
    for (name, mut bytes) in golden() {
        let alone = read(&name, &bytes).unwrap();
        bytes.extend([0xff; 40]);
        assert_eq!(read(&name, &bytes).unwrap(), alone, "{name}");
    }
}

#[test]
fn there_is_a_golden_message_of_every_kind() {
    let names: Vec<String> = golden().into_keys().collect();
    let kinds = [
        "proposal",
        "accept",
        "confirm-first",
        "confirm-v1",
        "decline",
        "confirm-link",
        "add-link-request",
        "add-link-cont",
        "delete-link",
        "request-add-link",
        "confirm-rkey",
        "confirm-rkey-cont",
        "test-link",
        "delete-rkey",
        "announce-credits",
        "cdc",
    ];
    for kind in kinds {
        assert!(names.iter().any(|name| name.contains(kind)), "{kind}");
    }
    assert_eq!(
        names.iter().filter(|name| name.contains("kernel")).count(),
        18
    );
}
