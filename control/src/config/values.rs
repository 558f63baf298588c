//! The values that configuration keys take, each with one textual form that reads back.

use std::fmt;
use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::str::FromStr;

use crate::words::words;

words! {
    /// How a worker waits for work.
    pub enum PollMode {
        /// Polls without end; the core shows 100 % use.
        Busy = "busy",
        /// Polls for `workers.spin_us` after the last work, then sleeps until woken.
        Adaptive = "adaptive",
        /// Sleeps whenever there is nothing to do.
        Interrupt = "interrupt",
    }
}

words! {
    /// The poll mode as configured.
    pub enum PollChoice {
        /// `busy` on a core that the kernel keeps free of other threads, else `adaptive`.
        Auto = "auto",
        /// See [`PollMode::Busy`].
        Busy = "busy",
        /// See [`PollMode::Adaptive`].
        Adaptive = "adaptive",
        /// See [`PollMode::Interrupt`].
        Interrupt = "interrupt",
    }
}

impl PollChoice {
    /// The mode of a worker whose core is dedicated to it, or not.
    #[must_use]
    pub fn mode(self, core: CoreUse) -> PollMode {
        match (self, core) {
            (PollChoice::Busy, _) | (PollChoice::Auto, CoreUse::Dedicated) => PollMode::Busy,
            (PollChoice::Adaptive, _) | (PollChoice::Auto, CoreUse::Shared) => PollMode::Adaptive,
            (PollChoice::Interrupt, _) => PollMode::Interrupt,
        }
    }
}

/// Whether a worker has its core for itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CoreUse {
    /// The kernel keeps other threads off it.
    Dedicated,
    /// Other threads may run there as well.
    Shared,
}

words! {
    /// What carries the work requests.
    pub enum Driver {
        /// The embedded software fabric; needs no adapter and no rights.
        Soft = "soft",
        /// An RDMA device of this host (RoCE), through libibverbs.
        Verbs = "verbs",
    }
}

words! {
    /// How the inline size that a device grants is searched for.
    pub enum InlineProbe {
        /// Downwards, one size after the other, until one is accepted.
        Ladder = "ladder",
        /// The first size, then halving what is left.
        Bisect = "bisect",
    }
}

/// Longest WRITE that goes inline where the queue pair grants more.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum InlineThreshold {
    /// What was measured for the driver.
    #[default]
    Auto,
    /// This many bytes; 0 sends every WRITE by reference.
    Bytes(u32),
}

words! {
    /// Whether receive-queue credits are agreed on with peers that offer them.
    pub enum CreditChoice {
        /// With the vendor word of SMC-Rv2.1; nothing is sent of it to others.
        On = "on",
        /// Never.
        Off = "off",
        /// As `on`, and also by byte 51 of Accept and Confirm alone, as the Linux patches of January
        /// 2022 do.
        Bare = "bare",
    }
}

words! {
    /// Whether TCP handshakes carry the SMC option, by which Linux's AF_SMC and others tell who speaks SMC.
    pub enum SynOptionChoice {
        /// If this process may load the BPF program that it takes.
        Auto = "auto",
        /// Always; start-up fails where it cannot be had.
        Required = "required",
        /// Never.
        Off = "off",
    }
}

words! {
    /// Whether memory comes from the hugepage pool.
    pub enum Hugepages {
        /// If the pool has pages, else ordinary pages.
        Auto = "auto",
        /// Only from the pool; start-up fails without pages.
        Required = "required",
        /// Never.
        Off = "off",
    }
}

words! {
    /// How much the log tells.
    pub enum LogLevel {
        /// What failed.
        Error = "error",
        /// What may become a failure.
        Warn = "warn",
        /// What started, stopped, connected and fell back.
        Info = "info",
        /// Every exchange of the control plane.
        Debug = "debug",
        /// Everything.
        Trace = "trace",
    }
}

words! {
    /// What an in-process service does with the bytes it gets.
    pub enum ServiceKind {
        /// Sends them back.
        Echo = "echo",
    }
}

/// A path, or the one that follows from the rest of the configuration.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum PathChoice {
    /// The documented default.
    #[default]
    Auto,
    /// This absolute path.
    At(PathBuf),
}

impl PathChoice {
    /// The path, with the default filled in.
    #[must_use]
    pub fn or(&self, default: PathBuf) -> PathBuf {
        match self {
            PathChoice::Auto => default,
            PathChoice::At(path) => path.clone(),
        }
    }
}

impl fmt::Display for PathChoice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            PathChoice::Auto => f.write_str("auto"),
            PathChoice::At(path) => path.display().fmt(f),
        }
    }
}

impl FromStr for PathChoice {
    type Err = ValueError;

    fn from_str(text: &str) -> Result<PathChoice, ValueError> {
        match text {
            "auto" => Ok(PathChoice::Auto),
            text => absolute(text).map(PathChoice::At),
        }
    }
}

/// Why a text is not the value that its key takes.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ValueError {
    /// A path does not begin with `/`.
    #[error("is not an absolute path")]
    RelativePath,
    /// A path holds a zero byte.
    #[error("holds a zero byte")]
    ZeroByte,
    /// No address.
    #[error("is no IP address with a port, like 192.0.2.7:7001 or [2001:db8::7]:7001")]
    Address,
    /// No address, network or address with port.
    #[error("is no IP address, network (192.0.2.0/24) or address with a port (192.0.2.7:7001)")]
    Peer,
    /// The prefix of a network is longer than its addresses.
    #[error("has a prefix longer than the {0} bits of the address")]
    Prefix(u8),
    /// A network has bits set behind its prefix.
    #[error("has bits set behind the prefix; the network is written {0}")]
    HostBits(String),
    /// Port 0 where a port is needed.
    #[error("has port 0, to which nobody can connect")]
    PortZero,
    /// No GID.
    #[error("is no GID: an IPv6 address such as ::ffff:192.0.2.7 or 2001:db8::7")]
    Gid,
    /// A GID that no port can have.
    #[error("is the {0} address, which is nobody's GID")]
    GidKind(&'static str),
    /// An endpoint without one of the three schemes.
    #[error("has none of the schemes tcp:, unix: and smc:")]
    Scheme,
}

fn absolute(text: &str) -> Result<PathBuf, ValueError> {
    if text.contains('\0') {
        return Err(ValueError::ZeroByte);
    }
    if !text.starts_with('/') {
        return Err(ValueError::RelativePath);
    }
    Ok(PathBuf::from(text))
}

/// The GID of the device.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum GidChoice {
    /// One that follows from host and instance, or with an adapter from the addresses listened on.
    #[default]
    Auto,
    /// This one, in the form of an IPv6 address (RoCEv2; IPv4 is mapped).
    Fixed(Ipv6Addr),
}

impl fmt::Display for GidChoice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            GidChoice::Auto => f.write_str("auto"),
            GidChoice::Fixed(gid) => gid.fmt(f),
        }
    }
}

impl FromStr for GidChoice {
    type Err = ValueError;

    fn from_str(text: &str) -> Result<GidChoice, ValueError> {
        if text == "auto" {
            return Ok(GidChoice::Auto);
        }
        let gid: Ipv6Addr = text.parse().map_err(|_| ValueError::Gid)?;
        let kind = match gid {
            Ipv6Addr::UNSPECIFIED => "unspecified",
            Ipv6Addr::LOCALHOST => "loopback",
            gid if gid.is_multicast() => "multicast",
            gid => return Ok(GidChoice::Fixed(gid)),
        };
        Err(ValueError::GidKind(kind))
    }
}

/// Bits in front of an IPv4 address that is mapped into IPv6.
const MAPPED_PREFIX: u8 = 96;

/// Destinations to which the client side speaks SMC: an address or a network, any port or one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct PeerPattern {
    network: IpAddr,
    prefix: u8,
    port: Option<u16>,
}

impl PeerPattern {
    /// Whether a connection to `address` is covered. An IPv4 address mapped into IPv6 is the same
    /// as the IPv4 address.
    #[must_use]
    pub fn matches(&self, address: SocketAddr) -> bool {
        let ip = address.ip().to_canonical();
        self.port.is_none_or(|port| port == address.port())
            && ip.is_ipv4() == self.network.is_ipv4()
            && cut(ip, self.prefix) == self.network
    }

    fn width(ip: IpAddr) -> u8 {
        if ip.is_ipv4() { 32 } else { 128 }
    }
}

impl From<SocketAddr> for PeerPattern {
    fn from(address: SocketAddr) -> PeerPattern {
        let network = address.ip().to_canonical();
        PeerPattern {
            network,
            prefix: PeerPattern::width(network),
            port: Some(address.port()),
        }
    }
}

impl FromStr for PeerPattern {
    type Err = ValueError;

    fn from_str(text: &str) -> Result<PeerPattern, ValueError> {
        if let Ok(address) = text.parse::<SocketAddr>() {
            return match address.port() {
                0 => Err(ValueError::PortZero),
                _ => Ok(PeerPattern::from(address)),
            };
        }
        let Some((ip, prefix)) = text.split_once('/') else {
            let ip: IpAddr = text.parse().map_err(|_| ValueError::Peer)?;
            let network = ip.to_canonical();
            return Ok(PeerPattern {
                network,
                prefix: PeerPattern::width(network),
                port: None,
            });
        };
        let network: IpAddr = ip.parse().map_err(|_| ValueError::Peer)?;
        let prefix: u8 = match prefix.bytes().all(|byte| byte.is_ascii_digit()) {
            true => prefix.parse().map_err(|_| ValueError::Peer)?,
            false => return Err(ValueError::Peer),
        };
        let width = PeerPattern::width(network);
        if prefix > width {
            return Err(ValueError::Prefix(width));
        }
        let cut = cut(network, prefix);
        if cut != network {
            return Err(ValueError::HostBits(format!("{cut}/{prefix}")));
        }
        // A mapped address is the IPv4 address, so nothing but mapped ones is an IPv4 network.
        let (network, prefix) = match (network.to_canonical(), prefix.checked_sub(MAPPED_PREFIX)) {
            (mapped @ IpAddr::V4(_), Some(rest)) if network.is_ipv6() => (mapped, rest),
            _ => (network, prefix),
        };
        Ok(PeerPattern {
            network,
            prefix,
            port: None,
        })
    }
}

/// The address with every bit behind the prefix cleared.
fn cut(ip: IpAddr, prefix: u8) -> IpAddr {
    match ip {
        IpAddr::V4(ip) => {
            let keep = u32::MAX.checked_shl(32 - u32::from(prefix)).unwrap_or(0);
            IpAddr::V4((u32::from(ip) & keep).into())
        }
        IpAddr::V6(ip) => {
            let keep = u128::MAX.checked_shl(128 - u32::from(prefix)).unwrap_or(0);
            IpAddr::V6((u128::from(ip) & keep).into())
        }
    }
}

impl fmt::Display for PeerPattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.port {
            Some(port) => SocketAddr::new(self.network, port).fmt(f),
            None if self.prefix == PeerPattern::width(self.network) => self.network.fmt(f),
            None => write!(f, "{}/{}", self.network, self.prefix),
        }
    }
}

/// One end of a forward.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Endpoint {
    /// Plain TCP.
    Tcp(SocketAddr),
    /// A Unix stream socket.
    Unix(PathBuf),
    /// TCP whose bytes move over SMC-R when the peer agrees.
    Smc(SocketAddr),
}

impl Endpoint {
    /// The TCP address, for the two schemes that have one.
    #[must_use]
    pub fn address(&self) -> Option<SocketAddr> {
        match self {
            Endpoint::Tcp(address) | Endpoint::Smc(address) => Some(*address),
            Endpoint::Unix(_) => None,
        }
    }

    /// The socket's path, for `unix:`.
    #[must_use]
    pub fn path(&self) -> Option<&Path> {
        match self {
            Endpoint::Unix(path) => Some(path),
            Endpoint::Tcp(_) | Endpoint::Smc(_) => None,
        }
    }
}

impl fmt::Display for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Endpoint::Tcp(address) => write!(f, "tcp:{address}"),
            Endpoint::Unix(path) => write!(f, "unix:{}", path.display()),
            Endpoint::Smc(address) => write!(f, "smc:{address}"),
        }
    }
}

impl FromStr for Endpoint {
    type Err = ValueError;

    fn from_str(text: &str) -> Result<Endpoint, ValueError> {
        match text.split_once(':') {
            Some(("tcp", rest)) => rest.parse().map(|PlainAddress(at)| Endpoint::Tcp(at)),
            Some(("smc", rest)) => rest.parse().map(|PlainAddress(at)| Endpoint::Smc(at)),
            Some(("unix", rest)) => absolute(rest).map(Endpoint::Unix),
            _ => Err(ValueError::Scheme),
        }
    }
}

/// An address with a port, read with an error that says how one looks. Names are not resolved.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PlainAddress(pub SocketAddr);

impl FromStr for PlainAddress {
    type Err = ValueError;

    fn from_str(text: &str) -> Result<PlainAddress, ValueError> {
        text.parse()
            .map(PlainAddress)
            .map_err(|_| ValueError::Address)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn address(text: &str) -> SocketAddr {
        text.parse().expect("an address")
    }

    fn pattern(text: &str) -> PeerPattern {
        text.parse().expect("a pattern")
    }

    #[test]
    fn a_peer_pattern_covers_an_address_a_network_or_one_port() {
        assert!(pattern("192.0.2.7").matches(address("192.0.2.7:1")));
        assert!(!pattern("192.0.2.7").matches(address("192.0.2.8:1")));
        assert!(pattern("127.0.0.1:7001").matches(address("127.0.0.1:7001")));
        assert!(!pattern("127.0.0.1:7001").matches(address("127.0.0.1:7002")));
        assert!(pattern("192.0.2.0/24").matches(address("192.0.2.255:9")));
        assert!(!pattern("192.0.2.0/24").matches(address("192.0.3.0:9")));
        assert!(pattern("0.0.0.0/0").matches(address("203.0.113.1:9")));
        assert!(pattern("2001:db8::/32").matches(address("[2001:db8:1::1]:9")));
        assert!(pattern("::/0").matches(address("[2001:db8::1]:9")));
        assert!(!pattern("::/0").matches(address("192.0.2.1:9")));
        assert!(pattern("192.0.2.7").matches(address("[::ffff:192.0.2.7]:1")));
    }

    #[test]
    fn a_peer_pattern_prints_as_it_reads() {
        for text in [
            "192.0.2.7",
            "192.0.2.0/24",
            "[2001:db8::1]:7",
            "10.0.0.1:80",
            "fd00::/8",
        ] {
            assert_eq!(pattern(text).to_string(), text);
        }
    }

    #[test]
    fn a_network_of_mapped_ipv4_addresses_is_the_ipv4_network() {
        for (text, same) in [
            ("::ffff:192.0.2.7/128", "192.0.2.7"),
            ("::ffff:192.0.2.0/120", "192.0.2.0/24"),
            ("::ffff:0.0.0.0/96", "0.0.0.0/0"),
        ] {
            assert_eq!(pattern(text), pattern(same));
            assert_eq!(pattern(text).to_string(), same);
        }
        assert!(pattern("::ffff:192.0.2.0/120").matches(address("192.0.2.9:1")));
        // A network that holds others besides is one of IPv6 addresses.
        assert!(!pattern("::/80").matches(address("192.0.2.9:1")));
    }

    #[test]
    fn wrong_peer_patterns_say_what_is_wrong() {
        let refused = |text: &str| text.parse::<PeerPattern>().expect_err(text);
        assert_eq!(refused("host.example"), ValueError::Peer);
        assert_eq!(refused("192.0.2.7:0"), ValueError::PortZero);
        assert_eq!(refused("192.0.2.0/33"), ValueError::Prefix(32));
        assert_eq!(refused("192.0.2.0/+8"), ValueError::Peer);
        assert_eq!(
            refused("192.0.2.7/24"),
            ValueError::HostBits("192.0.2.0/24".into())
        );
    }

    #[test]
    fn an_endpoint_needs_a_scheme_and_prints_as_it_reads() {
        for text in ["tcp:127.0.0.1:80", "smc:[::1]:80", "unix:/run/x.sock"] {
            let endpoint: Endpoint = text.parse().expect(text);
            assert_eq!(endpoint.to_string(), text);
        }
        assert_eq!("127.0.0.1:80".parse::<Endpoint>(), Err(ValueError::Scheme));
        assert_eq!(
            "unix:x.sock".parse::<Endpoint>(),
            Err(ValueError::RelativePath)
        );
        assert_eq!(
            "tcp:localhost:80".parse::<Endpoint>(),
            Err(ValueError::Address)
        );
    }

    #[test]
    fn a_gid_is_an_address_that_a_port_can_have() {
        let gid: GidChoice = "::ffff:10.0.0.1".parse().expect("a mapped address");
        assert_eq!(gid.to_string(), "::ffff:10.0.0.1");
        assert_eq!("10.0.0.1".parse::<GidChoice>(), Err(ValueError::Gid));
        assert_eq!(
            "ff02::1".parse::<GidChoice>(),
            Err(ValueError::GidKind("multicast"))
        );
        assert_eq!(
            "::".parse::<GidChoice>(),
            Err(ValueError::GidKind("unspecified"))
        );
    }

    #[test]
    fn a_word_that_is_not_known_suggests_the_nearest() {
        let refused = "adaptve".parse::<PollMode>().expect_err("a slip");
        assert_eq!(
            refused.to_string(),
            "\"adaptve\" is none of busy, adaptive, interrupt; did you mean \"adaptive\"?"
        );
    }

    #[test]
    fn the_automatic_poll_mode_is_busy_only_on_a_dedicated_core() {
        assert_eq!(PollChoice::Auto.mode(CoreUse::Dedicated), PollMode::Busy);
        assert_eq!(PollChoice::Auto.mode(CoreUse::Shared), PollMode::Adaptive);
        assert_eq!(
            PollChoice::Interrupt.mode(CoreUse::Dedicated),
            PollMode::Interrupt
        );
    }
}
