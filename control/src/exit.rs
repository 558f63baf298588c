//! Exit statuses of `polluxd` and `pollux`, and the error that ends a program.
//!
//! The numbers are those of `sysexits.h`, so that a service manager or a script can tell a wrong
//! configuration (fix the file) from a busy core (try again later). A program ends with one line
//! on standard error, `PROGRAM: MESSAGE`, and never with status 0 when something failed.
//!
//! | status | name | when |
//! |---|---|---|
//! | 0 | success | done as asked |
//! | 1 | failure | the appliance answered that the operation failed |
//! | 64 | usage | wrong command line |
//! | 69 | unavailable | no appliance runs, it does not answer, or a device or library is missing |
//! | 71 | operating system | a system call failed, memory or hugepages are lacking |
//! | 75 | temporary | another instance, socket or core lock is in the way |
//! | 78 | configuration | the configuration is wrong, or asks for what this host does not have |

use std::fmt;
use std::io::Write;
use std::process::ExitCode;

/// How a program ended; see the table in the module text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ExitStatus {
    /// Done as asked.
    Success,
    /// The operation was carried out and failed.
    Failure,
    /// Wrong command line (`EX_USAGE`).
    Usage,
    /// A needed service, device or library is not there (`EX_UNAVAILABLE`).
    Unavailable,
    /// A system call failed or a system resource is lacking (`EX_OSERR`).
    Os,
    /// Somebody else holds what is needed; a later try may succeed (`EX_TEMPFAIL`).
    TempFail,
    /// Wrong configuration (`EX_CONFIG`).
    Config,
}

impl ExitStatus {
    /// The number handed to the parent process.
    #[must_use]
    pub const fn code(self) -> u8 {
        match self {
            ExitStatus::Success => 0,
            ExitStatus::Failure => 1,
            ExitStatus::Usage => 64,
            ExitStatus::Unavailable => 69,
            ExitStatus::Os => 71,
            ExitStatus::TempFail => 75,
            ExitStatus::Config => 78,
        }
    }
}

impl From<ExitStatus> for ExitCode {
    fn from(status: ExitStatus) -> ExitCode {
        ExitCode::from(status.code())
    }
}

/// An error that ends the program: what is wrong, what to do, and the status to end with.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fatal {
    status: ExitStatus,
    message: String,
}

impl Fatal {
    /// Makes one. Line breaks in `message` become `"; "`, so that the report stays one line.
    #[must_use]
    pub fn new(status: ExitStatus, message: impl Into<String>) -> Fatal {
        let message: String = message.into();
        let lines: Vec<&str> = message
            .lines()
            .map(str::trim)
            .filter(|line| !line.is_empty())
            .collect();
        Fatal {
            status,
            message: lines.join("; "),
        }
    }

    /// The configuration is wrong, or asks for what this host does not have.
    #[must_use]
    pub fn config(message: impl Into<String>) -> Fatal {
        Fatal::new(ExitStatus::Config, message)
    }

    /// Something needed is not there.
    #[must_use]
    pub fn unavailable(message: impl Into<String>) -> Fatal {
        Fatal::new(ExitStatus::Unavailable, message)
    }

    /// A system call failed.
    #[must_use]
    pub fn os(message: impl Into<String>) -> Fatal {
        Fatal::new(ExitStatus::Os, message)
    }

    /// Somebody else holds what is needed.
    #[must_use]
    pub fn temporary(message: impl Into<String>) -> Fatal {
        Fatal::new(ExitStatus::TempFail, message)
    }

    /// The status to end with; never [`ExitStatus::Success`] by the constructors above.
    #[must_use]
    pub fn status(&self) -> ExitStatus {
        self.status
    }

    /// The message, one line, without the program's name.
    #[must_use]
    pub fn message(&self) -> &str {
        &self.message
    }

    /// Writes `PROGRAM: MESSAGE` to standard error and gives the exit code.
    ///
    /// A closed standard error is no reason to fail differently, so its errors are ignored.
    pub fn report(&self, program: &str) -> ExitCode {
        let _ = writeln!(std::io::stderr().lock(), "{program}: {}", self.message);
        self.status.into()
    }
}

impl fmt::Display for Fatal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl std::error::Error for Fatal {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_of_several_lines_is_told_on_one() {
        let fatal = Fatal::config("first\n\n  second\n");
        assert_eq!(fatal.message(), "first; second");
        assert_eq!(fatal.status().code(), 78);
    }
}
