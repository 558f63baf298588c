//! The kernel's SMC for scenarios in virtual machines: what Debian has no tools for. Sets up which
//! device belongs to which network and by which name a group of hosts knows each other, and speaks
//! over AF_SMC sockets.
//!
//! Exit status: 0 when everything asked for held, 1 otherwise (clap itself uses 2 for a usage error).

mod diag;
mod netlink;
mod setup;
mod stream;

use std::net::SocketAddr;
use std::process::ExitCode;

use anyhow::{Result, ensure};
use clap::{Parser, Subcommand};

use diag::Mode;

/// The command line.
#[derive(Parser)]
#[command(name = "kernel-smc", about = "The kernel's SMC for scenarios", version)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Adds a user EID: hosts that have one in common may use SMC-Rv2 with each other
    Ueid {
        /// Up to 32 capital letters, digits, `-`, `_` and `.`
        name: String,
    },
    /// Says that an interface and an RDMA device's port are on the same physical network
    Pnet {
        /// Name of the network: up to 16 capital letters and digits
        name: String,
        /// Ethernet interface
        #[arg(long)]
        interface: String,
        /// RDMA device
        #[arg(long)]
        device: String,
        /// Port of the device
        #[arg(long, default_value_t = 1)]
        port: u8,
    },
    /// Gives everything that comes back to who sent it, over one connection after the other
    Echo {
        /// Where to listen
        listen: SocketAddr,
        /// Connections, after which it ends
        #[arg(long, default_value_t = 1)]
        connections: u32,
    },
    /// Sends bytes to an echo and checks what comes back; prints what carried them
    Exchange {
        /// Where the echo is
        to: SocketAddr,
        /// How many bytes
        #[arg(long, default_value_t = 1 << 20)]
        bytes: usize,
        /// Fails unless the connection uses SMC-R, instead of TCP
        #[arg(long)]
        smcr: bool,
    },
}

fn main() -> ExitCode {
    match run(&Arguments::parse().command) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("kernel-smc: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run(command: &Command) -> Result<()> {
    match command {
        Command::Ueid { name } => setup::add_ueid(name),
        Command::Pnet {
            name,
            interface,
            device,
            port,
        } => setup::add_pnet(name, interface, device, *port),
        Command::Echo {
            listen,
            connections,
        } => stream::echo(*listen, *connections),
        Command::Exchange { to, bytes, smcr } => {
            let mode = stream::exchange(*to, *bytes)?;
            println!("{bytes} bytes came back over {mode}");
            ensure!(
                !smcr || mode == Mode::SmcR,
                "the connection uses {mode}: AF_SMC fell back from SMC-R"
            );
            Ok(())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn the_command_line_is_consistent() {
        Arguments::command().debug_assert();
    }
}
