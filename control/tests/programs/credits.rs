//! Receive-queue credits between two appliances, as an operator sees them.

use serde_json::{Value, json};

use crate::running::{Running, pair};
use crate::support::Place;

/// Runs some messages between a server and a client with these configurations and gives what each
/// shows of its link.
fn links(keys: [&str; 2], more: [&str; 2]) -> [Value; 2] {
    let place = Place::new();
    let handshake = |credits: &str| format!("[handshake]\ncredits = \"{credits}\"\n");
    let [server, client] = more.map(handshake);
    let (server, client, address) = pair(&place, keys, [&server, &client]);
    let table = client.json(&[
        "latency",
        &address,
        "--sizes",
        "1,1K",
        "--iterations",
        "300",
    ]);
    assert_eq!(table["transport"], "smc-r", "{table}");
    [&server, &client].map(|running: &Running| {
        let link = running.json(&["show", "links"])[0].clone();
        assert_eq!(link["counters"]["rnr_naks_received"], 0, "{link}");
        link
    })
}

#[test]
fn two_sides_that_want_credits_count_them_and_return_them_on_their_messages() {
    // Two hundred and fifty-five is what a byte can announce.
    for (keys, initial) in [("", 255), ("recv_wr = 16\n", 16), ("recv_wr = 8\n", 8)] {
        for link in links([keys; 2], ["on", "on"]) {
            let credits = &link["credits"];
            assert_eq!(credits["initial"], initial, "{link}");
            let number = |name: &str| credits[name].as_u64().unwrap_or_else(|| panic!("{link}"));
            // A thousand messages came in, and nearly as many went out.
            assert!(number("returned_by_cdc") > 900, "{link}");
            assert!(number("held") > 0 && number("held") <= initial, "{link}");
        }
    }
}

#[test]
fn sides_of_different_depth_keep_to_what_the_other_has() {
    let [server, client] = links(["recv_wr = 8\n", "recv_wr = 64\n"], ["on", "on"]);
    assert_eq!(client["credits"]["initial"], 8);
    assert_eq!(server["credits"]["initial"], 64);
}

#[test]
fn a_side_that_wants_none_gets_none() {
    for more in [
        ["on", "off"],
        ["off", "on"],
        ["off", "off"],
        ["off", "bare"],
        ["bare", "off"],
    ] {
        for link in links([""; 2], more) {
            assert_eq!(link["credits"], json!(null), "{more:?} {link}");
        }
    }
    for more in [["bare", "bare"], ["bare", "on"], ["on", "bare"]] {
        for link in links([""; 2], more) {
            assert_eq!(link["credits"]["initial"], 255, "{more:?} {link}");
        }
    }
}
