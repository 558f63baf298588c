//! What `pollux show` tells of inline sizes, on devices that differ in them.

use serde_json::{Value, json};

use crate::running::{Running, pair};
use crate::support::{Place, polluxd};

/// Personality, more keys of the device; inline as JSON without the tries, as text; sizes asked.
type Case = (
    &'static str,
    &'static str,
    Value,
    &'static str,
    &'static [u32],
);

fn inline(granted: u32, found: &str, attempts: u32) -> Value {
    json!({
        "asked_bytes": 256, "granted_bytes": granted, "found": found, "attempts": attempts,
        "trade": null, "depths": null,
    })
}

fn cases() -> [Case; 6] {
    let trade = json!({ "send_wr": 256, "refused_bytes": 256, "errno": "ENOMEM" });
    let mut traded = inline(224, "steps", 3);
    traded["trade"] = trade.clone();
    let mut bisected = inline(96, "bisect", 6);
    bisected["trade"] = trade;
    let down = &[
        256, 240, 224, 208, 192, 176, 160, 144, 128, 112, 96, 80, 64, 48, 32, 16, 0,
    ];
    let gen2 = inline(101, "vendor ladder", 2);
    [
        (
            "generic",
            "",
            inline(256, "first try", 1),
            "256 of 256 (first try, 1 try)",
            &[256],
        ),
        (
            "irdma-gen2",
            "",
            gen2,
            "101 of 256 (vendor ladder, 2 tries)",
            &[216, 101],
        ),
        (
            "gives-0",
            "",
            inline(0, "none", 1),
            "0 of 256 (none, 1 try)",
            &[256],
        ),
        (
            "none",
            "",
            inline(0, "none", 17),
            "0 of 256 (none, 17 tries)",
            down,
        ),
        (
            "budget-73728",
            "",
            traded,
            "224 of 256 (steps, 3 tries)",
            &[256, 240, 224],
        ),
        (
            "budget-40960",
            "inline_probe = \"bisect\"\n",
            bisected,
            "96 of 256 (bisect, 6 tries)",
            &[256, 128, 64, 96, 112, 96],
        ),
    ]
}

#[test]
fn devices_are_shown_with_what_was_asked_granted_found_and_traded_before_any_link() {
    for (personality, more, expected, text, sizes) in cases() {
        let place = Place::new();
        let keys = format!("personality = \"{personality}\"\n{more}");
        let config = place.config_with("a", &keys, "");
        let running = Running::start_from(&place, "a", &config);
        let mut shown = running.json(&["show", "devices"])[0].clone();
        assert_eq!(shown["personality"], personality);
        let tries = shown["inline"]
            .as_object_mut()
            .and_then(|inline| inline.remove("tries"));
        assert_eq!(shown["inline"], expected, "{personality}");
        let tries = tries.expect("tries");
        let tries: Vec<&Value> = tries.as_array().into_iter().flatten().collect();
        let asked: Vec<u64> = tries
            .iter()
            .filter_map(|one| one["asked_bytes"].as_u64())
            .collect();
        let sizes: Vec<u64> = sizes.iter().map(|size| u64::from(*size)).collect();
        assert_eq!(asked, sizes, "{personality}");
        assert_eq!(tries.last().map(|one| &one["errno"]), Some(&Value::Null));
        let table = running.pollux(&["show", "devices"]).out;
        assert!(table.contains(text), "{table}");
        let trade = "soft0: no room for 256 bytes inline at a depth of 256 (ENOMEM): ";
        let traded = !expected["trade"].is_null();
        assert_eq!(table.contains(trade), traded, "{table}");
        assert_eq!(running.pollux(&["stop", "--wait"]).status, Some(0));
        let (_, log) = running.end();
        assert_eq!(log.matches(&format!("inline {text}")).count(), 1, "{log}");
        assert_eq!(log.matches(trade).count(), usize::from(traded), "{log}");
    }
}

#[test]
fn a_device_that_cannot_make_queue_pairs_of_this_depth_ends_the_start_with_cause_and_cure() {
    let place = Place::new();
    let config = place.config_with("a", "personality = \"budget-16383\"\n", "");
    for (probe, tries) in [("ladder", 16), ("bisect", 5)] {
        let probe = format!("personality = \"budget-16383\"\ninline_probe = \"{probe}\"\n");
        assert_eq!(config, place.config_with("a", &probe, ""));
        let ended = polluxd(&["--config", &config]);
        assert_eq!(ended.status, Some(71), "{ended:?}");
        let last = ended.err.lines().last().unwrap_or_default();
        assert!(
            last.starts_with("polluxd: soft0: cannot create a queue pair with 256 sends"),
            "{last}"
        );
        let refused = format!("{tries} larger inline sizes were refused before");
        for part in ["a send queue has 16383", "device.send_wr", &refused] {
            assert!(last.contains(part), "{part:?} is not in {last}");
        }
        assert!(!place.path("a").exists(), "the runtime folder is left");
    }
    // Shallower queues fit.
    let config = place.config_with("a", "personality = \"budget-16383\"\nsend_wr = 64\n", "");
    let running = Running::start_from(&place, "a", &config);
    let shown = running.json(&["show", "devices"]);
    assert_eq!(shown[0]["inline"]["granted_bytes"], 176, "{shown}");
}

#[test]
fn links_use_what_was_remembered_on_devices_that_differ_and_bytes_move_with_and_without_inline() {
    for (server, client, ask, granted) in [
        ("irdma-gen2", "gives-0", 256, 0),
        ("none", "mlx5", 256, 476),
    ] {
        let place = Place::new();
        let device = |personality| format!("personality = \"{personality}\"\n");
        let (_server, running, address) = pair(&place, [&device(server), &device(client)], [""; 2]);
        let before = running.json(&["show", "devices"]);
        let table = running.json(&["latency", &address, "--sizes", "1,1K", "--iterations", "50"]);
        assert_eq!(table["transport"], "smc-r", "{table}");
        assert_eq!(table["rows"].as_array().map(Vec::len), Some(2));
        let links = running.json(&["show", "links"]);
        let inline = &links[0]["inline"];
        assert_eq!(
            (
                &inline["found"],
                &inline["attempts"],
                &inline["granted_bytes"]
            ),
            (&json!("remembered"), &json!(1), &json!(granted))
        );
        assert_eq!(inline["tries"][0]["asked_bytes"], ask);
        let text = format!("{granted} of 256 (remembered, 1 try)");
        assert!(running.pollux(&["show", "links"]).out.contains(&text));
        // The search is still what the device's row tells.
        assert_eq!(running.json(&["show", "devices"]), before);
    }
}

/// What a link may send inline and what it has written: longest message, longest WRITE, WRITEs inline
/// and by reference.
fn in_force(running: &Running) -> [u64; 4] {
    let link = &running.json(&["show", "links"])[0];
    let number = |value: &Value| {
        value
            .as_u64()
            .unwrap_or_else(|| panic!("a number in {link}"))
    };
    [
        number(&link["inline_message_bytes"]),
        number(&link["inline_write_bytes"]),
        number(&link["counters"]["writes_inline"]),
        number(&link["counters"]["writes_by_reference"]),
    ]
}

#[test]
fn a_write_goes_inline_up_to_the_threshold_and_the_grant_and_as_the_operator_says() {
    // Round trips of each size, with those before the first that counts.
    const WRITES: u64 = 200 + 50;
    for (keys, message, write) in [
        ("inline_threshold = 64\n", 256, 64),
        ("inline_threshold = 0\n", 256, 0),
        (
            "personality = \"irdma-gen1\"\ninline_threshold = 200\n",
            48,
            48,
        ),
        ("personality = \"gives-0\"\ninline_threshold = 200\n", 0, 0),
    ] {
        let place = Place::new();
        let (_server, running, address) = pair(&place, ["", keys], [""; 2]);
        let (fits, longer) = (write.max(1), write + 1);
        let run = |sizes: &str| {
            let run = ["latency", &address, "--sizes", sizes, "--iterations", "50"];
            running.json(&run)
        };
        let table = run(&format!("{fits},{longer}"));
        assert_eq!(
            (&table["inline_message_bytes"], &table["inline_write_bytes"]),
            (&json!(message), &json!(write)),
            "{keys}"
        );
        // Everything that was posted is counted: a doorbell for each chain, which ends with a
        // message, and a completion for each quarter of the queue at most.
        let counters = &running.json(&["show", "links"])[0]["counters"];
        let count = |name: &str| counters[name].as_u64().expect("a number");
        let writes = count("writes_inline") + count("writes_by_reference");
        let sends = count("sends_inline") + count("sends_by_reference");
        let requests = count("work_requests");
        assert_eq!(
            (writes, requests),
            (2 * WRITES, writes + sends),
            "{counters}"
        );
        let doorbells = count("doorbells");
        assert!((writes..=sends).contains(&doorbells), "{counters}");
        let completions = count("signaled_completions");
        let quarters = requests / (256 / 4);
        assert!((1..=quarters + 1).contains(&completions), "{counters}");
        let inline = if write == 0 { 0 } else { WRITES };
        let by_reference = 2 * WRITES - inline;
        assert_eq!(
            in_force(&running),
            [message, write, inline, by_reference],
            "{keys}"
        );
        for (word, expected) in [
            ("off", [0, 0]),
            ("messages", [message, 0]),
            ("40", [message.min(40), message.min(40)]),
            ("1024", [message, message]),
            ("on", [message, write]),
        ] {
            let set = running.pollux(&["set", "inline", word]);
            assert_eq!(set.status, Some(0), "{set:?}");
            assert_eq!(in_force(&running)[..2], expected, "{keys}{word}");
        }
    }
}

#[test]
fn without_a_threshold_writes_go_inline_as_far_as_is_worth_it_with_the_driver() {
    let place = Place::new();
    // Grants more than that.
    let (_server, running, address) = pair(&place, ["", "personality = \"mlx5\"\n"], [""; 2]);
    running.json(&["latency", &address, "--sizes", "1", "--iterations", "10"]);
    let worth = &running.json(&["show", "devices"])[0]["limits"]["inline_worth"];
    let [message, write, ..] = in_force(&running);
    assert_eq!(message, 476);
    assert!(
        write < message && worth == &json!(write),
        "{write}, {worth}"
    );
}
