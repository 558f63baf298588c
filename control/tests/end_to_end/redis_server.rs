//! A redis-server of a test.

use std::net::{SocketAddr, TcpStream};
use std::process::{Child, Command, Stdio};

use crate::support::{Killed, Place, listener, until};

/// A redis-server that keeps nothing on disk.
pub(crate) struct Redis {
    process: Killed,
    pub(crate) address: SocketAddr,
}

impl Redis {
    /// Starts one. It cannot be told to choose a port, so another is tried should the one that was
    /// free be taken meanwhile.
    pub(crate) fn start(place: &Place) -> Redis {
        until("a redis-server that has its port", || {
            let (free, address) = listener();
            drop(free);
            start_at(place, address)
        })
    }

    /// Ends it as a crash would, and starts it again at the same address.
    pub(crate) fn kill_and_start_again(&mut self, place: &Place) {
        let _ = self.process.0.kill();
        let _ = self.process.0.wait();
        let address = self.address;
        *self = until("the redis-server gets its port again", || {
            start_at(place, address)
        });
    }
}

/// Starts one at `address`; `None` if it ends at once.
fn start_at(place: &Place, address: SocketAddr) -> Option<Redis> {
    let mut child = spawn(place, address);
    let answers = until("redis-server answers or has ended", || {
        if child.try_wait().expect("a child").is_some() {
            return Some(false);
        }
        TcpStream::connect(address).is_ok().then_some(true)
    });
    answers.then_some(Redis {
        process: Killed(child),
        address,
    })
}

fn spawn(place: &Place, address: SocketAddr) -> Child {
    Command::new("redis-server")
        .args(["--bind", "127.0.0.1", "--save", "", "--appendonly", "no"])
        .args(["--port", &address.port().to_string()])
        .args(["--loglevel", "warning"])
        .arg("--dir")
        .arg(place.path(""))
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .expect("redis-server starts")
}
