//! Virtual machines: QEMU processes that emulate a processor, each with one serial port for the talk
//! with the guest, and one each for what its script prints and for the files that it leaves.

use std::fs::{self, File};
use std::io::{BufRead, BufReader, Write};
use std::net::UdpSocket;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::Sender;
use std::thread;

use anyhow::{Context, Result};
use rustix::io::FdFlags;
use rustix::process::{Pid, Signal};

use super::scenario::{Capture, End, HOSTS};

/// The emulator, and the Debian package that brings it.
pub(crate) const QEMU: (&str, &str) = ("qemu-system-x86_64", "qemu-system-x86");
/// What the kernel says when it gives up.
pub(crate) const PANIC: &str = "Kernel panic - not syncing";
/// Room for frames that one end of the link has sent and the other has not taken yet, in bytes. A
/// guest that does not get to run for a while must not lose what the other sent meanwhile.
const LINK_BYTES: usize = 4 << 20;

/// What one host of a scenario is to be.
pub(crate) struct Plan<'a> {
    /// Place in [`HOSTS`].
    pub index: usize,
    /// The kernel and its first file system.
    pub kernel: &'a Path,
    pub image: &'a Path,
    /// Where its logs go.
    pub logs: &'a Path,
    pub memory_mib: u32,
    pub capture: Capture,
    /// Its end of the link.
    pub link: OwnedFd,
}

/// A line from a guest, or the end of its virtual machine.
pub(crate) struct News {
    /// Place in [`HOSTS`].
    pub host: usize,
    /// The line; nothing if there will be no more.
    pub line: Option<String>,
}

/// A running virtual machine. It ends with this value, at the latest.
pub(crate) struct Machine {
    child: Child,
    to_guest: ChildStdin,
    console: PathBuf,
}

impl Machine {
    /// Starts QEMU; a thread passes on what the guest says.
    ///
    /// To be called from a thread that lives as long as the machine: the kernel ends QEMU with the
    /// thread that has started it, so that no machine is left behind even if this process is killed.
    pub(crate) fn start(plan: Plan<'_>, news: Sender<News>) -> Result<Machine> {
        let host = HOSTS[plan.index];
        let errors = plan.logs.join(format!("{host}.qemu"));
        let errors =
            File::create(&errors).with_context(|| format!("cannot write {}", errors.display()))?;
        rustix::io::fcntl_setfd(&plan.link, FdFlags::empty())
            .context("cannot hand the link to QEMU")?;
        let mut child = Command::new("setpriv")
            .args(["--pdeathsig", "KILL", QEMU.0])
            .args(arguments(&plan))
            .current_dir(plan.logs)
            .process_group(0)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(errors)
            .spawn()
            .context("cannot start setpriv (Debian package util-linux)")?;
        let to_guest = child.stdin.take().context("QEMU has no input")?;
        let from_guest = child.stdout.take().context("QEMU has no output")?;
        let index = plan.index;
        thread::spawn(move || {
            let mut from_guest = BufReader::new(from_guest);
            let mut bytes = Vec::new();
            while let Ok(1..) = from_guest.read_until(b'\n', &mut bytes) {
                let line = String::from_utf8_lossy(&bytes).into_owned();
                bytes.clear();
                let news_line = News {
                    host: index,
                    line: Some(line),
                };
                if news.send(news_line).is_err() {
                    return;
                }
            }
            // Nobody listens any more where the scenario is over already.
            let _ = news.send(News {
                host: index,
                line: None,
            });
        });
        Ok(Machine {
            child,
            to_guest,
            console: plan.logs.join(format!("{host}.console")),
        })
    }

    /// Writes a line to the guest. One that is gone cannot hear it, and its end is news of its own.
    pub(crate) fn send(&mut self, line: &str) {
        let _ = writeln!(self.to_guest, "{line}").and_then(|()| self.to_guest.flush());
    }

    /// How a machine ended that has ended by itself.
    pub(crate) fn own_end(&self) -> End {
        let console = fs::read(&self.console).unwrap_or_default();
        let console = String::from_utf8_lossy(&console);
        match (console.contains(PANIC), impossible_flags(&console)) {
            (true, None) => End::Panicked,
            (true, Some(flags)) => End::Broken(flags),
            (false, _) => End::Died,
        }
    }

    /// Ends it and waits for that. An error would mean that it has ended already.
    pub(crate) fn stop(&mut self) {
        if let Ok(pid) = i32::try_from(self.child.id())
            && let Some(group) = Pid::from_raw(pid)
            && matches!(self.child.try_wait(), Ok(None))
        {
            let _ = rustix::process::kill_process_group(group, Signal::KILL);
        }
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Drop for Machine {
    fn drop(&mut self) {
        self.stop();
    }
}

/// Both ends of a link between two hosts: connected UDP sockets of the loopback interface. Frames are
/// datagrams; those to a host that is gone are lost, as on a cable.
pub(crate) fn link() -> Result<[OwnedFd; 2]> {
    let bind = || UdpSocket::bind("127.0.0.1:0").context("cannot make a socket for the link");
    let ends = [bind()?, bind()?];
    for (end, other) in [(&ends[0], &ends[1]), (&ends[1], &ends[0])] {
        let other = other.local_addr().context("the link has no address")?;
        end.connect(other).context("cannot connect the link")?;
        // Only root gets more than the system's limit; the limit will do.
        let _ = rustix::net::sockopt::set_socket_recv_buffer_size_force(end, LINK_BYTES)
            .or_else(|_| rustix::net::sockopt::set_socket_recv_buffer_size(end, LINK_BYTES));
    }
    Ok(ends.map(OwnedFd::from))
}

/// The flags register as a kernel that gave up printed it, if no processor can have had it like that:
/// the emulator did not do what a processor does, and what came of it says nothing about the guest.
///
/// Seen with QEMU 7.2. It is known of QEMU of that time that an instruction that computes in memory may
/// lose the flags where its page is not there, and among them those that keep interrupts out.
fn impossible_flags(console: &str) -> Option<u32> {
    // Bit 1 is always set; 3, 5, 15 and all from 22 on are never.
    const ALWAYS: u32 = 1 << 1;
    const NEVER: u32 = 1 << 3 | 1 << 5 | 1 << 15 | u32::MAX << 22;
    let printed = console
        .split("EFLAGS: ")
        .skip(1)
        .filter_map(|rest| rest.get(..8));
    let mut flags = printed.filter_map(|flags| u32::from_str_radix(flags, 16).ok());
    flags.find(|flags| flags & (ALWAYS | NEVER) != ALWAYS)
}

/// QEMU's command line. It always emulates: where the machine is itself virtual, its processor's
/// support for others may be there and not work. One processor each: two busy guests with two slow
/// each other down on the few that this machine has. Files are named without their folder, which is
/// QEMU's own, because a comma in a path would mean something to it.
fn arguments(plan: &Plan<'_>) -> Vec<String> {
    let host = HOSTS[plan.index];
    let mut line: Vec<String> = Vec::new();
    let mut add = |words: &[&str]| line.extend(words.iter().map(|word| (*word).to_owned()));
    add(&["-nodefaults", "-no-user-config", "-display", "none"]);
    add(&["-no-reboot", "-machine", "q35", "-cpu", "max", "-smp", "1"]);
    add(&["-accel", "tcg,thread=multi"]);
    add(&["-m", &plan.memory_mib.to_string()]);
    add(&["-kernel", &plan.kernel.to_string_lossy()]);
    add(&["-initrd", &plan.image.to_string_lossy()]);
    // A panic ends the machine at once. The rest keeps an emulated boot short.
    let kernel = "console=ttyS0 quiet panic=-1 random.trust_cpu=on tsc=reliable";
    add(&["-append", &format!("{kernel} vm.host={host}")]);
    add(&["-serial", &format!("file:{host}.console")]);
    // Without a thread in between, what a guest has written is in the file before it goes on: nothing
    // is lost when it says on another port that it has ended, or when its kernel panics.
    add(&["-device", "virtio-serial-pci,ioeventfd=off"]);
    add(&["-chardev", "stdio,id=control,signal=off"]);
    add(&["-device", "virtserialport,chardev=control,name=control"]);
    for port in ["output", "files"] {
        add(&["-chardev", &format!("file,id={port},path={host}.{port}")]);
        let device = format!("virtserialport,chardev={port},name={port}");
        add(&["-device", &device]);
    }
    let fd = plan.link.as_raw_fd();
    add(&[
        "-netdev",
        &format!("dgram,id=link,local.type=fd,local.str={fd}"),
    ]);
    let address = format!("52:54:00:00:00:{:02x}", plan.index + 1);
    let device = format!("virtio-net-pci,netdev=link,mac={address}");
    add(&["-device", &device]);
    if plan.capture == Capture::Yes {
        let filter = format!("filter-dump,id=capture,netdev=link,file={host}.pcap");
        add(&["-object", &filter]);
    }
    line
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Read;

    fn line(index: usize, capture: Capture) -> String {
        let [link, _] = link().unwrap();
        let line = arguments(&Plan {
            index,
            kernel: Path::new("/k"),
            image: Path::new("/i"),
            logs: Path::new("/l"),
            memory_mib: 768,
            capture,
            link,
        });
        line.join(" ")
    }

    #[test]
    fn a_host_is_told_who_it_is_and_never_uses_hardware_support() {
        let line = line(1, Capture::No);
        for word in [
            "vm.host=b",
            "-m 768",
            "tcg,thread=multi",
            "mac=52:54:00:00:00:02",
        ] {
            assert!(line.contains(word), "{line}");
        }
        assert!(!line.contains("kvm"), "{line}");
    }

    #[test]
    fn flags_that_no_processor_can_have_are_the_emulators_work() {
        let console = |flags: &str| format!("RSP: 0018:ff60 EFLAGS: {flags}\r\nRAX: ff46");
        for possible in ["00010046", "00000246", "00250ed7"] {
            assert_eq!(impossible_flags(&console(possible)), None, "{possible}");
        }
        for impossible in ["af575f02", "aeecf483", "00000000", "00400246", "0000020a"] {
            let flags = u32::from_str_radix(impossible, 16).ok();
            assert_eq!(impossible_flags(&console(impossible)), flags);
        }
        let both = console("00000246") + &console("aeecf483");
        assert_eq!(impossible_flags(&both), Some(0xaeec_f483));
        for nothing in ["", "EFLAGS: ", "EFLAGS: 0002", "EFLAGS: somewhat"] {
            assert_eq!(impossible_flags(nothing), None, "{nothing}");
        }
    }

    #[test]
    fn frames_are_kept_only_where_a_scenario_says_so() {
        assert!(!line(0, Capture::No).contains("filter-dump"));
        assert!(line(0, Capture::Yes).contains("filter-dump,id=capture,netdev=link,file=a.pcap"));
    }

    #[test]
    fn what_one_end_of_the_link_sends_the_other_gets() {
        let [one, other] = link().unwrap().map(File::from);
        (&one).write_all(b"frame").unwrap();
        let mut bytes = [0; 16];
        assert_eq!((&other).read(&mut bytes).unwrap(), 5);
        assert_eq!(&bytes[..5], b"frame");
    }
}
