//! What goes to standard output and standard error.

use std::io::{self, Write};

use crate::exit::{ExitStatus, Fatal};

/// Writes `text` to standard output. A reader that has seen enough, as `head`, is no failure:
/// what it does not read is dropped.
///
/// # Errors
/// Standard output takes no more, as a full disk.
pub fn emit(text: &str) -> Result<(), Fatal> {
    let mut out = io::stdout().lock();
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => Err(Fatal::os(format!(
            "cannot write to standard output: {error}"
        ))),
        _ => Ok(()),
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
