//! The tables of `pollux show`.

use super::text::{Column, View, bytes, table};
use super::{
    CheckView, ConfigView, ConnView, DeviceView, FallbackView, GroupView, LinkView, MemoryView,
    OwnerView, PlannedWorker, StatsView, VersionView, WorkerView,
};
use Column::{Number, Words};
use std::time::Duration;

impl View for VersionView {
    fn text(&self) -> String {
        format!(
            "polluxd {:?} version {}, pid {}, up {}\n",
            self.name,
            self.version,
            self.pid,
            duration(self.uptime_s)
        )
    }
}

/// A list as a table, or a line that says it is empty.
fn list<T>(items: &[T], none: &str, columns: &[Column], row: impl Fn(&T) -> Vec<String>) -> String {
    if items.is_empty() {
        return format!("{none}\n");
    }
    table(columns, items.iter().map(row))
}

impl View for [DeviceView] {
    fn text(&self) -> String {
        let columns = [
            Words("DEVICE"),
            Words("DRIVER"),
            Words("PERSONALITY"),
            Words("VENDOR"),
            Words("GID"),
            Words("MAC"),
            Number("MTU"),
            Words("INLINE"),
            Words("LIMITS"),
        ];
        let mut text = list(self, "no devices", &columns, |device| {
            let limits: Vec<String> = device
                .limits
                .iter()
                .map(|(name, limit)| format!("{name}={limit}"))
                .collect();
            vec![
                device.name.clone(),
                device.driver.clone(),
                device.personality.clone(),
                format!("{:#06x}:{:#06x}", device.vendor_id, device.vendor_part_id),
                device.gid.clone(),
                device.mac.clone(),
                device.mtu_bytes.to_string(),
                device.inline.to_string(),
                limits.join(" "),
            ]
        });
        for device in self {
            for note in device.inline.notes() {
                text.push_str(&format!("{}: {note}\n", device.name));
            }
        }
        text
    }
}

impl View for [LinkView] {
    fn text(&self) -> String {
        let columns = [
            Number("LINK"),
            Number("GROUP"),
            Words("ROLE"),
            Words("STATE"),
            Words("PEER GID"),
            Words("QPN"),
            Words("PEER QPN"),
            Number("MTU"),
            Words("DEPTH"),
            Words("INLINE"),
            Words("USED msg/wr"),
            Number("CONNS"),
            Number("WRS"),
            Number("DOORBELLS"),
            Words("WRITES inl/ref"),
            Words("SENDS inl/ref"),
            Number("SIGNALLED"),
            Words("CREDITS"),
            Words("RETURNED cdc/ann"),
            Words("DRY"),
            Words("RNR out/in"),
        ];
        list(self, "no links", &columns, |link| {
            let counters = &link.counters;
            vec![
                link.link.to_string(),
                link.group.to_string(),
                link.role.to_string(),
                link.state.clone(),
                link.peer_gid.clone(),
                format!("{:#08x}", link.local_qpn),
                format!("{:#08x}", link.peer_qpn),
                link.mtu_bytes.to_string(),
                format!("{}/{}", link.send_depth, link.recv_depth),
                link.inline.to_string(),
                format!("{}/{}", link.inline_message_bytes, link.inline_write_bytes),
                link.conns.to_string(),
                counters.work_requests.to_string(),
                counters.doorbells.to_string(),
                format!(
                    "{}/{}",
                    counters.writes_inline, counters.writes_by_reference
                ),
                format!("{}/{}", counters.sends_inline, counters.sends_by_reference),
                counters.signaled_completions.to_string(),
                link.credits.as_ref().map_or("off".to_string(), |credits| {
                    format!("{} of {}", credits.held, credits.initial)
                }),
                link.credits.as_ref().map_or("-".to_string(), |credits| {
                    let (cdc, announced) =
                        (credits.returned_by_cdc, credits.returned_by_announcement);
                    format!("{cdc}/{announced}")
                }),
                link.credits.as_ref().map_or("-".to_string(), |credits| {
                    let waited = Duration::from_nanos(credits.waited_ns);
                    format!("{} ({:.1} ms)", credits.waits, waited.as_secs_f64() * 1e3)
                }),
                format!("{}/{}", counters.rnr_naks_sent, counters.rnr_naks_received),
            ]
        })
    }
}

/// A cell of a text that may be empty.
fn or_dash(text: &str) -> String {
    match text {
        "" => "-".to_string(),
        text => text.to_string(),
    }
}

impl View for [GroupView] {
    fn text(&self) -> String {
        let columns = [
            Number("GROUP"),
            Words("ROLE"),
            Words("PEER"),
            Words("KIND"),
            Words("HOST"),
            Words("UEID"),
            Words("SMC-R"),
            Words("FEATURES"),
            Number("WORKER"),
            Number("LINKS"),
            Words("CONNS"),
        ];
        list(self, "no link groups", &columns, |group| {
            vec![
                group.group.to_string(),
                group.role.to_string(),
                group.peer_id.clone(),
                or_dash(&group.peer_kind),
                or_dash(&group.peer_host),
                or_dash(&group.ueid),
                or_dash(&group.version),
                or_dash(&group.features.join(" ")),
                group.worker.to_string(),
                group.links.to_string(),
                format!("{} of {}", group.conns, group.conns_max),
            ]
        })
    }
}

impl View for [ConnView] {
    fn text(&self) -> String {
        let columns = [
            Number("CONN"),
            Number("LINK"),
            Words("ROLE"),
            Words("STATE"),
            Words("LOCAL"),
            Words("PEER"),
            Words("TOKEN"),
            Words("PEER TOKEN"),
            Number("SNDBUF"),
            Number("RMBE"),
            Number("PEER RMBE"),
            Number("IN"),
            Number("OUT"),
            Words("OWNER"),
        ];
        list(self, "no connections", &columns, |conn| {
            vec![
                conn.conn.to_string(),
                conn.link.to_string(),
                conn.role.to_string(),
                conn.state.clone(),
                conn.local.to_string(),
                conn.peer.to_string(),
                format!("{:#010x}", conn.token),
                format!("{:#010x}", conn.peer_token),
                bytes(conn.sndbuf_bytes.into()),
                bytes(conn.rmbe_bytes.into()),
                bytes(conn.peer_rmbe_bytes.into()),
                bytes(conn.bytes_in),
                bytes(conn.bytes_out),
                owner(&conn.owner),
            ]
        })
    }
}

fn owner(owner: &OwnerView) -> String {
    match owner {
        OwnerView::Session {
            session,
            pid,
            program,
        } => {
            format!("{} (pid {pid}, session {session})", printable(program))
        }
        OwnerView::App { name } => name.clone(),
    }
}

/// A text that somebody else chose, without what could confuse a terminal.
fn printable(text: &str) -> String {
    text.chars()
        .map(|c| if c.is_control() { '?' } else { c })
        .collect()
}

impl View for [WorkerView] {
    fn text(&self) -> String {
        let columns = [
            Number("WORKER"),
            Number("CORE"),
            Words("POLL"),
            Number("PASSES"),
            Number("BUSY"),
            Number("IDLE"),
            Number("USEFUL %"),
            Number("SLEEPS"),
            Number("CONNS"),
            Number("LINKS"),
            Number("SESSIONS"),
            Number("MSGS IN"),
            Number("MSGS OUT"),
        ];
        list(self, "no workers", &columns, |worker| {
            vec![
                worker.worker.to_string(),
                worker.core.to_string(),
                worker.poll.to_string(),
                worker.passes.to_string(),
                worker.busy_passes.to_string(),
                worker.idle_passes.to_string(),
                share(worker.busy_passes, worker.passes),
                worker.sleeps.to_string(),
                worker.conns.to_string(),
                worker.links.to_string(),
                worker.sessions.to_string(),
                worker.messages_in.to_string(),
                worker.messages_out.to_string(),
            ]
        })
    }
}

/// A share in percent.
fn share(part: u64, whole: u64) -> String {
    match whole {
        0 => "-".to_string(),
        whole => format!("{:.1}", 100.0 * part as f64 / whole as f64),
    }
}

impl View for MemoryView {
    fn text(&self) -> String {
        let columns = [
            Words("PURPOSE"),
            Number("COUNT"),
            Number("BYTES"),
            Words("PAGES"),
        ];
        let mut text = list(&self.pools, "no memory in use", &columns, |pool| {
            vec![
                pool.purpose.clone(),
                pool.count.to_string(),
                bytes(pool.bytes),
                pool.pages.clone(),
            ]
        });
        let total: u64 = self.pools.iter().map(|pool| pool.bytes).sum();
        let limit = self.memlock_limit_bytes.map_or("none".to_string(), bytes);
        text.push_str(&format!(
            "total {}; hugepages of {}: {} free of {}; locked-memory limit: {limit}\n",
            bytes(total),
            bytes(self.hugepage_bytes),
            self.hugepages_free,
            self.hugepages_total,
        ));
        text
    }
}

impl View for [FallbackView] {
    fn text(&self) -> String {
        let columns = [
            Words("LAST TIME (UTC)"),
            Words("PEER"),
            Words("ROLE"),
            Words("BY"),
            Words("CODE"),
            Words("REASON"),
            Number("COUNT"),
            Words("TEXT"),
        ];
        list(self, "no fallbacks", &columns, |fallback| {
            vec![
                utc(fallback.time_s),
                fallback.peer.to_string(),
                fallback.role.to_string(),
                fallback.by.clone(),
                format!("{:#010x}", fallback.code),
                fallback.name.clone(),
                fallback.count.to_string(),
                fallback.text.clone(),
            ]
        })
    }
}

impl View for StatsView {
    fn text(&self) -> String {
        let columns = [Words("COUNTER"), Number("VALUE")];
        let rows: Vec<_> = self.values.iter().collect();
        let mut text = list(&rows, "no counters", &columns, |(name, value)| {
            vec![(*name).clone(), value.to_string()]
        });
        text.push_str(&format!(
            "counted for {:.3} s\n",
            self.elapsed_ns as f64 / 1e9
        ));
        text
    }
}

impl StatsView {
    /// What has changed since `before`, with rates. Counters that stand still are left out.
    #[must_use]
    pub fn text_since(&self, before: &StatsView) -> String {
        let columns = [
            Words("COUNTER"),
            Number("VALUE"),
            Number("CHANGE"),
            Number("PER SECOND"),
        ];
        // A cleared or restarted count begins at zero again.
        let cleared = self.elapsed_ns < before.elapsed_ns;
        let base = |name: &str| {
            if cleared {
                0
            } else {
                *before.values.get(name).unwrap_or(&0)
            }
        };
        let start = if cleared { 0 } else { before.elapsed_ns };
        let seconds = (self.elapsed_ns - start) as f64 / 1e9;
        let moved: Vec<(&String, u64, i128)> = self
            .values
            .iter()
            .map(|(name, value)| (name, *value, i128::from(*value) - i128::from(base(name))))
            .filter(|(_, _, change)| *change != 0)
            .collect();
        list(
            &moved,
            "no counter has moved",
            &columns,
            |(name, value, change)| {
                let rate = if seconds > 0.0 {
                    format!("{:.0}", *change as f64 / seconds)
                } else {
                    "-".to_string()
                };
                vec![
                    (*name).clone(),
                    value.to_string(),
                    format!("{change:+}"),
                    rate,
                ]
            },
        )
    }
}

impl View for ConfigView {
    /// Every key; `*` marks those that differ from the default.
    fn text(&self) -> String {
        let columns = [
            Words(""),
            Words("KEY"),
            Words("VALUE"),
            Words("DEFAULT"),
            Words("UNIT"),
        ];
        let rows = self.rows.iter().map(|row| {
            let same = row.default.as_ref() == Some(&row.value);
            vec![
                if same { "" } else { "*" }.to_string(),
                row.key.clone(),
                row.value.clone(),
                if same {
                    String::new()
                } else {
                    row.default.clone().unwrap_or_default()
                },
                row.unit.clone(),
            ]
        });
        let file = match self.file.as_str() {
            "" => "built-in default",
            file => file,
        };
        format!(
            "# from {file}; * differs from the default\n{}",
            table(&columns, rows)
        )
    }
}

impl View for CheckView {
    fn text(&self) -> String {
        let file = match self.file.as_str() {
            "" => "built-in default",
            file => file,
        };
        let mut text = format!("{file}: no mistakes\n");
        for worker in &self.workers {
            let PlannedWorker { worker, core, poll } = worker;
            text.push_str(&format!("worker {worker}: core {core}, {poll}\n"));
        }
        for (name, value) in [
            ("control thread", format!("cores {}", self.other_cores)),
            ("control socket", self.control_socket.clone()),
            ("attach socket", self.attach_socket.clone()),
            ("fabric folder", self.fabric_dir.clone()),
            ("lock folder", self.lock_dir.clone()),
            ("rings of one session", bytes(self.session_bytes)),
        ] {
            text.push_str(&format!("{name}: {value}\n"));
        }
        for warning in &self.warnings {
            text.push_str(&format!("warning: {warning}\n"));
        }
        text
    }
}

/// Seconds as days, hours, minutes and seconds, from the largest that is not zero.
fn duration(seconds: u64) -> String {
    let parts = [
        (seconds / 86_400, "d"),
        (seconds / 3600 % 24, "h"),
        (seconds / 60 % 60, "m"),
    ];
    let mut text = String::new();
    for (count, unit) in parts {
        if count > 0 || !text.is_empty() {
            text.push_str(&format!("{count}{unit} "));
        }
    }
    text.push_str(&format!("{}s", seconds % 60));
    text
}

/// Seconds since 1970 as a date in UTC.
fn utc(seconds: u64) -> String {
    // Days since 1970 to a date of the proleptic Gregorian calendar, with years that begin in
    // March, so that the leap day is the last of its year.
    let days = seconds / 86_400 + 719_468;
    let (era, day_of_era) = (days / 146_097, days % 146_097);
    let year_of_era =
        (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let shifted = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * shifted + 2) / 5 + 1;
    let month = if shifted < 10 {
        shifted + 3
    } else {
        shifted - 9
    };
    let year = year_of_era + era * 400 + u64::from(month <= 2);
    format!(
        "{year:04}-{month:02}-{day:02} {:02}:{:02}:{:02}",
        seconds / 3600 % 24,
        seconds / 60 % 60,
        seconds % 60
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_empty_list_says_so() {
        assert_eq!(<[LinkView]>::text(&[]), "no links\n");
        assert_eq!(<[ConnView]>::text(&[]), "no connections\n");
        assert_eq!(<[FallbackView]>::text(&[]), "no fallbacks\n");
    }

    #[test]
    fn dates_are_those_of_the_calendar() {
        assert_eq!(utc(0), "1970-01-01 00:00:00");
        assert_eq!(utc(951_782_400), "2000-02-29 00:00:00");
        assert_eq!(utc(1_709_251_199), "2024-02-29 23:59:59");
        assert_eq!(utc(4_102_444_800), "2100-01-01 00:00:00");
    }

    #[test]
    fn durations_begin_with_the_largest_unit_that_counts() {
        assert_eq!(duration(5), "5s");
        assert_eq!(duration(3600), "1h 0m 5s".replace('5', "0"));
        assert_eq!(duration(90_061), "1d 1h 1m 1s");
    }

    #[test]
    fn the_configuration_marks_what_differs_from_the_default() {
        let mut config = crate::config::Config::default();
        config.attach.slots = 8;
        let text = ConfigView::of(&config, "a.toml").text();
        let marked: Vec<&str> = text.lines().filter(|line| line.starts_with('*')).collect();
        assert_eq!(marked.len(), 1, "{text}");
        assert!(
            marked[0].contains("attach.slots") && marked[0].contains("256"),
            "{text}"
        );
    }

    #[test]
    fn statistics_show_change_and_rate_and_begin_anew_after_a_clear() {
        let stats = |elapsed_ns, value| StatsView {
            elapsed_ns,
            values: [("a".to_string(), value), ("still".to_string(), 5)].into(),
        };
        let text = stats(3_000_000_000, 30).text_since(&stats(1_000_000_000, 10));
        assert_eq!(
            text.split_whitespace().skip(5).collect::<Vec<_>>(),
            ["a", "30", "+20", "10"]
        );
        assert!(!text.contains("still"));
        let cleared = stats(1_000_000_000, 4).text_since(&stats(9_000_000_000, 10));
        assert!(cleared.contains("+4"), "{cleared}");
    }

    #[test]
    fn a_programs_name_cannot_confuse_the_terminal() {
        let program = "a\x1b[2Jb\n".to_string();
        let text = owner(&OwnerView::Session {
            session: 1,
            pid: 2,
            program,
        });
        assert_eq!(text, "a?[2Jb? (pid 2, session 1)");
    }
}
