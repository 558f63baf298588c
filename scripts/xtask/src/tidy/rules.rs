//! The rules about the text of files.

use super::Finding;
use super::source::{Source, has_prefix, has_word};

/// Most lines of a file, its tests not counted.
const LINES_MAX: usize = 800;

/// The only places where unsafe code may stand: mapped memory and cache hints, calls of libibverbs, and
/// the counting allocator of one test.
const UNSAFE_PLACES: &[&str] = &[
    "control/sockops/src/sys.rs",
    "dataplane/provider/src/verbs/ffi",
    "dataplane/provider/src/verbs/ffi.rs",
    "dataplane/rdma-core-sys/src/calls.rs",
    "dataplane/rdma-core-sys/src/library.rs",
    "dataplane/rdma-core-sys/src/zeroed.rs",
    "dataplane/ring/src/hint",
    "dataplane/ring/src/hint.rs",
    "dataplane/ring/src/pool",
    "dataplane/ring/src/pool.rs",
    "dataplane/ring/src/segment",
    "dataplane/ring/src/segment.rs",
    "dataplane/worker/tests/no_alloc.rs",
];

/// The only places where arithmetic may wrap around.
const WRAPPING_PLACES: &[&str] = &[
    "dataplane/proto/src/cursor.rs",
    "dataplane/proto/src/seq.rs",
    "dataplane/ring",
    // Generations, which tell one life of a place from the next and may start again.
    "control/src/plane/places.rs",
    "dataplane/attach/src/slots.rs",
    "dataplane/provider/src/table.rs",
    // Numbers that a liar might say.
    "dataplane/fuzz",
    // Hashes, and numbers made of them.
    "dataplane/sim/src/numbers.rs",
    "control/src/config/paths.rs",
];

/// The only places that may look at the environment of the process.
///
/// `host.rs` looks at the host once, when a program starts; everything else gets what it found.
const ENVIRONMENT_PLACES: &[&str] = &["control/src/bin", "control/src/host.rs", "scripts"];

/// The only tests that may sleep: they look again and again for what another thread or process does,
/// up to a deadline, and leave it the core meanwhile; `shortage.rs` measures what idleness costs.
const SLEEP_PLACES: &[&str] = &[
    "control/src/gateway/tests/shortage.rs",
    "control/src/gateway/tests/support.rs",
    "control/tests/end_to_end/support/mod.rs",
];

/// What runs for every completion.
const HOT_PLACES: &[&str] = &[
    "dataplane/worker/src/pass",
    "dataplane/worker/src/pass.rs",
    "dataplane/worker/src/receive",
    "dataplane/worker/src/receive.rs",
    "dataplane/worker/src/transmit",
    "dataplane/worker/src/transmit.rs",
];

/// Control without the operating system: it runs in simulators too.
const PLANE_PLACES: &[&str] = &["control/src/plane", "control/src/plane.rs"];

/// A rule about code: none of `words` may stand where the rule holds.
struct CodeRule {
    words: &'static [&'static str],
    search: fn(&str, &str) -> bool,
    reach: Reach,
    holds: fn(&Source) -> bool,
    advice: &'static str,
}

/// The part of a file that a rule is about.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Reach {
    All,
    OutsideTests,
    Tests,
}

const CODE_RULES: &[CodeRule] = &[
    CodeRule {
        words: &["wrapping_", "Wrapping<", "Wrapping("],
        search: has_prefix,
        reach: Reach::OutsideTests,
        holds: |source| is_outside(source, WRAPPING_PLACES),
        advice: "arithmetic wraps around only in proto's cursor.rs and seq.rs and in ring",
    },
    CodeRule {
        words: &["unsafe"],
        search: has_word,
        reach: Reach::All,
        holds: |source| is_outside(source, UNSAFE_PLACES),
        advice: "unsafe code stands only in the modules listed in scripts/xtask/src/tidy/rules.rs",
    },
    CodeRule {
        words: &["static mut"],
        search: has_word,
        reach: Reach::All,
        holds: |source| is_outside(source, ENVIRONMENT_PLACES),
        advice: "no globals: state belongs to the value that is given it at construction",
    },
    CodeRule {
        words: &[
            "env::var",
            "env::vars",
            "env::var_os",
            "env::set_var",
            "env::remove_var",
        ],
        search: has_word,
        reach: Reach::OutsideTests,
        holds: |source| is_outside(source, ENVIRONMENT_PLACES),
        advice: "only the programs read the environment; below them it is a value handed in",
    },
    CodeRule {
        words: &[
            "trace!",
            "debug!",
            "info!",
            "warn!",
            "error!",
            "event!",
            "span!",
            "print!",
            "println!",
            "eprint!",
            "eprintln!",
            "tracing::",
        ],
        search: has_prefix,
        reach: Reach::OutsideTests,
        holds: |source| HOT_PLACES.iter().any(|place| source.is_in(place)),
        advice: "nothing is logged per completion: count it instead",
    },
    CodeRule {
        words: &[
            "Instant::now",
            "SystemTime",
            "TcpStream",
            "UnixStream",
            "OwnedFd",
            "thread::",
            "rustix::",
            "Reactor",
            "RandomState",
        ],
        search: has_prefix,
        reach: Reach::OutsideTests,
        holds: |source| PLANE_PLACES.iter().any(|place| source.is_in(place)),
        advice: "the plane is handed time, randomness and streams, and has no thread",
    },
    CodeRule {
        words: &["thread::sleep", "sleep(", "sleep_ms("],
        search: calls_sleep,
        reach: Reach::Tests,
        holds: |source| is_outside(source, SLEEP_PLACES),
        advice: "a test waits for the event itself, not for time to pass",
    },
    CodeRule {
        words: &["#[ignore"],
        search: has_word,
        reach: Reach::All,
        holds: |_| true,
        advice: "a test that does not run protects nothing: make it run or take it out",
    },
];

/// Words that mark work left undone. Written in two parts each, so that this file keeps the rule.
const MARKERS: &[(&str, &str)] = &[("TO", "DO"), ("FIX", "ME"), ("XX", "X")];

/// Beginnings of paths that exist on one machine only, and parts of registries' addresses; in two
/// parts each for the same reason.
const MACHINE_WORDS: &[(&str, &str)] = &[
    ("/wo", "rk/"),
    ("/ro", "ot/"),
    ("/ho", "me/"),
    ("/Us", "ers/"),
    ("deb.deb", "ian"),
    ("crates.io", "/api"),
    ("index.cra", "tes.io"),
];

fn is_outside(source: &Source, places: &[&str]) -> bool {
    !places.iter().any(|place| source.is_in(place))
}

/// A call of a function of that name; a method or a definition of that name is another thing.
fn calls_sleep(line: &str, word: &str) -> bool {
    has_prefix(line, word)
        && !line.contains(&format!(".{word}"))
        && !line.contains(&format!("fn {word}"))
}

/// The rules about code.
pub(crate) fn check_source(source: &Source) -> Vec<Finding> {
    let mut findings = Vec::new();
    if source.tests_from.min(source.code.len()) > LINES_MAX {
        let lines = source.tests_from;
        findings.push(Finding {
            path: source.path.clone(),
            line: LINES_MAX + 1,
            message: format!(
                "{lines} lines before its tests, {LINES_MAX} are allowed: split it along its nouns"
            ),
        });
    }
    for rule in CODE_RULES.iter().filter(|rule| (rule.holds)(source)) {
        let lines = match rule.reach {
            Reach::All => 0..source.code.len(),
            Reach::OutsideTests => 0..source.tests_from,
            Reach::Tests => source.tests_from..source.code.len(),
        };
        for index in lines {
            let line = &source.code[index];
            if let Some(word) = rule.words.iter().find(|word| (rule.search)(line, word)) {
                findings.push(Finding {
                    path: source.path.clone(),
                    line: index + 1,
                    message: format!("`{word}`: {}", rule.advice),
                });
            }
        }
    }
    findings
}

/// The rules about every text, comments included.
pub(crate) fn check_text(path: &str, text: &str) -> Vec<Finding> {
    let mut findings = Vec::new();
    let mut object = |line: usize, message: String| {
        findings.push(Finding {
            path: path.to_owned(),
            line,
            message,
        });
    };
    for (index, line) in text.lines().enumerate() {
        for (head, tail) in MARKERS {
            let marker = format!("{head}{tail}");
            if has_word(line, &marker) {
                object(
                    index + 1,
                    format!("`{marker}`: finish it, or list it as missing"),
                );
            }
        }
        for (head, tail) in MACHINE_WORDS {
            let word = format!("{head}{tail}");
            if line.contains(&word) {
                object(
                    index + 1,
                    format!("`{word}`: names one machine or one registry"),
                );
            }
        }
    }
    findings
}

#[cfg(test)]
mod tests {
    use super::*;

    const NONE: [usize; 0] = [];

    /// The lines of a source that break a rule.
    fn broken(path: &str, text: &str) -> Vec<usize> {
        let findings = check_source(&Source::new(path, text));
        findings.iter().map(|finding| finding.line).collect()
    }

    #[test]
    fn a_long_file_is_found_and_its_tests_are_not_counted() {
        let code = "fn a() {}\n".repeat(800);
        assert_eq!(broken("perf/src/a.rs", &code), NONE);
        let with_tests = format!("{code}#[cfg(test)]\nmod tests {{\n{code}}}\n");
        assert_eq!(broken("perf/src/a.rs", &with_tests), NONE);
        assert_eq!(
            broken("perf/src/a.rs", &format!("{code}fn b() {{}}\n")),
            [801]
        );
    }

    #[test]
    fn wrapping_stays_in_its_places() {
        let text = "fn a() {\n    b.wrapping_add(c)\n}\n";
        assert_eq!(broken("dataplane/proto/src/conn.rs", text), [2]);
        assert_eq!(broken("dataplane/proto/src/cursor.rs", text), NONE);
        assert_eq!(broken("dataplane/ring/src/line.rs", text), NONE);
        assert_eq!(broken("dataplane/proto/tests/story.rs", text), NONE);
    }

    #[test]
    fn unsafe_code_stays_in_its_places() {
        let text = "fn a() {\n    unsafe { b() }\n}\n";
        assert_eq!(broken("control/src/a.rs", text), [2]);
        assert_eq!(broken("dataplane/ring/src/line.rs", text), [2]);
        assert_eq!(broken("dataplane/ring/src/segment.rs", text), NONE);
        assert_eq!(
            broken(
                "dataplane/ring/src/lib.rs",
                "#[allow(unsafe_code)]\nmod pool;\n"
            ),
            NONE
        );
        assert_eq!(
            broken("control/src/a.rs", "// unsafe\nfn a() { b(\"unsafe\") }\n"),
            NONE
        );
    }

    #[test]
    fn globals_and_the_environment_belong_to_the_programs() {
        let text = "static mut A: u8 = 0;\nfn a() { std::env::var_os(B); }\n";
        assert_eq!(broken("control/src/config.rs", text), [1, 2]);
        assert_eq!(broken("control/src/bin/polluxd.rs", text), NONE);
        assert_eq!(
            broken("control/src/a.rs", "fn a(b: &'static mut u8) { env!(C) }\n"),
            NONE
        );
    }

    #[test]
    fn the_hot_path_is_silent() {
        let text = "fn a() {\n    tracing::warn!(b);\n    debug!(c);\n}\n";
        assert_eq!(broken("dataplane/worker/src/receive.rs", text), [2, 3]);
        assert_eq!(broken("dataplane/worker/src/transmit/wr.rs", text), [2, 3]);
        assert_eq!(broken("dataplane/worker/src/mailbox.rs", text), NONE);
        assert_eq!(
            broken(
                "dataplane/worker/src/pass.rs",
                "fn a() { debug_assert!(b); }\n"
            ),
            NONE
        );
    }

    #[test]
    fn the_plane_asks_the_system_for_nothing() {
        let text = "fn a(b: TcpStream) {\n    let c = std::time::Instant::now();\n}\n";
        for path in ["control/src/plane.rs", "control/src/plane/links.rs"] {
            assert_eq!(broken(path, text), [1, 2], "{path}");
        }
        assert_eq!(broken("control/src/appliance/tcp.rs", text), NONE);
        let handed_in = "fn a(now: Instant) {}\n";
        assert_eq!(broken("control/src/plane/links.rs", handed_in), NONE);
    }

    #[test]
    fn tests_do_not_sleep() {
        let text = "fn a() { thread::sleep(b); }\n#[cfg(test)]\nmod tests {\n\
                    fn c() { std::thread::sleep(d); }\nfn e() { sleep(d); }\n}\n";
        assert_eq!(broken("control/src/a.rs", text), [4, 5]);
        let harmless = "fn sleep(a: u8) {}\nfn b() { c.sleep(d); fence_before_sleep(e); }\n";
        assert_eq!(broken("control/tests/a.rs", harmless), NONE);
    }

    #[test]
    fn ignored_tests_are_found() {
        assert_eq!(
            broken("control/tests/a.rs", "#[test]\n#[ignore = \"slow\"]\n"),
            [2]
        );
    }

    #[test]
    fn markers_are_found_in_comments_too() {
        let marker = format!("{}{}", MARKERS[0].0, MARKERS[0].1);
        let findings = check_text("a.md", &format!("fine\nstill {marker}: this\n"));
        assert_eq!(findings.len(), 1);
        assert_eq!((findings[0].line, findings[0].path.as_str()), (2, "a.md"));
        assert_eq!(
            check_text("a.md", &format!("{marker}S are many\n")),
            Vec::new()
        );
    }

    #[test]
    fn paths_of_one_machine_are_found() {
        for (head, tail) in MACHINE_WORDS {
            assert_eq!(
                check_text("a.toml", &format!("x = \"{head}{tail}y\"\n")).len(),
                1
            );
        }
        assert_eq!(check_text("a.toml", "x = \"/run/pollux\"\n"), Vec::new());
    }
}
