//! What happens between the hosts of a scenario, without the hosts: news come in, orders come out.
//!
//! Guest and bench speak lines over a serial port. The guest says `ready` when it is about to run the
//! script, `barrier NAME` and waits for `go NAME` or `gone HOST`, `kill HOST` and waits for `done`,
//! `say TEXT` for the operator, and at the end `exit STATUS`.

use super::scenario::{End, HOSTS, host_index};

/// What a guest says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Said {
    /// The script begins.
    Ready,
    /// It waits there for the others.
    Barrier(String),
    /// A line for the operator.
    Say(String),
    /// Another host, by its index, is to be killed.
    Kill(usize),
    /// The script has ended.
    Exit(u8),
    /// Something else.
    Nonsense(String),
}

impl Said {
    /// Reads a line without its end.
    pub(crate) fn parse(line: &str) -> Said {
        let line = line.trim_end();
        let (word, rest) = line.split_once(' ').unwrap_or((line, ""));
        let said = match word {
            "ready" if rest.is_empty() => Some(Said::Ready),
            "barrier" if !rest.is_empty() => Some(Said::Barrier(rest.to_owned())),
            "say" => Some(Said::Say(rest.to_owned())),
            "kill" => host_index(rest).map(Said::Kill),
            "exit" => rest.parse().ok().map(Said::Exit),
            _ => None,
        };
        said.unwrap_or_else(|| Said::Nonsense(line.to_owned()))
    }
}

/// What is to be done.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Order {
    /// Write this line to the host.
    Send(usize, String),
    /// End the virtual machine.
    Stop(usize),
    /// Show this line of the host to the operator.
    Show(usize, String),
}

#[derive(Clone, Debug, Default)]
struct Host {
    ready: bool,
    /// The barrier at which it waits.
    waits_at: Option<String>,
    end: Option<End>,
}

/// The hosts of a scenario.
#[derive(Clone, Debug)]
pub(crate) struct Bench {
    hosts: Vec<Host>,
}

impl Bench {
    /// A scenario with this number of hosts, none of which is up.
    pub(crate) fn new(hosts: usize) -> Bench {
        Bench {
            hosts: vec![Host::default(); hosts],
        }
    }

    /// Whether all hosts have been up.
    pub(crate) fn is_ready(&self) -> bool {
        self.hosts.iter().all(|host| host.ready)
    }

    /// Whether all hosts have come to an end.
    pub(crate) fn is_over(&self) -> bool {
        self.hosts.iter().all(|host| host.end.is_some())
    }

    /// The end of each host; one that has none yet hangs.
    pub(crate) fn ends(&self) -> Vec<End> {
        let end = |host: &Host| host.end.unwrap_or(End::Hung);
        self.hosts.iter().map(end).collect()
    }

    /// A host has said something.
    pub(crate) fn said(&mut self, from: usize, said: Said) -> Vec<Order> {
        let Some(host) = self.hosts.get_mut(from).filter(|host| host.end.is_none()) else {
            return Vec::new();
        };
        match said {
            Said::Ready => {
                host.ready = true;
                Vec::new()
            }
            Said::Say(text) => vec![Order::Show(from, text)],
            Said::Nonsense(line) => {
                vec![Order::Show(
                    from,
                    format!("said what nobody understands: {line}"),
                )]
            }
            Said::Barrier(name) => {
                host.waits_at = Some(name);
                self.open_barriers()
            }
            Said::Exit(status) => {
                let mut orders = vec![Order::Stop(from)];
                orders.extend(self.ended(from, End::Exited(status)));
                orders
            }
            Said::Kill(other) => {
                let mut orders = Vec::new();
                if other != from && other < self.hosts.len() {
                    orders.push(Order::Stop(other));
                    orders.extend(self.ended(other, End::Killed));
                }
                orders.push(Order::Send(from, "done".to_owned()));
                orders
            }
        }
    }

    /// A host has come to an end. Only the first end counts.
    pub(crate) fn ended(&mut self, which: usize, end: End) -> Vec<Order> {
        match self.hosts.get_mut(which) {
            Some(host) if host.end.is_none() => {
                host.end = Some(end);
                host.waits_at = None;
                self.open_barriers()
            }
            _ => Vec::new(),
        }
    }

    /// Lets the hosts go on that have all come to the same barrier, and sends away those that wait
    /// there for one that has ended.
    fn open_barriers(&mut self) -> Vec<Order> {
        let gone = self.hosts.iter().position(|host| host.end.is_some());
        let first = self.hosts.first().and_then(|host| host.waits_at.clone());
        let met = first.is_some() && self.hosts.iter().all(|host| host.waits_at == first);
        let mut orders = Vec::new();
        for (index, host) in self.hosts.iter_mut().enumerate() {
            match (gone, &host.waits_at) {
                (Some(gone), Some(_)) => {
                    orders.push(Order::Send(index, format!("gone {}", HOSTS[gone])));
                    host.waits_at = None;
                }
                (None, Some(name)) if met => {
                    orders.push(Order::Send(index, format!("go {name}")));
                    host.waits_at = None;
                }
                (_, _) => {}
            }
        }
        orders
    }
}

/// Whether the hosts ended as they had to; a line for each that did not, otherwise.
pub(crate) fn verdict(expected: &[End], seen: &[End]) -> Result<(), String> {
    let wrong: Vec<_> = HOSTS
        .iter()
        .zip(expected.iter().zip(seen))
        .filter(|(_, (expected, seen))| expected != seen)
        .map(|(host, (expected, seen))| format!("host {host}: {seen} instead of {expected}"))
        .collect();
    if wrong.is_empty() {
        Ok(())
    } else {
        Err(wrong.join("; "))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn barrier(name: &str) -> Said {
        Said::Barrier(name.to_owned())
    }

    fn send(to: usize, line: &str) -> Order {
        Order::Send(to, line.to_owned())
    }

    #[test]
    fn every_line_of_a_guest_is_understood_and_nothing_else() {
        assert_eq!(Said::parse("ready\r\n"), Said::Ready);
        assert_eq!(Said::parse("barrier up"), barrier("up"));
        assert_eq!(Said::parse("say  a b"), Said::Say(" a b".to_owned()));
        assert_eq!(Said::parse("kill b"), Said::Kill(1));
        assert_eq!(Said::parse("exit 255"), Said::Exit(255));
        for line in ["", "barrier", "kill c", "exit 256", "exit", "ready now"] {
            assert_eq!(Said::parse(line), Said::Nonsense(line.to_owned()));
        }
    }

    #[test]
    fn hosts_go_on_when_all_have_come_to_the_barrier() {
        let mut bench = Bench::new(2);
        assert_eq!(bench.said(1, barrier("up")), []);
        assert_eq!(
            bench.said(0, barrier("up")),
            [send(0, "go up"), send(1, "go up")]
        );
        assert_eq!(bench.said(0, barrier("up")), []);
    }

    #[test]
    fn hosts_at_two_barriers_wait() {
        let mut bench = Bench::new(2);
        assert_eq!(bench.said(0, barrier("one")), []);
        assert_eq!(bench.said(1, barrier("two")), []);
    }

    #[test]
    fn a_host_alone_passes_its_barriers() {
        let mut bench = Bench::new(1);
        assert_eq!(bench.said(0, barrier("up")), [send(0, "go up")]);
    }

    #[test]
    fn nobody_waits_for_a_host_that_has_ended() {
        let mut bench = Bench::new(2);
        assert_eq!(bench.said(0, barrier("up")), []);
        assert_eq!(bench.ended(1, End::Panicked), [send(0, "gone b")]);
        assert_eq!(bench.said(0, barrier("later")), [send(0, "gone b")]);
    }

    #[test]
    fn a_status_ends_the_host_and_the_first_end_counts() {
        let mut bench = Bench::new(2);
        assert_eq!(bench.said(0, Said::Exit(3)), [Order::Stop(0)]);
        assert!(!bench.is_over());
        assert_eq!(bench.ended(0, End::Died), []);
        assert_eq!(bench.said(0, Said::Exit(0)), []);
        bench.ended(1, End::Died);
        assert!(bench.is_over());
        assert_eq!(bench.ends(), [End::Exited(3), End::Died]);
    }

    #[test]
    fn a_host_kills_the_other_and_not_itself() {
        let mut bench = Bench::new(2);
        assert_eq!(bench.said(0, Said::Kill(0)), [send(0, "done")]);
        assert_eq!(
            bench.said(0, Said::Kill(1)),
            [Order::Stop(1), send(0, "done")]
        );
        assert_eq!(bench.ends(), [End::Hung, End::Killed]);
    }

    #[test]
    fn the_hosts_are_up_when_each_has_said_so() {
        let mut bench = Bench::new(2);
        bench.said(0, Said::Ready);
        assert!(!bench.is_ready());
        bench.said(1, Said::Ready);
        assert!(bench.is_ready());
    }

    #[test]
    fn what_a_guest_says_is_shown() {
        let mut bench = Bench::new(1);
        assert_eq!(
            bench.said(0, Said::parse("say hello")),
            [Order::Show(0, "hello".to_owned())]
        );
        let orders = bench.said(0, Said::parse("hello"));
        assert!(matches!(&orders[..], [Order::Show(0, text)] if text.ends_with(": hello")));
    }

    #[test]
    fn the_verdict_names_each_host_that_ended_otherwise() {
        let ends = [End::Exited(0), End::Panicked];
        assert_eq!(verdict(&ends, &ends), Ok(()));
        assert_eq!(
            verdict(&ends, &[End::Exited(1), End::Hung]),
            Err("host a: exit 1 instead of exit 0; host b: hang instead of panic".to_owned())
        );
        assert_eq!(
            verdict(&[End::Hung], &[End::Died]),
            Err("host a: death without a word instead of hang".to_owned())
        );
    }
}
