//! What goes over the TCP connection is read by somebody else's dissector.

mod needs_tshark_needs_root {
    use std::io::{BufRead, BufReader, Read, Write};
    use std::net::SocketAddr;
    use std::path::{Path, PathBuf};
    use std::process::{Command, Stdio};

    use rustix::process::Signal;

    use crate::support::wire::{Plain, exchange};
    use crate::support::{Appliance, Killed, Pair, Place, Shape};
    use crate::support::{PEER, forward, listener, signal_process, until};

    /// A running capture of one port of the loopback interface.
    struct Capture {
        process: Killed,
        file: PathBuf,
    }

    impl Capture {
        /// Begins one; returns once it captures.
        fn start(place: &Place, port: u16) -> Capture {
            let file = place.path("capture.log");
            let child = Command::new("dumpcap")
                .args(["-i", "lo", "-q", "-f", &format!("tcp port {port}")])
                .arg("-w")
                .arg(&file)
                .stdin(Stdio::null())
                .stderr(Stdio::piped())
                .spawn()
                .expect("dumpcap starts");
            let mut process = Killed(child);
            let said = BufReader::new(process.0.stderr.take().expect("a pipe"));
            let mut log = String::new();
            for line in said.lines() {
                let line = line.expect("text");
                log.push_str(&line);
                if line.starts_with("File: ") {
                    return Capture { process, file };
                }
            }
            panic!("dumpcap does not capture: {log}");
        }

        /// Ends it in order and has tshark print, for each packet with a CLC message, the columns.
        fn finish(mut self, wanted: usize) -> Vec<Message> {
            // The kernel hands packets over in blocks; what has been seen is what counts.
            until("the capture has all packets", || {
                (decode(&self.file).len() >= wanted).then_some(())
            });
            signal_process(self.process.0.id(), Signal::INT);
            self.process.0.wait().expect("it ends");
            decode(&self.file)
        }
    }

    /// A CLC message as tshark reads it.
    #[derive(Debug, PartialEq, Eq)]
    struct Message {
        name: String,
        /// Version and first-contact bit of an Accept.
        flags: String,
        /// The reason of a Decline.
        diagnosis: String,
    }

    fn tshark(file: &Path, more: &[&str]) -> String {
        let output = Command::new("tshark")
            .arg("-n")
            .arg("-r")
            .arg(file)
            .args(more)
            .stdin(Stdio::null())
            .output()
            .expect("tshark starts");
        String::from_utf8(output.stdout).expect("text")
    }

    fn decode(file: &Path) -> Vec<Message> {
        let fields = ["smc.clc_msg", "smc.accept.flags", "smc.peer.diag.info"];
        let mut args = vec!["-Y", "smc", "-T", "fields"];
        for field in fields {
            args.extend(["-e", field]);
        }
        let text = tshark(file, &args);
        let column = |line: &str, index: usize| {
            let found = line.split('\t').nth(index);
            // The dissector also gives the bytes behind the reason as such.
            let first = found.and_then(|found| found.split(',').next());
            first.unwrap_or("").to_string()
        };
        text.lines()
            .map(|line| Message {
                name: column(line, 0),
                flags: column(line, 1),
                diagnosis: column(line, 2),
            })
            .collect()
    }

    /// Nothing in the file may be malformed or of a wrong length, whoever's message it is.
    fn assert_well_formed(file: &Path) {
        let wrong = "_ws.malformed || _ws.expert.severity == error || _ws.short";
        assert_eq!(tshark(file, &["-Y", wrong, "-V"]), "");
    }

    #[test]
    fn first_and_later_contact_are_read_without_a_malformed_message() {
        let (target, address) = listener();
        let pair = Pair::start(&Shape::to(address));
        let capture = Capture::start(&pair.place, pair.b.listens("out").port());
        let file = capture.file.clone();
        for seed in [71, 73] {
            let client = Plain::connect(pair.entry());
            let server = Plain::tcp(target.accept().expect("accept").0);
            exchange(&client, &server, seed, 1000);
        }
        pair.assert_accelerated();
        let messages = capture.finish(6);
        let names: Vec<_> = messages.iter().map(|m| m.name.as_str()).collect();
        let (proposal, accept, confirm) = ("1", "2", "3");
        let expected = [proposal, accept, confirm, proposal, accept, confirm];
        assert_eq!(names, expected, "{messages:#?}");
        assert_eq!(messages[1].flags, "0x28", "{messages:#?}");
        assert_eq!(messages[4].flags, "0x20", "{messages:#?}");
        assert_well_formed(&file);
    }

    #[test]
    fn a_decline_is_read_with_its_reason() {
        let place = Place::new();
        let (target, address): (_, SocketAddr) = listener();
        let out = forward("out", "smc:127.0.0.1:0", &format!("tcp:{address}"));
        let b = Appliance::start_with(&place, "b", "ueids = [\"OTHER.UEID\"]", &out);
        let port = b.listens("out").port();
        let way_in = forward("in", "tcp:127.0.0.1:0", &format!("smc:127.0.0.1:{port}"));
        let a = Appliance::start(&place, "a", &format!("{PEER}{way_in}"));
        let capture = Capture::start(&place, port);
        let file = capture.file.clone();
        let client = Plain::connect(a.listens("in"));
        let server = Plain::tcp(target.accept().expect("accept").0);
        (&client).write_all(b"x").expect("write");
        (&server).read_exact(&mut [0]).expect("read");
        let messages = capture.finish(2);
        let names: Vec<_> = messages.iter().map(|m| m.name.as_str()).collect();
        assert_eq!(names, ["1", "4"], "{messages:#?}");
        let shown = a.json(&["show", "fallbacks"]);
        let code = shown[0]["code"].as_u64().expect("a number");
        assert_eq!(
            messages[1].diagnosis,
            format!("{code:#010x}"),
            "{messages:#?}"
        );
        assert_well_formed(&file);
    }
}
