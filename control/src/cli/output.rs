//! What goes to standard output and standard error.

use std::io::{self, Write};

use crate::exit::{ExitStatus, Fatal};

/// Whether somebody still reads what is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Reader {
    /// As far as one can tell.
    Listens,
    /// It has seen enough, as `head`; what it does not read is dropped.
    Gone,
}

/// Writes `text` to standard output. A reader that is gone is no failure.
///
/// # Errors
/// Standard output takes no more, as a full disk.
pub fn emit(text: &str) -> Result<(), Fatal> {
    emit_part(text).map(|_| ())
}

/// As [`emit`], for output that goes on: tells whether it should.
///
/// # Errors
/// Standard output takes no more, as a full disk.
pub(super) fn emit_part(text: &str) -> Result<Reader, Fatal> {
    let mut out = io::stdout().lock();
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        Ok(()) => Ok(Reader::Listens),
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(Reader::Gone),
        Err(error) => Err(Fatal::os(format!(
            "cannot write to standard output: {error}"
        ))),
    }
}

/// Prints what the command line reader has to say, help and version included, and gives the
/// status that fits.
pub fn usage(error: &clap::Error) -> ExitStatus {
    // Help that nobody reads to its end is no failure.
    let _ = error.print();
    if error.use_stderr() {
        ExitStatus::Usage
    } else {
        ExitStatus::Success
    }
}
