use super::*;

fn parse(args: &[&str]) -> Result<Cli, clap::Error> {
    Cli::try_parse_from(["pollux"].iter().chain(args))
}

#[test]
fn the_command_tree_is_sound() {
    command().debug_assert();
    crate::start::command().debug_assert();
}

#[test]
fn global_options_may_stand_before_and_behind() {
    for args in [
        ["--json", "show", "links"],
        ["show", "--json", "links"],
        ["show", "links", "--json"],
    ] {
        assert!(parse(&args).expect("legal").global.json);
    }
}

#[test]
fn the_socket_follows_from_the_name() {
    let host = Host {
        uid: 1000,
        xdg_runtime_dir: None,
    };
    let socket = |args: &[&str]| parse(args).expect("legal").global.socket(&host);
    assert_eq!(
        socket(&["show", "links"]),
        Ok("/tmp/pollux-1000/pollux/control.sock".into())
    );
    assert_eq!(
        socket(&["--name", "b", "show", "links"]),
        Ok("/tmp/pollux-1000/b/control.sock".into())
    );
    assert_eq!(socket(&["--socket", "x", "show", "links"]), Ok("x".into()));
    let refused = socket(&["--name", "a/b", "show", "links"]).expect_err("a bad name");
    assert_eq!(refused.status(), crate::exit::ExitStatus::Usage);
    assert!(parse(&["--socket", "x", "--name", "b", "show", "links"]).is_err());
}

#[test]
fn values_are_checked_before_anybody_is_asked() {
    for args in [
        &["set", "poll", "bussy"][..],
        &["set", "inline", "many"],
        &["set", "inline", "5000"],
        &["latency", "localhost:1"],
        &["latency", "127.0.0.1:1", "--sizes", "0"],
        &[
            "latency",
            "127.0.0.1:1",
            "--seconds",
            "1",
            "--iterations",
            "5",
        ],
        &["stats", "--watch", "0"],
        &["stats", "--count", "5"],
        &["show"],
        &[],
    ] {
        assert!(parse(args).is_err(), "{args:?}");
    }
}

#[test]
fn sizes_of_a_measurement_take_suffixes() {
    let cli = parse(&["latency", "127.0.0.1:1", "--sizes", "1,64,1K,0x10000"]).expect("legal");
    let Command::Latency(latency) = cli.command else {
        panic!("{:?}", cli.command)
    };
    assert_eq!(latency.sizes, [1, 64, 1024, 65536]);
}
