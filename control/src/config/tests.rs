use super::*;

fn errors(text: &str) -> Vec<String> {
    match Config::from_toml_str(text, "x.toml") {
        Ok(_) => Vec::new(),
        Err(errors) => errors.iter().map(ToString::to_string).collect(),
    }
}

fn error(text: &str) -> String {
    let errors = errors(text);
    assert_eq!(errors.len(), 1, "{errors:?}");
    errors.into_iter().next().unwrap_or_default()
}

fn full() -> Config {
    let mut config = Config::default();
    config.appliance.name = "a".into();
    config.appliance.runtime_dir = PathChoice::At("/tmp/with \"quotes\" and \\".into());
    config.workers.cores = CoreChoice::Listed("0,2-3".parse().expect("cores"));
    config.workers.poll = PollChoice::Interrupt;
    config.attach.rmb_bytes = 512 << 10;
    config.device.personality = "budget-81920".parse().expect("a personality");
    config.device.inline_probe = InlineProbe::Bisect;
    config.device.inline_threshold = InlineThreshold::Bytes(0);
    config.device.ack_timeout = 20;
    config.device.retries = 0;
    config.device.test_link_s = 3600;
    config.device.gid = "::ffff:10.0.0.1".parse().expect("gid");
    config.peers = vec![Peer {
        address: "192.0.2.0/24".parse().expect("peer"),
    }];
    config.services = vec![Service {
        kind: ServiceKind::Echo,
        listen: "[::1]:7001".parse().expect("address"),
    }];
    config.forwards = vec![Forward {
        name: "in".into(),
        listen: "unix:/tmp/in.sock".parse().expect("endpoint"),
        connect: "smc:192.0.2.7:80".parse().expect("endpoint"),
    }];
    config
}

#[test]
fn an_empty_text_is_the_default() {
    assert_eq!(Config::from_toml_str("", "x.toml"), Ok(Config::default()));
}

#[test]
fn what_is_written_loads_again_as_the_same() {
    for config in [Config::default(), full()] {
        assert_eq!(
            Config::from_toml_str(&config.to_toml(), "x.toml"),
            Ok(config)
        );
    }
}

#[test]
fn an_unknown_key_is_told_with_line_and_nearest_key() {
    assert_eq!(
        error("[attach]\n\nslotz = 3\n"),
        "x.toml:3: attach.slotz: unknown key; did you mean \"slots\"? legal keys: socket, slots, \
         sndbuf, rmb, session_memory_max, memory_max, sessions_max, sessions_per_process_max, \
         spin_us"
    );
    assert!(error("[control]\nconns_max = 3\n").contains("it belongs into [workers]"));
    assert!(error("[worker]\n").contains("unknown table; did you mean [workers]?"));
    assert!(error("slots = 3\n").contains("a key outside of any table"));
}

#[test]
fn a_value_out_of_its_limits_is_told_with_the_limits() {
    for (text, expected) in [
        (
            "[attach]\nslots = 0",
            "x.toml:2: attach.slots: out of range (0); legal: 1 to 4096",
        ),
        (
            "[attach]\nsndbuf = \"48K\"",
            "x.toml:2: attach.sndbuf: not a legal size (\"48K\"); legal: 16K, 32K, 64K, 128K, \
             256K or 512K",
        ),
        (
            "[attach]\nrmb = \"many\"",
            "x.toml:2: attach.rmb: is no size like 65536, 64K, 1M or 0x10000 (\"many\"); legal: \
             16K, 32K, 64K, 128K, 256K or 512K",
        ),
        (
            "[attach]\nslots = \"many\"",
            "x.toml:2: attach.slots: needs a whole number, not a text (\"many\"); legal: 1 to 4096",
        ),
        (
            "[device]\nmtu = 1500",
            "x.toml:2: device.mtu: out of range (1500); legal: 256, 512, 1024, 2048 or 4096",
        ),
        (
            "[device]\npersonality = \"irdma-gen4\"",
            "x.toml:2: device.personality: no such adapter, did you mean \"irdma-gen1\"? \
             (\"irdma-gen4\"); legal: \"generic\", \"mlx5\", \"irdma-gen1\", \"irdma-gen2\", \
             \"irdma-gen3\", \"erdma\", \"none\", \"gives-N\" with N up to 4096 or \"budget-N\"",
        ),
        (
            "[device]\ninline_probe = \"bisekt\"",
            "x.toml:2: device.inline_probe: unknown word, did you mean \"bisect\"? (\"bisekt\"); \
             legal: \"ladder\" or \"bisect\"",
        ),
        (
            "[device]\ninline_threshold = 1025",
            "x.toml:2: device.inline_threshold: out of range (1025); legal: \"auto\" or 0 to 1024",
        ),
        (
            "[device]\ninline_threshold = \"half\"",
            "x.toml:2: device.inline_threshold: needs \"auto\" or a whole number, not a text \
             (\"half\"); legal: \"auto\" or 0 to 1024",
        ),
        (
            "[workers]\npoll = \"bussy\"",
            "x.toml:2: workers.poll: unknown word, did you mean \"busy\"? (\"bussy\"); legal: \
             \"auto\", \"busy\", \"adaptive\" or \"interrupt\"",
        ),
        (
            "[workers]\ncores = \"5-2\"",
            "x.toml:2: workers.cores: the range 5-2 runs backwards (\"5-2\"); legal: \"auto\", a \
             list like \"0,2-3\" or a mask like \"0x5\"",
        ),
        (
            "[appliance]\nruntime_dir = \"run\"",
            "x.toml:2: appliance.runtime_dir: is not an absolute path (\"run\"); legal: \"auto\" \
             or an absolute path",
        ),
        (
            "[[peer]]\naddress = \"192.0.2.1/24\"",
            "x.toml:2: peer[0].address: has bits set behind the prefix; the network is written \
             192.0.2.0/24 (\"192.0.2.1/24\"); legal: an address, a network (192.0.2.0/24) or \
             ADDRESS:PORT",
        ),
    ] {
        assert_eq!(error(text), expected);
    }
}

#[test]
fn sizes_may_be_numbers_suffixed_or_hexadecimal() {
    for text in [
        "65536",
        "0x10000",
        "\"64K\"",
        "\"64k\"",
        "\"0x10000\"",
        "65_536",
    ] {
        let config = Config::from_toml_str(&format!("[attach]\nrmb = {text}"), "x.toml");
        assert_eq!(
            config.map(|config| config.attach.rmb_bytes),
            Ok(65536),
            "{text}"
        );
    }
}

#[test]
fn the_patience_with_a_silent_peer_has_limits() {
    for (setting, told) in [
        (
            "ack_timeout = 31",
            "ack_timeout: out of range (31); legal: 8 to 22",
        ),
        (
            "ack_timeout = 7",
            "ack_timeout: out of range (7); legal: 8 to 22",
        ),
        ("retries = 8", "retries: out of range (8); legal: 0 to 7"),
        (
            "test_link_s = 0",
            "test_link_s: out of range (0); legal: 1 to 3600",
        ),
    ] {
        let expected = format!("x.toml:2: device.{told}");
        assert_eq!(error(&format!("[device]\n{setting}")), expected);
    }
}

#[test]
fn the_inline_threshold_is_a_word_or_a_number_of_bytes() {
    for (text, threshold) in [
        ("\"auto\"", InlineThreshold::Auto),
        ("0", InlineThreshold::Bytes(0)),
        ("0x60", InlineThreshold::Bytes(96)),
        ("1024", InlineThreshold::Bytes(1024)),
    ] {
        let config = format!("[device]\ninline_threshold = {text}");
        let config = Config::from_toml_str(&config, "x.toml").expect(text);
        assert_eq!(config.device.inline_threshold, threshold);
    }
}

#[test]
fn a_missing_key_of_an_entry_is_told_once_with_the_line_of_the_entry() {
    assert_eq!(
        error("\n[[service]]\nkind = \"echo\"\n"),
        "x.toml:2: service[0]: the key \"listen\" is missing; legal: ADDRESS:PORT; port 0 takes \
         any free one, which the log then names"
    );
    let wrong = error("[[service]]\nkind = \"echo\"\nlisten = \"here\"");
    assert!(
        wrong.starts_with("x.toml:3: service[0].listen: is no IP address"),
        "{wrong}"
    );
    assert!(error("[peer]\naddress = \"::1\"").contains("needs tables [[peer]], not a table"));
}

#[test]
fn every_finding_is_told_in_the_order_of_the_lines() {
    let found = errors("[workers]\npoll = 1\ncores = \"x\"\n[attach]\nslots = -1\nfoo = 1\n");
    let lines: Vec<&str> = found
        .iter()
        .filter_map(|text| text.split(':').nth(1))
        .collect();
    assert_eq!(lines, ["2", "3", "5", "6"]);
    let all = Config::from_toml_str("[workers]\npoll = 1\nspin_us = -1", "x.toml");
    let summary = all.expect_err("two findings").summary();
    assert!(
        summary.ends_with("(and 1 more; --check shows all)"),
        "{summary}"
    );
}

#[test]
fn a_text_that_is_no_toml_is_told_with_its_line() {
    let found = error("[attach]\nslots = = 3\n");
    assert!(found.starts_with("x.toml:2: "), "{found}");
    let found = error("[attach]\nslots = 1\nslots = 2\n");
    assert!(
        found.starts_with("x.toml:3: ") && found.contains("duplicate"),
        "{found}"
    );
}

#[test]
fn keys_that_do_not_fit_together_are_told_with_both_values() {
    for (text, expected) in [
        (
            "[attach]\nslots = 4096\nsndbuf = \"512K\"\nrmb = \"512K\"",
            "x.toml:2: attach.slots: slots x (sndbuf + rmb) is too much (4096 x 1M = 4294967296 \
             bytes); legal: at most attach.session_memory_max, which is 1G",
        ),
        (
            "[handshake]\npeek_timeout_ms = 7000",
            "x.toml:2: handshake.peek_timeout_ms: longer than the whole handshake (7000 > \
             handshake.timeout_ms 6000); legal: at most handshake.timeout_ms",
        ),
        (
            "[appliance]\nname = \"fabric\"",
            "x.toml:2: appliance.name: reserved for the folder in which soft devices meet \
             (\"fabric\"); choose another name",
        ),
        (
            "[appliance]\nueids = [\"A\", \"A\"]",
            "x.toml:2: appliance.ueids: named twice (\"A\"); drop one",
        ),
        (
            "[control]\nsocket = \"/tmp/s\"\n[attach]\nsocket = \"/tmp/s\"",
            "x.toml:4: attach.socket: also the path of control.socket (/tmp/s); use two",
        ),
        (
            "[[forward]]\nname = \"a\"\nlisten = \"tcp:[::1]:1\"\nconnect = \"tcp:[::1]:2\"",
            "x.toml:4: forward[0].connect: neither end is smc: (tcp:[::1]:1 to tcp:[::1]:2); \
             legal: tcp: or unix: to smc:, or smc: to tcp: or unix:",
        ),
        (
            "[[service]]\nkind = \"echo\"\nlisten = \"0.0.0.0:80\"\n\
             [[service]]\nkind = \"echo\"\nlisten = \"127.0.0.1:80\"",
            "x.toml:6: service[1].listen: service[0].listen already listens there (127.0.0.1:80, \
             0.0.0.0:80); use another port",
        ),
    ] {
        assert_eq!(error(text), expected);
    }
}

#[test]
fn a_configuration_made_by_a_program_is_checked_by_the_same_rules() {
    let mut config = Config::default();
    config.attach.slots = 5000;
    let found = config
        .validate("program")
        .expect_err("too many slots")
        .to_string();
    assert!(
        found.starts_with("program: attach.slots: out of range (5000)"),
        "{found}"
    );
    assert_eq!(full().validate("program"), Ok(()));
}

#[test]
fn a_socket_path_that_the_kernel_cannot_take_is_told() {
    let mut config = Config::default();
    config.appliance.runtime_dir = PathChoice::At(format!("/tmp/{}", "x".repeat(100)).into());
    let host = crate::host::Host {
        uid: 1,
        xdg_runtime_dir: None,
    };
    let error = config.paths(&host).expect_err("too long").to_string();
    assert!(
        error.starts_with("control.socket: too long for a socket (/tmp/xxx"),
        "{error}"
    );
}

#[test]
fn the_automatic_gid_stays_with_the_runtime_folder() {
    let host = crate::host::Host {
        uid: 1,
        xdg_runtime_dir: None,
    };
    let gid = |name: &str| {
        let mut config = Config::default();
        config.appliance.name = name.into();
        config.paths(&host).expect("short paths").default_gid()
    };
    assert_eq!(gid("a"), gid("a"));
    assert_ne!(gid("a"), gid("b"));
    assert!(
        gid("a")
            .to_ipv4_mapped()
            .is_some_and(|address| address.is_loopback())
    );
}

#[test]
fn a_peer_is_one_that_an_entry_covers() {
    let config = full();
    assert!(config.is_peer("192.0.2.9:5".parse().expect("address")));
    assert!(!config.is_peer("192.0.3.9:5".parse().expect("address")));
}

/// The folder of the shipped configurations.
fn conf() -> std::path::PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../conf")
}

#[test]
fn every_shipped_configuration_loads() {
    let mut loaded = Vec::new();
    for file in std::fs::read_dir(conf()).expect("conf/") {
        let path = file.expect("an entry").path();
        if path
            .extension()
            .is_some_and(|extension| extension == "toml")
        {
            Config::from_file(&path).unwrap_or_else(|errors| panic!("{errors}"));
            loaded.extend(
                path.file_name()
                    .map(|name| name.to_string_lossy().into_owned()),
            );
        }
    }
    loaded.sort();
    assert_eq!(
        loaded,
        [
            "minimal.toml",
            "pollux.toml",
            "soft-loopback-b.toml",
            "soft-loopback.toml"
        ]
    );
}

#[test]
fn the_shipped_default_documents_every_key_with_its_true_default() {
    let text = std::fs::read_to_string(conf().join("pollux.toml")).expect("conf/pollux.toml");
    assert_eq!(
        text,
        Config::documented_default(),
        "to write it anew: polluxd --default-config > conf/pollux.toml"
    );
    assert_eq!(
        Config::from_toml_str(&text, "pollux.toml"),
        Ok(Config::default())
    );
    for entry in full().entries() {
        let name = entry.key.rsplit('.').next().unwrap_or_default();
        let documented = |line: &str| {
            line.trim_start_matches('#')
                .starts_with(&format!("{name} = "))
        };
        assert!(
            text.lines().any(documented),
            "{} is not in conf/pollux.toml",
            entry.key
        );
    }
}

#[test]
fn the_examples_of_the_shipped_default_load_when_uncommented() {
    let text = Config::documented_default();
    let uncommented: Vec<&str> = text
        .lines()
        .map(|line| {
            if line.starts_with("# ") {
                ""
            } else {
                line.trim_start_matches('#')
            }
        })
        .collect();
    let config = Config::from_toml_str(&uncommented.join("\n"), "x.toml").expect("examples");
    assert_eq!(
        (
            config.peers.len(),
            config.services.len(),
            config.forwards.len()
        ),
        (1, 1, 1)
    );
}
