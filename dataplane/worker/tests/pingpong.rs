//! Two workers exchange messages through the built-in applications.

mod common;

use common::{ManualClock, Sizes, connect, pair, ping};
use pollux_worker::{Builtin, Command, PingEnd, Report, TAG_ECHO, TAG_PING, WaitSpec};

#[test]
fn messages_of_every_size_come_back_with_every_inline_size() {
    for inline_bytes in [0, 1, 43, 44, 45, 63, 64, 256] {
        let sizes = Sizes {
            inline_bytes,
            ..Sizes::default()
        };
        let apps = [Builtin::default(), Builtin::default()];
        let clock = ManualClock::default();
        let mut nodes = pair(sizes, apps, &clock, WaitSpec::default());
        connect(&mut nodes, 0, [TAG_PING, TAG_ECHO]);
        for bytes in [
            1,
            2,
            40,
            43,
            44,
            45,
            48,
            63,
            64,
            65,
            255,
            256,
            257,
            2048,
            16 << 10,
        ] {
            nodes[0].send(Command::App(ping(bytes, 100)));
            let mut end = None;
            for _ in 0..1_000_000 {
                for node in &mut nodes {
                    let _ = node.worker.pass();
                }
                clock.advance(100);
                while let Some(report) = nodes[0].news.pop() {
                    if let Report::App(run) = report {
                        end = Some((run.end, run.samples.len()));
                    }
                }
                if end.is_some() {
                    break;
                }
            }
            assert_eq!(
                end,
                Some((PingEnd::Done, 100)),
                "{bytes} bytes, inline {inline_bytes}"
            );
        }
    }
}
