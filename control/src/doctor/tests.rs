//! Reports on model hosts: folders with the files of `/proc` and `/sys` that count.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;

use pollux_provider::verbs::{LibraryInfo, LoadError, Survey};
use serde_json::Value;

use super::{Check, Limit, Machine, PeerAddress, Report, Subject, Verdict, examine};
use crate::cores::CoreSet;
use crate::host::{Host, Root};
use crate::view::View;

/// A model host, with a folder for what an appliance would make.
struct Model {
    dir: tempfile::TempDir,
    library: Result<LibraryInfo, LoadError>,
    affinity: &'static str,
    memlock: Option<u64>,
}

impl Model {
    /// Two cores, no adapter, the library of rdma-core 44.
    fn new() -> Model {
        let model = Model {
            dir: tempfile::tempdir().expect("temporary folder"),
            library: Ok(LibraryInfo {
                path: "/usr/lib/libibverbs.so.1.14.44.0".to_string(),
                symbol_versions: vec!["IBVERBS_1.1".to_string()],
                fork: Ok(()),
            }),
            affinity: "0-1",
            memlock: None,
        };
        for (path, text) in [
            ("proc/sys/kernel/osrelease", "6.12.1"),
            (
                "proc/self/status",
                "Name:\tpollux\nCapEff:\t0000000000000000",
            ),
            (
                "proc/meminfo",
                "MemTotal: 9000000 kB\nMemAvailable:    8388608 kB",
            ),
            (
                "sys/devices/system/clocksource/clocksource0/current_clocksource",
                "tsc",
            ),
            ("sys/devices/system/cpu/isolated", "1"),
            ("sys/devices/system/cpu/nohz_full", "1"),
            (
                "sys/devices/system/cpu/cpu1/topology/thread_siblings_list",
                "1",
            ),
            (
                "sys/devices/system/cpu/cpu1/cpufreq/scaling_governor",
                "performance",
            ),
            (
                "sys/kernel/mm/hugepages/hugepages-2048kB/nr_hugepages",
                "64",
            ),
            (
                "sys/kernel/mm/hugepages/hugepages-2048kB/free_hugepages",
                "64",
            ),
            (
                "sys/devices/system/node/node0/hugepages/hugepages-2048kB/free_hugepages",
                "64",
            ),
            ("etc/libibverbs.d/rxe.driver", "driver rxe"),
        ] {
            model.put(path, text);
        }
        model
    }

    /// The same with soft-RoCE's `rxe0`, whose port 1 is in this state and has these GIDs.
    fn with_rxe(state: &str, gids: &[(u32, &str, &str)]) -> Model {
        let model = Model::new();
        model.put("sys/class/infiniband_verbs/abi_version", "6");
        model.put("dev/infiniband/uverbs0", "");
        let adapter = "sys/class/infiniband/rxe0";
        model.put(&format!("{adapter}/node_type"), "1: CA");
        model.put(&format!("{adapter}/node_guid"), "5054:00ff:fe00:0001");
        let port = format!("{adapter}/ports/1");
        model.put(&format!("{port}/state"), state);
        model.put(&format!("{port}/link_layer"), "Ethernet");
        for (index, gid, kind) in gids {
            model.put(&format!("{port}/gids/{index}"), gid);
            model.put(&format!("{port}/gid_attrs/types/{index}"), kind);
            model.put(&format!("{port}/gid_attrs/ndevs/{index}"), "eth0");
        }
        model
    }

    fn put(&self, path: &str, text: &str) {
        let path = self.at("root").join(path);
        fs::create_dir_all(path.parent().expect("a folder")).expect("folders");
        fs::write(path, format!("{text}\n")).expect("a file");
    }

    fn at(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    fn machine(&self) -> Machine {
        let root = self.at("root");
        let host = Host {
            uid: rustix::process::geteuid().as_raw(),
            xdg_runtime_dir: None,
        };
        let limit = Limit {
            soft: self.memlock,
            hard: self.memlock,
        };
        let affinity: CoreSet = self.affinity.parse().expect("a list");
        Machine {
            survey: Survey::below(&root, self.library.clone()),
            memlock: limit,
            descriptors: Limit {
                soft: Some(1024),
                hard: Some(65536),
            },
            host: host.clone(),
            ..Machine::below(Root::at(root), host, Ok(affinity))
        }
    }

    /// The report for a configuration with these keys of `[device]` and sections.
    fn judge(&self, device: &str, more: &str) -> Report {
        let config = self.at("x.toml");
        let at = self.dir.path().display();
        let text = format!(
            "[appliance]\nruntime_dir = \"{at}/run\"\n[device]\nfabric_dir = \"{at}/fabric\"\n\
             {device}[workers]\nlock_dir = \"{at}/locks\"\n{more}"
        );
        fs::write(&config, text).expect("a file");
        let report = examine(&self.machine(), Subject::read(Some(&config)), None);
        let is_failed = report.checks.iter().any(|c| c.verdict == Verdict::Failure);
        assert_eq!(is_failed, report.end.is_some(), "{}", report.text());
        for made in ["run", "fabric"] {
            assert!(!self.at(made).exists(), "{made} was made");
        }
        report
    }

    /// A text without the temporary folder.
    fn plain(&self, text: &str) -> String {
        text.replace(&self.dir.path().display().to_string(), "AT")
    }
}

const VERBS: &str = "driver = \"verbs\"\nname = \"rxe0\"\n";
const LINK_LOCAL: &str = "fe80:0000:0000:0000:5054:00ff:fe00:0001";
const IPV4: &str = "0000:0000:0000:0000:0000:ffff:c000:0201";
const IPV6: &str = "2001:0db8:0000:0000:0000:0000:0000:0001";
const FOUR: &[(u32, &str, &str)] = &[
    (0, LINK_LOCAL, "IB/RoCE v1"),
    (1, LINK_LOCAL, "RoCE v2"),
    (2, IPV4, "IB/RoCE v1"),
    (3, IPV4, "RoCE v2"),
    (4, "0000:0000:0000:0000:0000:0000:0000:0000", ""),
];

fn status(report: &Report) -> u8 {
    report.end.as_ref().map_or(0, |end| end.status().code())
}

fn check<'a>(report: &'a Report, name: &str) -> &'a Check {
    let found = report.checks.iter().find(|check| check.name == name);
    found.unwrap_or_else(|| panic!("no check {name}: {}", report.text()))
}

/// Whether a check comes to this verdict, and says this.
fn assert_says(report: &Report, name: &str, verdict: Verdict, words: &[&str]) {
    let check = check(report, name);
    assert_eq!(check.verdict, verdict, "{check:?}");
    for word in words {
        let is_there = check.found.contains(word) || check.cure.contains(word);
        assert!(is_there, "{word}: {check:?}");
    }
}

#[test]
fn an_adapter_with_four_gids_is_told_with_the_chosen_one_and_why() {
    let model = Model::with_rxe("4: ACTIVE", FOUR);
    let report = model.judge(VERBS, "");
    assert_eq!(status(&report), 0);
    let told = model.plain(&report.text());
    // The user who runs the test, and what it may do.
    let user = format!("user: {},", rustix::process::geteuid().as_raw());
    let told = told.replace(&user, "user: USER,");
    assert_eq!(told, include_str!("golden/rxe.txt"));
    let mut told = report.json();
    let checks = told["checks"].as_array_mut().expect("a list");
    checks.retain(|check| {
        ["devices", "ports", "GIDs"]
            .iter()
            .any(|group| check["group"] == *group)
    });
    told["config"] = Value::from("AT/x.toml");
    let golden: Value = serde_json::from_str(include_str!("golden/rxe.json")).expect("JSON");
    assert_eq!(told, golden, "{told:#}");
}

#[test]
fn a_host_without_rdma_is_told_what_to_install_and_that_it_can_run_all_the_same() {
    let mut model = Model::new();
    model.library = Err(LoadError::NotFound {
        cause: "libibverbs.so.1: cannot open shared object file".to_string(),
    });
    let report = model.judge(VERBS, "");
    assert_eq!(status(&report), 69);
    let told = model.plain(&report.text());
    let user = format!("user: {},", rustix::process::geteuid().as_raw());
    assert_eq!(
        told.replace(&user, "user: USER,"),
        include_str!("golden/no_rdma.txt")
    );
    let report = model.judge("", "");
    assert_eq!(status(&report), 0, "{}", report.text());
    assert_says(
        &report,
        "libibverbs",
        Verdict::NotApplicable,
        &["apt install libibverbs1"],
    );
    let report = examine(&model.machine(), Subject::Host, None);
    assert_eq!(status(&report), 0, "{}", report.text());
    assert_says(
        &report,
        "libibverbs",
        Verdict::Warning,
        &["ibverbs-providers"],
    );
    assert_says(
        &report,
        "soft driver",
        Verdict::Ok,
        &["device.driver = \"soft\""],
    );
}

#[test]
fn a_module_that_is_missing_and_a_host_without_devices_are_told_apart() {
    let model = Model::new();
    let report = model.judge(VERBS, "");
    assert_eq!(status(&report), 69);
    let name = "rxe0 port 1, as configured";
    assert_says(&report, name, Verdict::Failure, &["modprobe ib_uverbs"]);
    model.put("sys/class/infiniband_verbs/abi_version", "6");
    let report = model.judge(VERBS, "");
    assert_eq!(status(&report), 69);
    assert_says(
        &report,
        name,
        Verdict::Failure,
        &["rdma link add rxe0 type rxe"],
    );
    assert_says(&report, "RDMA for programs", Verdict::Ok, &["ib_uverbs"]);
}

#[test]
fn a_port_that_is_down_is_a_failure_only_where_it_is_needed() {
    let model = Model::with_rxe("1: DOWN", FOUR);
    let report = model.judge(VERBS, "");
    assert_eq!(status(&report), 69);
    let words = [
        "port 1 of RDMA device rxe0 is down, not active",
        "ip link set NETDEV up",
    ];
    assert_says(&report, "rxe0 port 1", Verdict::Failure, &words);
    assert_says(
        &report,
        "rxe0 port 1",
        Verdict::Failure,
        &["down, Ethernet", "eth0"],
    );
    let report = model.judge("", "");
    assert_eq!(status(&report), 0);
    assert_says(&report, "rxe0 port 1", Verdict::NotApplicable, &words);
    let report = examine(&model.machine(), Subject::Host, None);
    assert_eq!(status(&report), 0);
    assert_says(&report, "rxe0 port 1", Verdict::Warning, &words);
}

#[test]
fn a_port_with_an_ipv6_address_alone_is_used_by_it() {
    let table = [(0, LINK_LOCAL, "RoCE v2"), (1, IPV6, "RoCE v2")];
    let model = Model::with_rxe("4: ACTIVE", &table);
    let report = model.judge(VERBS, "");
    assert_eq!(status(&report), 0);
    assert_says(
        &report,
        "rxe0 port 1 GID 0",
        Verdict::NotApplicable,
        &["link-local"],
    );
    assert_says(
        &report,
        "rxe0 port 1 GID 1",
        Verdict::Ok,
        &["chosen", "only IPv6 address"],
    );
    // An address that the port does not have.
    let report = model.judge(&format!("{VERBS}gid = \"::ffff:192.0.2.1\"\n"), "");
    assert_eq!(status(&report), 78);
    let words = [
        "no GID has the address",
        "ip address add 192.0.2.1/24",
        "1 RoCEv2 2001:db8::1",
    ];
    assert_says(&report, "rxe0 port 1", Verdict::Ok, &["active"]);
    let of_port = |check: &&Check| check.name == "rxe0 port 1" && check.verdict == Verdict::Failure;
    let refused = report.checks.iter().find(of_port).expect("a refusal");
    for word in words {
        assert!(
            refused.found.contains(word) || refused.cure.contains(word),
            "{refused:?}"
        );
    }
    assert_says(
        &report,
        "rxe0 port 1 GID 1",
        Verdict::NotApplicable,
        &["not of the address"],
    );
}

#[test]
fn several_addresses_have_to_be_told_apart_by_the_configuration() {
    let other = "0000:0000:0000:0000:0000:ffff:c633:6401";
    let table = [(1, IPV4, "RoCE v2"), (2, other, "RoCE v2")];
    let model = Model::with_rxe("4: ACTIVE", &table);
    let report = model.judge(VERBS, "");
    assert_eq!(status(&report), 78);
    let words = ["one of 2 addresses to choose from"];
    assert_says(&report, "rxe0 port 1 GID 2", Verdict::NotApplicable, &words);
    let report = model.judge(&format!("{VERBS}gid = \"::ffff:198.51.100.1\"\n"), "");
    assert_eq!(status(&report), 0);
    assert_says(&report, "rxe0 port 1 GID 2", Verdict::Ok, &["chosen"]);
    // Without a port that is there, nothing of the table helps.
    let report = model.judge(&format!("{VERBS}port = 2\n"), "");
    assert_eq!(status(&report), 78);
    let name = "rxe0 port 2, as configured";
    assert_says(
        &report,
        name,
        Verdict::Failure,
        &["ports 1 to 1", "device.port = 1"],
    );
}

#[test]
fn little_memory_to_lock_is_a_warning_with_the_number_that_is_needed() {
    let mut model = Model::with_rxe("4: ACTIVE", FOUR);
    model.memlock = Some(64 << 10);
    let report = model.judge(VERBS, "");
    assert_eq!(status(&report), 0);
    let words = [
        "limit 64K (hard 64K)",
        "sessions will be refused",
        "ulimit -l unlimited",
    ];
    assert_says(&report, "locked memory", Verdict::Warning, &words);
    let needed = 256 * (128 << 10) + 256 * (256 + 128);
    assert_eq!(
        check(&report, "locked memory").values["needed_bytes"],
        needed
    );
    assert_eq!(check(&report, "locked memory").values["soft_bytes"], 65536);
    // The soft driver locks nothing, and whoever may lock all is not limited.
    let report = model.judge("", "");
    assert_says(&report, "locked memory", Verdict::NotApplicable, &["64K"]);
    model.put("proc/self/status", "CapEff:\t0000000000004000");
    let report = model.judge(VERBS, "");
    assert_says(&report, "locked memory", Verdict::Ok, &["CAP_IPC_LOCK"]);
}

#[test]
fn hugepages_that_are_missing_end_the_start_only_where_they_are_required() {
    let model = Model::new();
    let name = "hugepages of 2M";
    let report = model.judge("", "");
    assert_says(
        &report,
        name,
        Verdict::Ok,
        &["64 of 64 free (64 on node 0), 16 for one session"],
    );
    model.put(
        "sys/kernel/mm/hugepages/hugepages-2048kB/free_hugepages",
        "15",
    );
    let required = "[memory]\nhugepages = \"required\"\n";
    let report = model.judge("", required);
    assert_eq!(status(&report), 71);
    let words = [
        "needs 16 hugepages",
        "15 of 64",
        "echo 16 > /proc/sys/vm/nr_hugepages",
    ];
    assert_says(&report, name, Verdict::Failure, &words);
    let report = model.judge("", "");
    assert_eq!(status(&report), 0);
    assert_says(
        &report,
        name,
        Verdict::Warning,
        &["ordinary pages are used instead"],
    );
    let report = model.judge("", "[memory]\nhugepages = \"off\"\n");
    assert_says(&report, name, Verdict::NotApplicable, &["\"off\""]);
}

#[test]
fn a_cpuset_of_one_core_is_what_counts() {
    let model = Model::new();
    model.put("proc/self/cgroup", "0::/box");
    model.put("sys/fs/cgroup/box/cpuset.cpus.effective", "1");
    let report = model.judge("", "");
    assert_eq!(status(&report), 0);
    let words = ["1 (affinity mask 0-1, cpuset 1)"];
    assert_says(&report, "allowed cores", Verdict::Ok, &words);
    let words = ["workers have every allowed core (1)"];
    assert_says(&report, "workers", Verdict::Warning, &words);
    let report = model.judge("", "cores = \"0\"\n");
    assert_eq!(status(&report), 78);
    let words = [
        "core 0 is not in this process's allowed set 1",
        "choose workers.cores from 1",
    ];
    assert_says(&report, "allowed cores", Verdict::Failure, &words);
    model.put("sys/fs/cgroup/box/cpuset.cpus.effective", "7");
    for report in [
        model.judge("", ""),
        examine(&model.machine(), Subject::Host, None),
    ] {
        assert_eq!(status(&report), 71);
        let words = ["affinity mask 0-1 and cpuset 7 have no core in common"];
        assert_says(&report, "allowed cores", Verdict::Failure, &words);
    }
}

#[test]
fn isolated_cores_and_what_disturbs_a_worker_are_told() {
    let model = Model::new();
    let report = model.judge("", "");
    let words = ["isolcpus 1, nohz_full 1"];
    assert_says(&report, "isolated cores", Verdict::Ok, &words);
    let words = ["core 1, busy", "no other", "performance"];
    assert_says(&report, "worker 0", Verdict::Ok, &words);
    for core in [0, 1] {
        let folder = format!("sys/devices/system/cpu/cpu{core}");
        model.put(&format!("{folder}/topology/thread_siblings_list"), "0-1");
        model.put(&format!("{folder}/cpufreq/scaling_governor"), "powersave");
    }
    let report = model.judge("", "cores = \"0-1\"\n");
    assert_eq!(status(&report), 0);
    let words = ["core 0 of the workers is not among them", "isolcpus=0-1"];
    assert_says(&report, "isolated cores", Verdict::Warning, &words);
    let text = report.text();
    for word in [
        "cores 0 and 1 are two threads of one physical core",
        "core 1 has the frequency governor \"powersave\"",
        "cpupower frequency-set -g performance",
        "worker 1: core 1, busy: shares its physical core with 0; frequency governor powersave",
    ] {
        assert!(text.contains(word), "{word}: {text}");
    }
    model.put("sys/devices/system/cpu/isolated", "");
    let report = model.judge("", "");
    assert_says(
        &report,
        "isolated cores",
        Verdict::Warning,
        &["isolcpus=1 nohz_full=1"],
    );
}

#[test]
fn a_core_of_another_process_is_told_with_its_number_and_passed_over_if_there_are_more() {
    let model = Model::new();
    fs::create_dir(model.at("locks")).expect("a folder");
    let file = model.at("locks").join("pollux_core_001.lock");
    fs::write(&file, "4242 other\n").expect("a file");
    let meta = fs::metadata(&file).expect("a file");
    let (major, minor) = (rustix::fs::major(meta.dev()), rustix::fs::minor(meta.dev()));
    let place = format!("{major:02x}:{minor:02x}:{}", meta.ino());
    let lock = |kind: &str| format!("1: {kind}  ADVISORY  WRITE 4242 {place} 0 EOF");
    // A lock of another kind, and the file of an appliance that has died.
    model.put("proc/locks", &lock("POSIX"));
    assert_eq!(status(&model.judge("", "cores = \"1\"\n")), 0);
    model.put("proc/locks", &lock("FLOCK"));
    let report = model.judge("", "cores = \"1\"\n");
    assert_eq!(status(&report), 75);
    let words = ["core 1 is already owned by polluxd \"other\" (pid 4242)"];
    assert_says(&report, "core locks", Verdict::Failure, &words);
    let report = model.judge("", "");
    assert_eq!(status(&report), 0);
    assert_says(&report, "worker 0", Verdict::Ok, &["core 0"]);
    let words = ["core 1 is owned by polluxd \"other\" (pid 4242)"];
    assert_says(&report, "core locks", Verdict::NotApplicable, &words);
    assert_eq!(check(&report, "core locks").values["pid"], 4242);
    assert_eq!(fs::read_to_string(&file).expect("a file"), "4242 other\n");
}

#[test]
fn a_file_of_mistakes_is_told_whole_and_the_host_beside_it() {
    let model = Model::new();
    let config = model.at("x.toml");
    fs::write(&config, "[attach]\nslots = 0\nslotz = 1\n").expect("a file");
    let report = examine(&model.machine(), Subject::read(Some(&config)), None);
    assert_eq!(status(&report), 78);
    let text = report.text();
    for word in [
        "x.toml:2: attach.slots",
        "x.toml:3: attach.slotz",
        "allowed cores: 0-1",
    ] {
        assert!(text.contains(word), "{word}: {text}");
    }
}

#[test]
fn a_peer_is_compared_with_the_device_and_the_entries() {
    let peer = |text: &str| text.parse::<PeerAddress>().expect("an address");
    assert_eq!(peer("[::1]:7").port, Some(7));
    assert!("localhost".parse::<PeerAddress>().is_err());
    let model = Model::with_rxe("4: ACTIVE", FOUR);
    let config = model.at("x.toml");
    let text = format!("[device]\n{VERBS}[[peer]]\naddress = \"127.0.0.1:7\"\n");
    fs::write(&config, text).expect("a file");
    let judged = |address| {
        let subject = Subject::read(Some(&config));
        examine(&model.machine(), subject, Some(peer(address)))
    };
    let report = judged("127.0.0.1:7");
    assert_says(
        &report,
        "way",
        Verdict::Ok,
        &["127.0.0.1 is reached from 127.0.0.1"],
    );
    assert_says(&report, "[[peer]]", Verdict::Ok, &["speak SMC"]);
    let words = [
        "stands for ::ffff:192.0.2.1",
        "device.gid = \"::ffff:127.0.0.1\"",
    ];
    assert_says(&report, "GID", Verdict::Warning, &words);
    assert_says(
        &judged("127.0.0.1:8"),
        "[[peer]]",
        Verdict::Warning,
        &["stay on TCP"],
    );
}
