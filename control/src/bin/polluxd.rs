//! The appliance.

use std::process::ExitCode;

use pollux_control::exit::Fatal;
use pollux_control::start::{self, Prepared};

fn main() -> ExitCode {
    start::main(std::env::args_os(), serve)
}

/// The one place where the start ends and the appliance begins: everything that [`Prepared`]
/// holds is handed over here.
fn serve(prepared: Prepared) -> Result<(), Fatal> {
    drop(prepared);
    Err(Fatal::unavailable("this build has no data plane"))
}
