//! Real traffic: redis-benchmark through A to a redis-server behind B.

mod needs_redis {
    use std::process::{Command, Stdio};

    use crate::redis_server::Redis;
    use crate::support::{Pair, Place, Shape};

    /// Runs redis-benchmark through a fresh pair and looks at what both sides have counted.
    fn benchmark(clients: u64, pipeline: &str) {
        let place = Place::new();
        let redis = Redis::start(&place);
        let pair = Pair::start_in(place, &Shape::to(redis.address), "", "");
        let entry = pair.entry();
        let output = Command::new("redis-benchmark")
            .args(["-h", "127.0.0.1", "-p", &entry.port().to_string()])
            .args(["-t", "set,get", "-n", "20000", "-q"])
            .args(["-c", &clients.to_string(), "-P", pipeline])
            .stdin(Stdio::null())
            .output()
            .expect("redis-benchmark starts");
        let out = String::from_utf8_lossy(&output.stdout).replace('\r', "\n");
        let err = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{}\n{out}{err}", output.status);
        let said = format!("{out}{err}").to_lowercase();
        for word in ["error", "failed", "reset", "refused", "closed"] {
            assert!(!said.contains(word), "{word}: {out}{err}");
        }
        for test in ["SET:", "GET:"] {
            let figure = out.lines().rev().find(|line| line.starts_with(test));
            let figure = figure.filter(|line| line.contains("requests per second"));
            assert!(figure.is_some(), "no figure of {test}\n{out}{err}");
        }
        pair.a.until_stat("conns.open", 0);
        pair.b.until_stat("conns.open", 0);
        pair.assert_accelerated();
        for (appliance, forward) in [(&pair.a, "in"), (&pair.b, "out")] {
            let stats = appliance.stats();
            let stat = |name: &str| stats[&format!("forward.{forward}.{name}")];
            // Two tests, each with its own clients, and one connection for the configuration.
            assert!(stat("accepted") > 2 * clients, "{stats:#?}");
            assert_eq!(stats["worker.conns_opened"], stat("accepted"), "{stats:#?}");
            assert_eq!(
                (stat("fallbacks"), stat("failed"), stat("resets")),
                (0, 0, 0),
                "{stats:#?}"
            );
            assert_eq!(stats["worker.malformed"], 0, "{stats:#?}");
        }
    }

    #[test]
    fn fifty_clients_one_request_at_a_time() {
        benchmark(50, "1");
    }

    #[test]
    fn two_hundred_clients_one_request_at_a_time() {
        benchmark(200, "1");
    }

    #[test]
    fn two_hundred_clients_sixteen_requests_at_a_time() {
        benchmark(200, "16");
    }
}
