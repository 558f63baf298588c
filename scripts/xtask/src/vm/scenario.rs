//! Scenario files: shell scripts whose first lines say what they need. `scripts/vm/README.md` is the
//! description for those who write them.

use std::fmt;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};

/// What begins a line of the header.
const MARK: &str = "#:";
/// The names of the hosts, in their order.
pub(crate) const HOSTS: [&str; 2] = ["a", "b"];
/// Memory of a host in MiB, where the header says nothing.
const MEMORY_MIB: u32 = 512;
/// Time in which a scenario ends once its hosts are up, where the header says nothing.
const LIMIT: Duration = Duration::from_secs(60);

/// Profile of what cargo builds, where the header says nothing: what other steps have built already.
const PROFILE: &str = "dev";

/// How a host came to its end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum End {
    /// The script ended with this status.
    Exited(u8),
    /// The guest's kernel gave up.
    Panicked,
    /// The guest's kernel gave up with this in the flags register, which no processor puts there: a
    /// fault of the emulator.
    Broken(u32),
    /// The time was over.
    Hung,
    /// Another host's script asked for it.
    Killed,
    /// The virtual machine ended by itself, and nobody said why.
    Died,
}

impl fmt::Display for End {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            End::Exited(status) => write!(f, "exit {status}"),
            End::Panicked => write!(f, "panic"),
            End::Broken(flags) => write!(f, "panic of the emulator's making (flags {flags:08x})"),
            End::Hung => write!(f, "hang"),
            End::Killed => write!(f, "killed"),
            End::Died => write!(f, "death without a word"),
        }
    }
}

/// Something that cargo builds for the guest.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Built {
    /// Package of the workspace.
    pub package: String,
    /// Program or test in it.
    pub target: String,
}

/// One scenario.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Scenario {
    /// Name of the file without its ending.
    pub name: String,
    /// The script itself.
    pub path: PathBuf,
    /// What it shows, in a line.
    pub about: String,
    /// How each host has to end, in the order of [`HOSTS`]; there are as many hosts as entries.
    pub ends: Vec<End>,
    /// Modules that are loaded before the script runs.
    pub modules: Vec<String>,
    /// Programs of Debian packages.
    pub programs: Vec<String>,
    /// Libraries of Debian packages that something opens while it runs.
    pub libraries: Vec<String>,
    /// Programs of the workspace.
    pub built: Vec<Built>,
    /// Tests of the workspace.
    pub tests: Vec<Built>,
    /// Features with which cargo builds both, as `PACKAGE/FEATURE`.
    pub features: Vec<String>,
    /// Profile by which cargo builds both.
    pub profile: String,
    /// Time in which it ends once its hosts are up.
    pub limit: Duration,
    /// Memory of each host in MiB.
    pub memory_mib: u32,
    /// Whether the frames on the link are kept.
    pub capture: Capture,
}

/// Whether the frames on the link are kept as a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Capture {
    No,
    Yes,
}

impl Scenario {
    /// Reads the header of a script. Every line of it is `#: KEY VALUE...`.
    fn parse(path: &Path, text: &str) -> Result<Scenario> {
        let name = path.file_stem().map(|name| name.to_string_lossy());
        let mut scenario = Scenario {
            name: name.unwrap_or_default().into_owned(),
            path: path.to_owned(),
            about: String::new(),
            ends: vec![End::Exited(0)],
            modules: Vec::new(),
            programs: Vec::new(),
            libraries: Vec::new(),
            built: Vec::new(),
            tests: Vec::new(),
            features: Vec::new(),
            profile: PROFILE.to_owned(),
            limit: LIMIT,
            memory_mib: MEMORY_MIB,
            capture: Capture::No,
        };
        for (index, line) in text.lines().enumerate() {
            if let Some(line) = line.strip_prefix(MARK) {
                scenario
                    .header(line.trim())
                    .with_context(|| format!("{}:{}", path.display(), index + 1))?;
            }
        }
        ensure!(
            !scenario.about.is_empty(),
            "{}: no line `{MARK} about ...` says what it shows",
            path.display()
        );
        Ok(scenario)
    }

    fn header(&mut self, line: &str) -> Result<()> {
        let (key, value) = line.split_once(char::is_whitespace).unwrap_or((line, ""));
        let value = value.trim();
        let words = || value.split_whitespace().map(str::to_owned);
        match key {
            "about" => value.clone_into(&mut self.about),
            "hosts" => {
                let hosts: Vec<_> = words().collect();
                ensure!(
                    !hosts.is_empty() && HOSTS.iter().take(hosts.len()).eq(hosts.iter()),
                    "`hosts {value}`: either `a` or `a b`"
                );
                self.ends = vec![End::Exited(0); hosts.len()];
            }
            "expect" => {
                let (host, end) = value.split_once(' ').unwrap_or((value, ""));
                let host = host_index(host)
                    .and_then(|index| self.ends.get_mut(index))
                    .with_context(|| format!("`expect {value}`: no host `{host}` above"))?;
                *host = end_of(end).with_context(|| {
                    format!("`expect {value}`: `exit STATUS`, `panic`, `hang` or `killed`")
                })?;
            }
            "modules" => self.modules.extend(words()),
            "programs" => self.programs.extend(words()),
            "libraries" => self.libraries.extend(words()),
            "built" => self.built.extend(built(value)?),
            "tests" => self.tests.extend(built(value)?),
            "features" => self.features.extend(words()),
            "profile" if !value.is_empty() => value.clone_into(&mut self.profile),
            "limit" => self.limit = Duration::from_secs(number(key, value, 1..=900)?.into()),
            "memory" => self.memory_mib = number(key, value, 128..=4096)?,
            "capture" if value.is_empty() => self.capture = Capture::Yes,
            _ => bail!("`{line}` is no line of a header: scripts/vm/README.md lists them"),
        }
        Ok(())
    }
}

/// The place of a host in [`HOSTS`].
pub(crate) fn host_index(name: &str) -> Option<usize> {
    HOSTS.iter().position(|host| *host == name)
}

fn end_of(text: &str) -> Option<End> {
    match text.trim() {
        "panic" => Some(End::Panicked),
        "hang" => Some(End::Hung),
        "killed" => Some(End::Killed),
        text => {
            let status = text.strip_prefix("exit ")?;
            status.trim().parse().ok().map(End::Exited)
        }
    }
}

fn built(value: &str) -> Result<Vec<Built>> {
    let one = |word: &str| {
        let (package, target) = word
            .split_once('/')
            .with_context(|| format!("`{word}`: PACKAGE/NAME is wanted"))?;
        Ok(Built {
            package: package.to_owned(),
            target: target.to_owned(),
        })
    };
    value.split_whitespace().map(one).collect()
}

fn number(key: &str, value: &str, range: std::ops::RangeInclusive<u32>) -> Result<u32> {
    let number = value.parse().ok().filter(|number| range.contains(number));
    number.with_context(|| {
        let (least, most) = range.into_inner();
        format!("`{key} {value}`: a number from {least} to {most} is wanted")
    })
}

/// All scenarios of a folder, by name.
pub(crate) fn all(folder: &Path) -> Result<Vec<Scenario>> {
    let entries =
        fs::read_dir(folder).with_context(|| format!("cannot list {}", folder.display()))?;
    let mut scenarios = Vec::new();
    for entry in entries {
        let path = entry?.path();
        if path.extension().is_some_and(|ending| ending == "sh") {
            let text = fs::read_to_string(&path)
                .with_context(|| format!("cannot read {}", path.display()))?;
            scenarios.push(Scenario::parse(&path, &text)?);
        }
    }
    scenarios.sort_by(|one, other| one.name.cmp(&other.name));
    Ok(scenarios)
}

/// Those asked for; all if none was. A name stands for the scenario that has it, or else for all whose
/// names begin with it and a `-`.
pub(crate) fn choose(all: Vec<Scenario>, asked: &[String]) -> Result<Vec<Scenario>> {
    if asked.is_empty() {
        return Ok(all);
    }
    let mut chosen: Vec<Scenario> = Vec::new();
    for name in asked {
        let group = format!("{name}-");
        let mut matching: Vec<_> = all.iter().filter(|one| one.name == *name).collect();
        if matching.is_empty() {
            matching.extend(all.iter().filter(|one| one.name.starts_with(&group)));
        }
        if matching.is_empty() {
            let known: Vec<_> = all.iter().map(|one| one.name.as_str()).collect();
            bail!(
                "no scenario is named `{name}`; there are {}",
                known.join(", ")
            );
        }
        for one in matching {
            if !chosen.contains(one) {
                chosen.push(one.clone());
            }
        }
    }
    Ok(chosen)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(header: &str) -> Result<Scenario> {
        Scenario::parse(Path::new("scripts/vm/one-two.sh"), header)
    }

    fn refusal(header: &str) -> String {
        format!("{:#}", parse(header).unwrap_err())
    }

    #[test]
    fn a_header_says_everything() {
        let text = "#!/bin/sh\n# A remark.\n#: about  two hosts meet\n#: hosts a b\n\
                    #: expect b exit 3\n#: modules smc rdma_rxe\n#: modules smc_diag\n\
                    #: programs rdma ip\n#: libraries libibverbs.so.1\n\
                    #: built pollux-control/polluxd\n#: tests pollux-provider/conformance\n\
                    #: features pollux-provider/adapter\n#: profile release\n#: limit 90\n#: memory 768\n#: capture\necho '#: about not this'\n";
        let scenario = parse(text).unwrap();
        let built = |package: &str, target: &str| Built {
            package: package.to_owned(),
            target: target.to_owned(),
        };
        let expected = Scenario {
            name: "one-two".to_owned(),
            path: PathBuf::from("scripts/vm/one-two.sh"),
            about: "two hosts meet".to_owned(),
            ends: vec![End::Exited(0), End::Exited(3)],
            modules: ["smc", "rdma_rxe", "smc_diag"].map(str::to_owned).to_vec(),
            programs: ["rdma", "ip"].map(str::to_owned).to_vec(),
            libraries: vec!["libibverbs.so.1".to_owned()],
            built: vec![built("pollux-control", "polluxd")],
            tests: vec![built("pollux-provider", "conformance")],
            features: vec!["pollux-provider/adapter".to_owned()],
            profile: "release".to_owned(),
            limit: Duration::from_secs(90),
            memory_mib: 768,
            capture: Capture::Yes,
        };
        assert_eq!(scenario, expected);
    }

    #[test]
    fn a_header_may_say_nothing_but_its_purpose() {
        let scenario = parse("#: about it boots\n").unwrap();
        assert_eq!(scenario.ends, [End::Exited(0)]);
        assert_eq!(scenario.limit, LIMIT);
        assert_eq!(scenario.memory_mib, MEMORY_MIB);
        assert_eq!(scenario.capture, Capture::No);
    }

    #[test]
    fn every_end_can_be_expected_except_an_unknown_one() {
        for (text, end) in [
            ("exit 7", End::Exited(7)),
            ("panic", End::Panicked),
            ("hang", End::Hung),
            ("killed", End::Killed),
        ] {
            let scenario = parse(&format!("#: about x\n#: expect a {text}\n")).unwrap();
            assert_eq!(scenario.ends, [end]);
            assert_eq!(end.to_string(), text);
        }
        for text in ["exit 256", "exit", "death", ""] {
            assert!(parse(&format!("#: about x\n#: expect a {text}\n")).is_err());
        }
    }

    #[test]
    fn mistakes_are_shown_with_their_line() {
        assert!(refusal("#!/bin/sh\n#: host a\n").contains("one-two.sh:2: `host a`"));
        assert!(refusal("#: hosts b a\n").contains("`hosts b a`: either"));
        assert!(refusal("#: hosts\n").contains("either"));
        assert!(refusal("#: expect b panic\n").contains("no host `b` above"));
        assert!(refusal("#: limit 0\n").contains("from 1 to 900"));
        assert!(refusal("#: memory much\n").contains("from 128 to 4096"));
        assert!(refusal("#: tests conformance\n").contains("PACKAGE/NAME"));
        assert!(refusal("#: capture yes\n").contains("is no line of a header"));
        assert!(refusal("#: hosts a\n").contains("says what it shows"));
    }

    #[test]
    fn a_name_stands_for_itself_or_for_a_group() {
        let named = |name: &str| Scenario {
            name: name.to_owned(),
            ..parse("#: about x\n").unwrap()
        };
        let all: Vec<_> = ["rxe-pair", "rxe-up", "self", "self-hang"]
            .map(named)
            .into();
        let chosen = |asked: &[&str]| -> Result<Vec<String>> {
            let asked: Vec<_> = asked.iter().map(|name| (*name).to_owned()).collect();
            let chosen = choose(all.clone(), &asked)?;
            Ok(chosen.into_iter().map(|one| one.name).collect())
        };
        assert_eq!(chosen(&["rxe"]).unwrap(), ["rxe-pair", "rxe-up"]);
        assert_eq!(chosen(&["self"]).unwrap(), ["self"]);
        assert_eq!(chosen(&["rxe-up", "rxe"]).unwrap(), ["rxe-up", "rxe-pair"]);
        assert_eq!(chosen(&[]).unwrap().len(), 4);
        let error = chosen(&["rx"]).unwrap_err().to_string();
        assert!(
            error.contains("`rx`; there are rxe-pair, rxe-up"),
            "{error}"
        );
    }

    #[test]
    fn the_scenarios_of_the_repository_have_good_headers() {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../vm");
        assert!(!all(&folder).unwrap().is_empty());
    }
}
