//! Opening the device of the configuration.

use std::net::IpAddr;

use pollux_provider::Device;
use pollux_provider::soft::{self, DeviceOptions, SoftDevice};
use pollux_provider::verbs::{self, GidTable, OpenError, OpenOptions, VerbsDevice};

use crate::config::{Config, Endpoint, GidChoice, Paths};
use crate::exit::{ExitStatus, Fatal};

/// A device of the embedded software fabric.
pub(super) fn open_soft(config: &Config, paths: &Paths) -> Result<SoftDevice, Fatal> {
    let device = &config.device;
    let gid = match device.gid {
        GidChoice::Fixed(gid) => gid.octets(),
        // The same at each start, so that a killed instance's place on the fabric is taken over.
        GidChoice::Auto => paths.default_gid().octets(),
    };
    let options = DeviceOptions {
        name: device.name.clone(),
        personality: device.personality,
        mtu_bytes: device.mtu_bytes,
        ..DeviceOptions::new(gid)
    };
    soft::open_shm(&paths.fabric_dir, options).map_err(|error| match error {
        soft::OpenError::InUse { .. } => Fatal::temporary(error.to_string()),
        _ => Fatal::os(error.to_string()),
    })
}

/// An RDMA device of this host.
pub(super) fn open_verbs(config: &Config) -> Result<VerbsDevice, Fatal> {
    let device = &config.device;
    let fatal = |error: OpenError| Fatal::new(status(&error), error.to_string());
    let gid = match device.gid {
        GidChoice::Fixed(gid) => verbs::GidChoice::Local(IpAddr::from(gid)),
        GidChoice::Auto => {
            let table = verbs::gids(&device.name, device.port).map_err(fatal)?;
            listened_on(config, &table).map_or(verbs::GidChoice::Only, verbs::GidChoice::Local)
        }
    };
    let options = OpenOptions {
        device: device.name.clone(),
        port: device.port,
        gid,
    };
    let opened = VerbsDevice::open(&options).map_err(fatal)?;
    tracing::info!(
        device = device.name,
        port = device.port,
        gid_index = opened.gid_index(),
        "RDMA device with the GID {}",
        std::net::Ipv6Addr::from(opened.identity().gid)
    );
    Ok(opened)
}

/// The first address that services or smc forwards listen on for which the port has a GID.
fn listened_on(config: &Config, table: &GidTable) -> Option<IpAddr> {
    let services = config.services.iter().map(|service| service.listen);
    let forwards = config.forwards.iter();
    let forwards = forwards.filter_map(|forward| match forward.listen {
        Endpoint::Smc(address) => Some(address),
        Endpoint::Tcp(_) | Endpoint::Unix(_) => None,
    });
    let addresses = services.chain(forwards).map(|address| address.ip());
    let mut usable = addresses.filter(|address| verbs::choose(table, *address).is_ok());
    usable.next()
}

/// What the refusal of a device comes down to.
fn status(error: &OpenError) -> ExitStatus {
    match error {
        OpenError::Library(_)
        | OpenError::NoKernelSupport { .. }
        | OpenError::NoDevices
        | OpenError::PortDown { .. }
        | OpenError::NotEthernet { .. } => ExitStatus::Unavailable,
        OpenError::NoSuchDevice { .. } | OpenError::NoSuchPort { .. } | OpenError::Gid { .. } => {
            ExitStatus::Config
        }
        OpenError::Open { .. } | OpenError::System { .. } => ExitStatus::Os,
    }
}

#[cfg(test)]
mod tests {
    use pollux_provider::verbs::{GidEntry, GidKind, GidTable};

    use super::{ExitStatus, OpenError, listened_on, status};
    use crate::config::Config;

    fn table() -> GidTable {
        let address: std::net::Ipv4Addr = "192.0.2.7".parse().unwrap();
        GidTable(vec![GidEntry {
            index: 3,
            gid: address.to_ipv6_mapped().octets(),
            kind: GidKind::RoceV2,
            netdev: "eth0".to_owned(),
        }])
    }

    fn config(listens: &[&str]) -> Config {
        let service =
            |listen: &&str| format!("[[service]]\nkind = \"echo\"\nlisten = \"{listen}\"\n");
        let text: String = listens.iter().map(service).collect();
        Config::from_toml_str(&text, "x.toml").expect("a configuration")
    }

    #[test]
    fn address_of_the_device_is_one_that_is_listened_on_and_has_a_gid() {
        let found = listened_on(&config(&["127.0.0.1:1", "192.0.2.7:2"]), &table());
        assert_eq!(found, Some("192.0.2.7".parse().unwrap()));
        let all_addresses = config(&["0.0.0.0:1"]);
        assert_eq!(listened_on(&all_addresses, &table()), None);
    }

    #[test]
    fn missing_device_and_wrong_configuration_end_with_different_statuses() {
        assert_eq!(status(&OpenError::NoDevices), ExitStatus::Unavailable);
        let (name, known) = ("rxe7".to_owned(), vec!["rxe0".to_owned()]);
        let wrong = OpenError::NoSuchDevice { name, known };
        assert_eq!(status(&wrong), ExitStatus::Config);
    }
}
