//! A look at the RDMA devices of this host that makes nothing on them: no protection domain, no queue, no
//! thread.

use std::path::Path;

use rdma_core_sys::{self as sys, Library, LoadError, ibv_device_attr, ibv_gid_entry};

use super::adapter::{
    Adapter, AdapterLimits, Chosen, LinkLayer, OpenOptions, Port, PortState, known,
};
use super::error::OpenError;
use super::ffi::{self, Context};
use super::gid::{GidEntry, GidKind, GidTable};
use super::sysfs;
use crate::Errno;

/// libibverbs as it was found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LibraryInfo {
    /// File that was loaded; empty if the system does not tell.
    pub path: String,
    /// Symbol versions of which every function that is used was found.
    pub symbol_versions: Vec<String>,
    /// Whether it can keep registered memory from forks.
    pub fork: Result<(), Errno>,
}

/// A device by name, with what could be asked.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Surveyed {
    /// Its name.
    pub name: String,
    /// What it is, or why it cannot be opened.
    pub adapter: Result<Adapter, OpenError>,
}

/// What there is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Survey {
    /// The library, or why it cannot be used.
    pub library: Result<LibraryInfo, LoadError>,
    /// The devices; or why there are none, which is never the library.
    pub devices: Result<Vec<Surveyed>, OpenError>,
    /// The devices that the kernel shows; looked for only where the library does not tell.
    pub in_kernel: Vec<Adapter>,
}

impl Survey {
    /// Looks at this host: opens the library and, one after the other, each device.
    pub fn take() -> Survey {
        let in_kernel = || sysfs::adapters(Path::new("/"));
        let library = match Library::open() {
            Ok(library) => library,
            Err(error) => {
                return Survey {
                    library: Err(error),
                    devices: Ok(Vec::new()),
                    in_kernel: in_kernel(),
                };
            }
        };
        let fork = ffi::protect_from_fork(&library);
        let devices = names(&library).map(|names| {
            let devices = names.into_iter().map(|name| surveyed(&library, name));
            devices.collect()
        });
        Survey {
            library: Ok(LibraryInfo {
                path: loaded_from(),
                symbol_versions: sys::SYMBOL_VERSIONS.map(str::to_owned).to_vec(),
                fork,
            }),
            in_kernel: match &devices {
                Ok(_) => Vec::new(),
                Err(_) => in_kernel(),
            },
            devices,
        }
    }

    /// The same from the files of a root folder, with a library that is supposed: what cannot be read from
    /// `sys` below it is left open.
    pub fn below(root: &Path, library: Result<LibraryInfo, LoadError>) -> Survey {
        let in_kernel = sysfs::adapters(root);
        let surveyed = |adapter: &Adapter| Surveyed {
            name: adapter.name.clone(),
            adapter: Ok(adapter.clone()),
        };
        let devices = match (&library, sysfs::has_user_access(root)) {
            (Err(_), _) => Ok(Vec::new()),
            (Ok(_), false) => Err(OpenError::NoKernelSupport {
                errno: Errno::NOSYS,
            }),
            (Ok(_), true) => Ok(in_kernel.iter().map(surveyed).collect()),
        };
        Survey {
            library,
            devices,
            in_kernel,
        }
    }

    /// The port and the GID that [`super::VerbsDevice::open`] would use, by the same rules in the same order.
    ///
    /// # Errors
    /// The [`OpenError`] that it would give.
    pub fn choose(&self, options: &OpenOptions) -> Result<(&Adapter, Chosen<'_>), OpenError> {
        let OpenOptions { device, port, gid } = options;
        let library = self.library.as_ref().map_err(Clone::clone)?;
        library.fork.map_err(|errno| fork_refused(device, errno))?;
        let devices = self.devices.as_ref().map_err(Clone::clone)?;
        let names = || devices.iter().map(|one| one.name.clone()).collect();
        known(device, names())?;
        let found = devices.iter().find(|one| one.name == *device);
        let Some(Surveyed { adapter, .. }) = found else {
            let (name, known) = (device.clone(), names());
            return Err(OpenError::NoSuchDevice { name, known });
        };
        let adapter = adapter.as_ref().map_err(Clone::clone)?;
        Ok((adapter, adapter.choose(*port, gid)?))
    }
}

/// Names of all RDMA devices.
///
/// # Errors
/// [`OpenError::Library`], [`OpenError::NoKernelSupport`].
pub fn device_names() -> Result<Vec<String>, OpenError> {
    names(&Library::open()?)
}

/// Names of all devices of an open library.
///
/// # Errors
/// [`OpenError::NoKernelSupport`]: also where the library asks the kernel in another way than by `ib_uverbs`,
/// and so does not notice that it is missing.
pub(super) fn names(library: &Library) -> Result<Vec<String>, OpenError> {
    let names = ffi::device_names(library).map_err(|errno| OpenError::NoKernelSupport { errno })?;
    if names.is_empty() && !sysfs::has_user_access(Path::new("/")) {
        let errno = Errno::NOSYS;
        return Err(OpenError::NoKernelSupport { errno });
    }
    Ok(names)
}

/// The library cannot keep registered memory from forks.
pub(super) fn fork_refused(device: &str, errno: Errno) -> OpenError {
    let (name, step) = (device.to_owned(), "protect memory from forks");
    OpenError::System { name, step, errno }
}

fn surveyed(library: &Library, name: String) -> Surveyed {
    let adapter = match Context::open(library, &name) {
        Ok(Some(context)) => read_adapter(&context, &name).map(|(adapter, _)| adapter),
        Ok(None) => Err(OpenError::NoSuchDevice {
            name: name.clone(),
            known: Vec::new(),
        }),
        Err(errno) => Err(OpenError::Open {
            name: name.clone(),
            errno,
        }),
    };
    Surveyed { name, adapter }
}

/// Everything that the library tells of an open device.
///
/// # Errors
/// [`OpenError::System`]: the device itself does not answer. A port that does not is an error in its place.
pub(super) fn read_adapter(
    context: &Context,
    name: &str,
) -> Result<(Adapter, ibv_device_attr), OpenError> {
    let attr = context.query_device().map_err(|errno| {
        let (name, step) = (name.to_owned(), "query it");
        OpenError::System { name, step, errno }
    })?;
    let ports: Vec<_> = (1..=attr.phys_port_cnt)
        .map(|number| (number, context.query_port(number)))
        .collect();
    // Room for the GIDs of all ports.
    let lengths = ports.iter().map(|(_, port)| match port {
        Ok(port) => usize::try_from(port.gid_tbl_len).unwrap_or(0),
        Err(_) => 0,
    });
    let gids = context.gid_table(lengths.sum());
    let port = |(number, port): (u8, Result<sys::ibv_port_attr, Errno>)| {
        let port = port?;
        Ok(Port {
            number,
            state: PortState::of(port.state),
            link_layer: LinkLayer::of(port.link_layer),
            active_mtu: port.active_mtu,
            message_bytes_max: port.max_msg_sz,
            gids: gids
                .as_ref()
                .map(|gids| gid_table(name, number, gids))
                .map_err(|errno| *errno),
        })
    };
    let positive = |limit: i32| u32::try_from(limit).unwrap_or(0);
    let adapter = Adapter {
        name: name.to_owned(),
        vendor_id: attr.vendor_id,
        vendor_part_id: attr.vendor_part_id,
        firmware: text(&attr.fw_ver),
        // In the order of the network already.
        node_guid: attr.node_guid.to_ne_bytes(),
        node_type: sysfs::node_type(Path::new("/"), name),
        limits: Some(AdapterLimits {
            qp: positive(attr.max_qp),
            wr: positive(attr.max_qp_wr),
            cqe: positive(attr.max_cqe),
            sge: positive(attr.max_sge),
            mr: positive(attr.max_mr),
            mr_bytes: attr.max_mr_size,
        }),
        ports: ports.into_iter().map(port).collect(),
    };
    Ok((adapter, attr))
}

fn gid_table(device: &str, port: u8, entries: &[ibv_gid_entry]) -> GidTable {
    let mut table: Vec<GidEntry> = entries
        .iter()
        .filter(|entry| entry.port_num == u32::from(port))
        .map(|entry| GidEntry {
            index: entry.gid_index,
            gid: entry.gid.raw,
            kind: match entry.gid_type {
                sys::IBV_GID_TYPE_IB => GidKind::InfiniBand,
                sys::IBV_GID_TYPE_ROCE_V1 => GidKind::RoceV1,
                sys::IBV_GID_TYPE_ROCE_V2 => GidKind::RoceV2,
                other => GidKind::Other(other),
            },
            netdev: sysfs::netdev(Path::new("/"), device, port, entry.gid_index),
        })
        .collect();
    table.sort_by_key(|entry| entry.index);
    GidTable(table)
}

/// Text in a field of the C header, up to its zero byte.
fn text(field: &[std::ffi::c_char]) -> String {
    let bytes: Vec<u8> = field
        .iter()
        .map(|byte| byte.to_ne_bytes()[0])
        .take_while(|byte| *byte != 0)
        .collect();
    String::from_utf8_lossy(&bytes).trim().to_owned()
}

/// The file of the library in this process's own memory map.
fn loaded_from() -> String {
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap_or_default();
    let mut paths = maps.lines().filter_map(|line| {
        let path = &line[line.find('/')?..];
        let name = path.rsplit('/').next()?;
        name.starts_with("libibverbs.so").then(|| path.to_owned())
    });
    paths.next().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::{LibraryInfo, Survey, text};
    use crate::Errno;
    use crate::verbs::{GidChoice, OpenError, OpenOptions, VerbsDevice};

    fn options() -> OpenOptions {
        OpenOptions {
            device: "no-such-adapter".to_owned(),
            port: 1,
            gid: GidChoice::FirstOf(Vec::new()),
        }
    }

    #[test]
    fn what_a_survey_refuses_is_what_opening_refuses() {
        let surveyed = Survey::take()
            .choose(&options())
            .expect_err("no device")
            .to_string();
        let opened = VerbsDevice::open(&options())
            .expect_err("no device")
            .to_string();
        assert_eq!(surveyed, opened);
    }

    #[test]
    fn a_root_without_the_kernels_part_is_refused_and_one_without_devices_too() {
        let library = || {
            Ok(LibraryInfo {
                path: String::new(),
                symbol_versions: Vec::new(),
                fork: Ok(()),
            })
        };
        let nothing = Survey::below(Path::new("/no/such/root"), library());
        let errno = Errno::NOSYS;
        let refused = nothing.choose(&options()).expect_err("no module");
        assert_eq!(refused, OpenError::NoKernelSupport { errno });
        let dir = tempfile::tempdir().expect("temporary folder");
        std::fs::create_dir_all(dir.path().join("sys/class/infiniband_verbs")).expect("folders");
        let refused = Survey::below(dir.path(), library())
            .choose(&options())
            .map(|_| ());
        assert_eq!(refused, Err(OpenError::NoDevices));
    }

    #[test]
    fn text_ends_at_its_zero() {
        let field = [0x31, 0x2e, 0x32, 0, 0x33].map(|byte: u8| byte as std::ffi::c_char);
        assert_eq!(text(&field), "1.2");
    }
}
