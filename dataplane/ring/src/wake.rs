//! File descriptors that end a sleep.
//!
//! [`Wake`] is an eventfd, for sides that trust each other: threads of one process, or processes
//! of one user. Everybody who holds it shares one open file, so any of them can take a signal that
//! was meant for another, or switch it to blocking.
//!
//! [`wake_channel`] is a pipe, for sides that do not trust each other. Each end is an open file of
//! its own: whatever the other side does to its end, [`WakeSender::signal`] and
//! [`WakeReceiver::drain`] never block, and nobody else takes the signal. The other way to receive
//! from somebody who is not trusted is an eventfd for each of them in a [`WakeSet`].
//!
//! Nobody signals unless the other side has said in shared memory that it sleeps
//! ([`crate::SleepView`]): a wake-up costs the waker 10 to 20 microseconds.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, epoll};
use rustix::io::Errno;
use rustix::pipe::PipeFlags;
use thiserror::Error;

/// Why a descriptor for waking could not be made or used.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
#[error("cannot {step} a wake-up descriptor: {errno}")]
pub struct WakeError {
    /// What was being done.
    pub step: &'static str,
    /// The kernel's answer.
    pub errno: Errno,
}

impl From<WakeError> for io::Error {
    fn from(error: WakeError) -> io::Error {
        error.errno.into()
    }
}

fn failed(step: &'static str) -> impl FnOnce(Errno) -> WakeError {
    move |errno| WakeError { step, errno }
}

/// An eventfd: signals add up until somebody drains them.
#[derive(Debug)]
pub struct Wake {
    fd: OwnedFd,
}

impl Wake {
    /// A new one, non-blocking and closed on exec.
    ///
    /// # Errors
    ///
    /// Too many open files, mostly.
    pub fn new() -> Result<Wake, WakeError> {
        let flags = EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK;
        let fd = rustix::event::eventfd(0, flags).map_err(failed("create"))?;
        Ok(Wake { fd })
    }

    /// One that came from another process, which is trusted to have sent an eventfd.
    pub fn from_fd(fd: OwnedFd) -> Wake {
        Wake { fd }
    }

    /// Another handle of the same eventfd.
    ///
    /// # Errors
    ///
    /// Too many open files.
    pub fn try_clone(&self) -> Result<Wake, WakeError> {
        let fd = rustix::io::fcntl_dupfd_cloexec(&self.fd, 0).map_err(failed("duplicate"))?;
        Ok(Wake { fd })
    }

    /// Ends the sleep of whoever waits, or the next one. One system call.
    ///
    /// # Errors
    ///
    /// None in practice: a counter that is full is a signal that is still there.
    pub fn signal(&self) -> Result<(), WakeError> {
        write_signal(self.fd.as_fd(), &1u64.to_ne_bytes())
    }

    /// Takes all signals, and tells whether there was any. One system call.
    ///
    /// # Errors
    ///
    /// None in practice.
    pub fn drain(&self) -> Result<bool, WakeError> {
        read_signals(self.fd.as_fd(), &mut [0; 8])
    }

    /// Sleeps until there is a signal or the time has passed; does not drain. `None` is for ever.
    /// Returns whether there is a signal.
    ///
    /// # Errors
    ///
    /// None in practice. A signal to the process ends the sleep early and is no error.
    pub fn wait(&self, timeout: Option<Duration>) -> Result<bool, WakeError> {
        wait_readable(self.fd.as_fd(), timeout)
    }

    /// The descriptor, to poll for reading or to send to another process.
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

impl AsFd for Wake {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd()
    }
}

/// A pipe between a waker and a sleeper that do not trust each other.
///
/// # Errors
///
/// Too many open files, or the user's limit of memory in pipes.
pub fn wake_channel() -> Result<(WakeSender, WakeReceiver), WakeError> {
    let flags = PipeFlags::CLOEXEC | PipeFlags::NONBLOCK;
    let (receiver, sender) = rustix::pipe::pipe_with(flags).map_err(failed("create"))?;
    Ok((WakeSender { fd: sender }, WakeReceiver { fd: receiver }))
}

/// The waker's end of a [`wake_channel`].
#[derive(Debug)]
pub struct WakeSender {
    fd: OwnedFd,
}

impl WakeSender {
    /// An end that came from another process, which is trusted to have sent the end of a pipe.
    pub fn from_fd(fd: OwnedFd) -> WakeSender {
        WakeSender { fd }
    }

    /// Ends the sleep of the other side, or the next one. One system call, which never blocks.
    ///
    /// The process must ignore SIGPIPE, as Rust programs do.
    ///
    /// # Errors
    ///
    /// `EPIPE` when the other side has closed its end. A pipe that is full is a signal that is
    /// still there.
    pub fn signal(&self) -> Result<(), WakeError> {
        write_signal(self.fd.as_fd(), &[1])
    }

    /// The descriptor, to send to another process.
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

/// The sleeper's end of a [`wake_channel`].
#[derive(Debug)]
pub struct WakeReceiver {
    fd: OwnedFd,
}

impl WakeReceiver {
    /// An end that came from another process, which is trusted to have sent the end of a pipe.
    pub fn from_fd(fd: OwnedFd) -> WakeReceiver {
        WakeReceiver { fd }
    }

    /// Takes signals, and tells whether there was any. One system call, which never blocks. A
    /// waker that signalled out of turn may leave some for the next call.
    ///
    /// # Errors
    ///
    /// None in practice. A waker that has closed its end gives "no signal".
    pub fn drain(&self) -> Result<bool, WakeError> {
        read_signals(self.fd.as_fd(), &mut [0; 256])
    }

    /// Sleeps until there is a signal, the waker has closed its end, or the time has passed; does
    /// not drain. `None` is for ever. Returns whether it ended before its time.
    ///
    /// # Errors
    ///
    /// None in practice. A signal to the process ends the sleep early and is no error.
    pub fn wait(&self, timeout: Option<Duration>) -> Result<bool, WakeError> {
        wait_readable(self.fd.as_fd(), timeout)
    }

    /// The descriptor, to poll for reading or to send to another process.
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

impl AsFd for WakeReceiver {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd()
    }
}

/// Many eventfds to sleep on as if they were one (an epoll instance).
///
/// Each signal of a member ends one sleep. Members are never read, so nothing that another process
/// does to an eventfd that it shares (taking its signals, filling it, switching it to blocking) can
/// hold up the sleeper or hide another member. Members may come and go while somebody sleeps: one
/// thread adds, another one waits. The set's own descriptor can be polled beside others.
#[derive(Debug)]
pub struct WakeSet {
    fd: OwnedFd,
}

impl WakeSet {
    /// An empty set.
    ///
    /// # Errors
    ///
    /// Too many open files.
    pub fn new() -> Result<WakeSet, WakeError> {
        let fd = epoll::create(epoll::CreateFlags::CLOEXEC).map_err(failed("create"))?;
        Ok(WakeSet { fd })
    }

    /// Another handle of the same set.
    ///
    /// # Errors
    ///
    /// Too many open files.
    pub fn try_clone(&self) -> Result<WakeSet, WakeError> {
        let fd = rustix::io::fcntl_dupfd_cloexec(&self.fd, 0).map_err(failed("duplicate"))?;
        Ok(WakeSet { fd })
    }

    /// Adds an eventfd, to be reported as `token`. A signal that it holds already is reported too.
    ///
    /// # Errors
    ///
    /// It is a member already, or too many are being watched (fs.epoll.max_user_watches).
    pub fn add(&self, member: &Wake, token: u64) -> Result<(), WakeError> {
        // Edge-triggered: an eventfd makes an edge at every signal, whether it was drained or not.
        let flags = epoll::EventFlags::IN | epoll::EventFlags::ET;
        epoll::add(&self.fd, member, epoll::EventData::new_u64(token), flags)
            .map_err(failed("watch"))
    }

    /// Takes an eventfd out again. Do it before dropping it: it would stay a member as long as
    /// another process holds a handle of it.
    ///
    /// # Errors
    ///
    /// It is no member.
    pub fn remove(&self, member: &Wake) -> Result<(), WakeError> {
        epoll::delete(&self.fd, member).map_err(failed("stop watching"))
    }

    /// Sleeps until a member is signalled or the time has passed, and gives the tokens of at most
    /// 64 signalled members to `woken`. `None` is for ever.
    ///
    /// # Errors
    ///
    /// None in practice. A signal to the process ends the sleep early and is no error.
    pub fn wait(
        &self,
        timeout: Option<Duration>,
        mut woken: impl FnMut(u64),
    ) -> Result<(), WakeError> {
        let data = epoll::EventData::new_u64(0);
        let mut events = [epoll::Event {
            flags: epoll::EventFlags::empty(),
            data,
        }; 64];
        let timeout = timeout.and_then(|timeout| Timespec::try_from(timeout).ok());
        match epoll::wait(&self.fd, &mut events[..], timeout.as_ref()) {
            Ok(count) => {
                events
                    .iter()
                    .take(count)
                    .for_each(|event| woken(event.data.u64()));
                Ok(())
            }
            Err(Errno::INTR) => Ok(()),
            Err(errno) => Err(failed("wait for")(errno)),
        }
    }

    /// The set's descriptor, to poll for reading.
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

fn write_signal(fd: BorrowedFd<'_>, bytes: &[u8]) -> Result<(), WakeError> {
    loop {
        match rustix::io::write(fd, bytes) {
            Ok(_) | Err(Errno::AGAIN) => return Ok(()),
            Err(Errno::INTR) => {}
            Err(errno) => return Err(failed("signal")(errno)),
        }
    }
}

fn read_signals(fd: BorrowedFd<'_>, buffer: &mut [u8]) -> Result<bool, WakeError> {
    loop {
        match rustix::io::read(fd, &mut *buffer) {
            Ok(bytes) => return Ok(bytes > 0),
            Err(Errno::AGAIN) => return Ok(false),
            Err(Errno::INTR) => {}
            Err(errno) => return Err(failed("drain")(errno)),
        }
    }
}

fn wait_readable(fd: BorrowedFd<'_>, timeout: Option<Duration>) -> Result<bool, WakeError> {
    let timeout = timeout.and_then(|timeout| Timespec::try_from(timeout).ok());
    let mut fds = [PollFd::from_borrowed_fd(fd, PollFlags::IN)];
    match rustix::event::poll(&mut fds, timeout.as_ref()) {
        Ok(ready) => Ok(ready > 0),
        Err(Errno::INTR) => Ok(false),
        Err(errno) => Err(failed("wait for")(errno)),
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    const NOW: Option<Duration> = Some(Duration::ZERO);

    #[test]
    fn eventfd_keeps_signals_until_drained() {
        let wake = Wake::new().expect("eventfd");
        let other = wake.try_clone().expect("clone");
        assert_eq!(wake.wait(NOW), Ok(false));
        other.signal().expect("signal");
        other.signal().expect("signal");
        assert_eq!(wake.wait(NOW), Ok(true));
        assert_eq!(wake.drain(), Ok(true));
        assert_eq!(wake.drain(), Ok(false));
    }

    #[test]
    fn eventfd_ends_a_sleep_in_another_thread() {
        let wake = Wake::new().expect("eventfd");
        let waker = wake.try_clone().expect("clone");
        let thread = std::thread::spawn(move || waker.signal());
        while !wake.wait(None).expect("wait") {}
        assert_eq!(wake.drain(), Ok(true));
        assert_eq!(thread.join().expect("thread"), Ok(()));
    }

    #[test]
    fn pipe_that_is_full_still_signals_and_never_blocks() {
        let (sender, receiver) = wake_channel().expect("pipe");
        for _ in 0..100_000 {
            sender.signal().expect("signal");
        }
        assert_eq!(receiver.wait(NOW), Ok(true));
        while receiver.drain().expect("drain") {}
        assert_eq!(receiver.wait(NOW), Ok(false));
    }

    #[test]
    fn pipe_reports_the_end_of_the_other_side() {
        let (sender, receiver) = wake_channel().expect("pipe");
        drop(receiver);
        assert_eq!(
            sender.signal().map_err(|error| error.errno),
            Err(Errno::PIPE)
        );
        let (sender, receiver) = wake_channel().expect("pipe");
        drop(sender);
        assert_eq!(receiver.wait(None), Ok(true));
        assert_eq!(receiver.drain(), Ok(false));
    }

    #[test]
    fn pipe_end_stays_nonblocking_when_the_other_end_is_made_blocking() {
        let (sender, receiver) = wake_channel().expect("pipe");
        rustix::fs::fcntl_setfl(sender.fd(), rustix::fs::OFlags::empty()).expect("blocking");
        assert_eq!(receiver.drain(), Ok(false));
    }

    #[test]
    fn set_reports_each_signal_without_anybody_draining() {
        let set = WakeSet::new().expect("epoll");
        let members = [Wake::new().expect("eventfd"), Wake::new().expect("eventfd")];
        for (token, member) in members.iter().enumerate() {
            set.add(member, token as u64).expect("add");
        }
        let woken = || {
            let mut tokens = Vec::new();
            set.wait(NOW, |token| tokens.push(token)).expect("wait");
            tokens
        };
        assert_eq!(woken(), []);
        for _ in 0..3 {
            members[1].signal().expect("signal");
            assert_eq!(woken(), [1]);
            assert_eq!(woken(), []);
        }
        members[0].signal().expect("signal");
        set.remove(&members[0]).expect("remove");
        assert_eq!(woken(), []);
    }

    #[test]
    fn set_sees_a_signal_given_before_the_member_was_added() {
        let set = WakeSet::new().expect("epoll");
        let wake = Wake::new().expect("eventfd");
        wake.signal().expect("signal");
        set.add(&wake, 7).expect("add");
        let mut tokens = Vec::new();
        set.wait(None, |token| tokens.push(token)).expect("wait");
        assert_eq!(tokens, [7]);
    }
}
