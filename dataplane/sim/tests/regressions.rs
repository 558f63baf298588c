//! Seeds whose worlds once went wrong.
//!
//! A seed names another world as soon as anything more is drawn from it, so a mistake that a seed has
//! shown gets a test where it was made, as small as it can be. The seeds stay here as well, whole worlds
//! that are run by every `cargo test`.

use pollux_sim::book::Detail;
use pollux_sim::swarm::run_seed;

/// Seeds, and what they showed.
const SEEDS: [(u64, &str); 10] = [
    (412, "room used that a peer was not told of"),
    (1820, "a connection whose place was freed twice"),
    (110_146, "bytes that were readable after an end of our own"),
    (9444, "a link failed without a cause"),
    (2, "a worker that never got beyond trying to sleep"),
    (
        48,
        "groups that nobody uses did not end beside such a worker",
    ),
    (64, "orders piled up before such a worker"),
    (244_969, "a handshake that ended after its worker had"),
    (747_576, "two of those"),
    (876_554, "one of those behind a poisoned link"),
];

#[test]
fn worlds_that_once_went_wrong_go_well_and_are_the_same_each_time() {
    for (seed, showed) in SEEDS {
        let [first, second] = [(); 2].map(|()| run_seed(seed, Detail::None));
        assert_eq!(
            first.violation.map(|v| v.what),
            None,
            "seed {seed}: {showed}"
        );
        assert_eq!(first.digest, second.digest, "seed {seed}");
        assert!(first.figures.steps > 0, "seed {seed} did nothing");
    }
}
