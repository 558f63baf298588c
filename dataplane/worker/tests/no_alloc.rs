//! The way of a message allocates nothing and frees nothing.

mod common;

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

use common::{ManualClock, Sizes, connect, pair, ping};
use pollux_worker::{Builtin, Command, PingEnd, Report, TAG_ECHO, TAG_PING, WaitSpec};

std::thread_local! {
    /// Calls of the allocator by this thread: `None` while nobody counts.
    static CALLS: Cell<Option<u64>> = const { Cell::new(None) };
}

/// The system's allocator, counting what the thread under test does.
struct Counting;

fn count() {
    // A thread that is ending has no cell any more, and is not under test.
    let _ = CALLS.try_with(|calls| calls.set(calls.get().map(|count| count + 1)));
}

#[allow(unsafe_code, reason = "an allocator is an unsafe trait")]
// SAFETY: every call is passed on unchanged to the system's allocator, which keeps the contract.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count();
        // SAFETY: the caller's promise about `layout` is the one that is needed.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        count();
        // SAFETY: `at` came from `System.alloc` with this layout, as the caller promises.
        unsafe { System.dealloc(at, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// Runs `work` and tells how often this thread has called the allocator meanwhile.
fn calls_of(work: impl FnOnce()) -> u64 {
    CALLS.set(Some(0));
    work();
    CALLS.take().expect("counting")
}

/// Sends messages there and back until `rounds` have been measured; the counted part begins when
/// the order is given and ends before the report, which frees its memory, is dropped.
fn ping_pong(inline_bytes: u32, bytes: usize, rounds: usize) {
    let sizes = Sizes {
        inline_bytes,
        ..Sizes::default()
    };
    let clock = ManualClock::default();
    let apps = [Builtin::default(), Builtin::default()];
    let mut nodes = pair(sizes, apps, &clock, WaitSpec::default());
    connect(&mut nodes, 0, [TAG_PING, TAG_ECHO]);
    let mut run = |rounds: usize| {
        nodes[0].send(Command::App(ping(bytes, rounds)));
        let mut ended = None;
        let calls = calls_of(|| {
            for _ in 0..100 * rounds + 100_000 {
                for node in &mut nodes {
                    let _ = node.worker.pass();
                }
                clock.advance(100);
                if let Some(Report::App(run)) = nodes[0].news.pop() {
                    ended = Some(run);
                    break;
                }
            }
        });
        let run = ended.expect("the run ends");
        assert_eq!((run.end, run.samples.len()), (PingEnd::Done, rounds));
        while nodes.iter_mut().any(|node| node.news.pop().is_some()) {}
        calls
    };
    // Tables grow to their size with the first commands.
    run(1000);
    let calls = run(rounds);
    assert_eq!(calls, 0, "{bytes} bytes, inline {inline_bytes}");
}

#[test]
fn two_hundred_thousand_inline_messages_allocate_and_free_nothing() {
    // Each round is a message there and one back.
    ping_pong(256, 64, 100_000);
}

#[test]
fn messages_by_reference_allocate_and_free_nothing() {
    ping_pong(0, 64, 10_000);
    ping_pong(256, 4096, 10_000);
}

#[test]
fn messages_as_long_as_the_ring_allocate_and_free_nothing() {
    ping_pong(256, 16 << 10, 5000);
    ping_pong(0, 16 << 10, 5000);
}

#[test]
fn the_counter_counts() {
    let calls = calls_of(|| drop(std::hint::black_box(Box::new(1_u64))));
    assert_eq!(calls, 2);
}
