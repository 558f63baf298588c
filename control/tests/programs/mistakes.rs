//! What operators get wrong, and what the host refuses: for each one line with the cause, the value
//! and the cure, the documented exit status, and nothing left behind.

use std::fs;
use std::net::TcpListener;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixListener;

use pollux_control::cores;

use crate::running::{Running, files};
use crate::support::{Place, refused, text_of};

/// A mistake: what it is, sections of the configuration that make it (`AT` is the test's folder), the
/// exit status, and what the line must say.
struct Mistake {
    what: &'static str,
    /// Keys of `[device]`.
    device: String,
    more: String,
    status: i32,
    says: Vec<String>,
}

fn mistake(what: &'static str, more: impl Into<String>, status: i32, says: &[&str]) -> Mistake {
    Mistake {
        what,
        device: String::new(),
        more: more.into(),
        status,
        says: says.iter().map(ToString::to_string).collect(),
    }
}

/// Starts `polluxd` with each mistake and looks at its end, which `pollux doctor` has to foretell.
fn check(place: &Place, mistakes: Vec<Mistake>) {
    let at = text_of(&place.path(""));
    let before = files(place);
    for Mistake {
        what,
        device,
        more,
        status,
        says,
    } in mistakes
    {
        let at = at.trim_end_matches('/');
        let config = place.config_with("m", &device.replace("AT", at), &more.replace("AT", at));
        let ended = refused(&config);
        assert_eq!(ended.status, Some(status), "{what}: {ended:?}");
        let fatal = ended.err.lines().last().unwrap_or_default();
        for word in says.iter().map(|word| word.replace("AT", at)) {
            assert!(
                fatal.contains(&word),
                "{what}: {word:?} is not in {fatal:?}"
            );
        }
        let fatal_lines = ended
            .err
            .lines()
            .filter(|line| line.starts_with("polluxd: "));
        assert_eq!(fatal_lines.count(), 1, "{what}: {ended:?}");
        assert!(!ended.err.contains("panicked"), "{what}: {ended:?}");
        assert_eq!(files(place), before, "{what} leaves something behind");
        assert!(!place.path("m").exists(), "{what} leaves its folder behind");
    }
}

#[test]
fn mistakes_in_the_configuration_are_told_with_their_place_and_what_is_legal() {
    let place = Place::new();
    let allowed = cores::allowed().expect("a mask").to_string();
    check(
        &place,
        vec![
            mistake(
                "an unknown key",
                "[attach]\nsession_max = 1\n",
                78,
                &["m.toml:9: attach.session_max", "sessions_max"],
            ),
            mistake(
                "a limit out of range",
                "[handshake]\nper_peer_max = 0\n",
                78,
                &["handshake.per_peer_max: out of range (0); legal: 1 to 16384"],
            ),
            mistake(
                "a session larger than sessions may be",
                "[attach]\nsession_memory_max = \"1M\"\n",
                78,
                &[
                    "attach.slots",
                    "256 x 128K",
                    "attach.session_memory_max, which is 1M",
                ],
            ),
            mistake(
                "a core that does not exist",
                "cores = \"0,99\"\n",
                78,
                &["core 99 is not in this process's allowed set", &allowed],
            ),
            mistake(
                "an address that this host does not have",
                "[[service]]\nkind = \"echo\"\nlisten = \"192.0.2.1:7\"\n",
                78,
                &[
                    "cannot listen on 192.0.2.1:7 (service.listen)",
                    "os error 99",
                ],
            ),
            mistake(
                "the same in a forward",
                "[[forward]]\nname = \"f\"\nlisten = \"smc:192.0.2.1:7\"\nconnect = \"tcp:127.0.0.1:1\"\n",
                78,
                &["forward \"f\": cannot listen on 192.0.2.1:7", "os error 99"],
            ),
        ],
    );
}

#[test]
fn what_somebody_else_has_is_told_with_who_it_is() {
    let place = Place::new();
    let taken = TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = taken.local_addr().expect("an address");
    let path = place.path("taken.sock");
    let _taken = UnixListener::bind(&path).expect("a path");
    let own = std::process::id();
    let by = format!("{address} is in use by process {own}");
    check(
        &place,
        vec![
            mistake(
                "the port of a service",
                format!("[[service]]\nkind = \"echo\"\nlisten = \"{address}\"\n"),
                75,
                &[&by, "service.listen"],
            ),
            mistake(
                "the port of a forward",
                format!(
                    "[[forward]]\nname = \"f\"\nlisten = \"smc:{address}\"\nconnect = \
                     \"tcp:127.0.0.1:1\"\n"
                ),
                75,
                &["forward \"f\"", &by, "forward.listen"],
            ),
            mistake(
                "the path of a forward",
                "[[forward]]\nname = \"f\"\nlisten = \"unix:AT/taken.sock\"\nconnect = \
                 \"smc:127.0.0.1:1\"\n",
                75,
                &["AT/taken.sock is in use by process", &own.to_string()],
            ),
        ],
    );
}

#[test]
fn a_place_on_the_fabric_that_is_taken_is_told() {
    let place = Place::new();
    let gid = "gid = \"fd00::7\"\n";
    let config = place.config_with("first", gid, "");
    let first = Running::start_from(&place, "first", &config);
    let mut taken = mistake("a GID of another appliance", "", 75, &["fd00::7"]);
    taken.device = gid.to_string();
    check(&place, vec![taken]);
    assert_eq!(first.json(&["show", "devices"])[0]["gid"], "fd00::7");
}

#[test]
fn folders_that_cannot_be_made_or_are_open_to_everybody_are_told() {
    let place = Place::new();
    let open = place.path("open");
    fs::create_dir(&open).expect("a folder");
    fs::set_permissions(&open, fs::Permissions::from_mode(0o777)).expect("a mode");
    let file = place.path("file");
    fs::write(&file, "").expect("a file");
    check(
        &place,
        vec![
            mistake(
                "a control socket in a folder that is not there",
                "[control]\nsocket = \"AT/nowhere/control.sock\"\n",
                71,
                &["AT/nowhere"],
            ),
            mistake(
                "a control socket in the place of a file",
                "[control]\nsocket = \"AT/file\"\n",
                78,
                &["AT/file", "not a socket"],
            ),
            mistake(
                "an attach socket below a file",
                "[attach]\nsocket = \"AT/file/attach.sock\"\n",
                71,
                &["AT/file"],
            ),
        ],
    );
    for (key, value, status, word) in [
        ("runtime_dir", "AT/open", 78, "AT/open"),
        ("runtime_dir", "AT/file/run", 71, "AT/file"),
        ("runtime_dir", "/proc/nowhere", 71, "/proc/nowhere"),
        ("fabric_dir", "AT/file/fabric", 71, "AT/file"),
        ("lock_dir", "AT/open", 78, "AT/open"),
    ] {
        let at = text_of(&place.path(""));
        let at = at.trim_end_matches('/');
        let text = |name: &str, default: &str| {
            if name == key {
                format!("{name} = \"{}\"\n", value.replace("AT", at))
            } else {
                format!("{name} = \"{at}/{default}\"\n")
            }
        };
        let config = place.path("m.toml");
        let lines = format!(
            "[appliance]\nname = \"m\"\n{}[device]\n{}[workers]\n{}",
            text("runtime_dir", "m"),
            text("fabric_dir", "fabric"),
            text("lock_dir", ""),
        );
        fs::write(&config, lines).expect("write");
        let ended = refused(&text_of(&config));
        assert_eq!(ended.status, Some(status), "{key} {value}: {ended:?}");
        let fatal = ended.err.lines().last().unwrap_or_default();
        let word = word.replace("AT", at);
        assert!(
            fatal.starts_with("polluxd: ") && fatal.contains(&word),
            "{key} {value}: {fatal}"
        );
        assert!(
            fatal.contains(key),
            "{key} {value}: the key is not in {fatal}"
        );
    }
}

#[test]
fn descriptors_are_taken_as_far_as_they_go() {
    let place = Place::new();
    let config = place.config_of("a", "");
    let running = Running::start_with_limits(&place, "a", &config, &["--nofile=256:4000"]);
    let limits = fs::read_to_string(format!("/proc/{}/limits", running.pid())).expect("limits");
    let line = limits
        .lines()
        .find(|line| line.starts_with("Max open files"));
    let mut words = line.expect("a limit").split_whitespace().skip(3);
    assert_eq!((words.next(), words.next()), (Some("4000"), Some("4000")));
}
