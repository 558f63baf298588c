//! Why a device of the verbs driver cannot be opened. Each condition that an operator can do something about
//! has a variant of its own.

use rdma_core_sys::LoadError;

use super::gid::GidError;
use crate::Errno;

/// Why [`super::VerbsDevice::open`] refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum OpenError {
    /// libibverbs is missing or too old.
    #[error(transparent)]
    Library(#[from] LoadError),
    /// The kernel gives user programs no access to RDMA devices.
    #[error(
        "the kernel gives programs no access to RDMA devices ({errno}): load its module with \
         `modprobe ib_uverbs`"
    )]
    NoKernelSupport {
        /// Answer of the library.
        errno: Errno,
    },
    /// There is no RDMA device.
    #[error(
        "there is no RDMA device; for a try without an adapter: \
         `rdma link add rxe0 type rxe netdev eth0`"
    )]
    NoDevices,
    /// No device has this name.
    #[error("there is no RDMA device {name}; there are: {}", known.join(", "))]
    NoSuchDevice {
        /// Name asked for.
        name: String,
        /// Names there are.
        known: Vec<String>,
    },
    /// The device cannot be opened.
    #[error("cannot open RDMA device {name}: {errno}; may this user open /dev/infiniband/uverbs*?")]
    Open {
        /// Name of the device.
        name: String,
        /// Answer of the system.
        errno: Errno,
    },
    /// The device has no such port.
    #[error("RDMA device {name} has ports 1 to {ports}, not {port}")]
    NoSuchPort {
        /// Name of the device.
        name: String,
        /// Port asked for.
        port: u8,
        /// Ports it has.
        ports: u8,
    },
    /// The port is down.
    #[error(
        "port {port} of RDMA device {name} is {state}, not active: is its network device up \
         (`rdma link`)?"
    )]
    PortDown {
        /// Name of the device.
        name: String,
        /// Port.
        port: u8,
        /// Its state.
        state: &'static str,
    },
    /// The port is not Ethernet.
    #[error("port {port} of RDMA device {name} is {link_layer}; only Ethernet (RoCE) is supported")]
    NotEthernet {
        /// Name of the device.
        name: String,
        /// Port.
        port: u8,
        /// What it is.
        link_layer: &'static str,
    },
    /// No GID can be used.
    #[error("port {port} of RDMA device {name}: {cause}")]
    Gid {
        /// Name of the device.
        name: String,
        /// Port.
        port: u8,
        /// Which rule failed.
        cause: GidError,
    },
    /// Another step failed.
    #[error("RDMA device {name}: cannot {step}: {errno}")]
    System {
        /// Name of the device.
        name: String,
        /// What was tried.
        step: &'static str,
        /// Answer of the system.
        errno: Errno,
    },
}
