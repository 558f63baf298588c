//! Opening the device of the configuration, and looking at it without opening it.

use std::net::{IpAddr, Ipv6Addr};

use pollux_provider::Device;
use pollux_provider::soft::{self, DeviceOptions, SoftDevice};
use pollux_provider::verbs::{self, OpenError, OpenOptions, VerbsDevice};

use crate::config::{Config, Endpoint, GidChoice, Paths};
use crate::exit::{ExitStatus, Fatal};

/// A device of the embedded software fabric.
pub(super) fn open_soft(config: &Config, paths: &Paths) -> Result<SoftDevice, Fatal> {
    soft::open_shm(&paths.fabric_dir, soft_options(config, paths)).map_err(|e| soft_refused(&e))
}

/// What [`open_soft`] would find, without making anything.
pub(crate) fn look_soft(config: &Config, paths: &Paths) -> Result<(), Fatal> {
    soft::look_shm(&paths.fabric_dir, &soft_options(config, paths)).map_err(|e| soft_refused(&e))
}

/// The address of the configuration's soft device.
pub(crate) fn soft_gid(config: &Config, paths: &Paths) -> Ipv6Addr {
    match config.device.gid {
        GidChoice::Fixed(gid) => gid,
        // The same at each start, so that a killed instance's place on the fabric is taken over.
        GidChoice::Auto => paths.default_gid(),
    }
}

fn soft_options(config: &Config, paths: &Paths) -> DeviceOptions {
    let device = &config.device;
    DeviceOptions {
        name: device.name.clone(),
        personality: device.personality,
        mtu_bytes: device.mtu_bytes,
        ..DeviceOptions::new(soft_gid(config, paths).octets())
    }
}

fn soft_refused(error: &soft::OpenError) -> Fatal {
    match error {
        soft::OpenError::InUse { .. } => Fatal::temporary(error.to_string()),
        _ => Fatal::os(error.to_string()),
    }
}

/// An RDMA device of this host.
pub(super) fn open_verbs(config: &Config) -> Result<VerbsDevice, Fatal> {
    let device = &config.device;
    let opened = VerbsDevice::open(&verbs_options(config)).map_err(|e| verbs_refused(&e))?;
    tracing::info!(
        device = device.name,
        port = device.port,
        gid_index = opened.gid_index(),
        "RDMA device with the GID {}",
        Ipv6Addr::from(opened.identity().gid)
    );
    Ok(opened)
}

/// What [`open_verbs`] asks for.
pub(crate) fn verbs_options(config: &Config) -> OpenOptions {
    let device = &config.device;
    OpenOptions {
        device: device.name.clone(),
        port: device.port,
        gid: match device.gid {
            GidChoice::Fixed(gid) => verbs::GidChoice::Local(IpAddr::from(gid)),
            GidChoice::Auto => verbs::GidChoice::FirstOf(listened_on(config)),
        },
    }
}

/// The end of a start whose adapter cannot be used.
pub(crate) fn verbs_refused(error: &OpenError) -> Fatal {
    Fatal::new(status(error), error.to_string())
}

/// The addresses that services and smc forwards listen on.
fn listened_on(config: &Config) -> Vec<IpAddr> {
    let services = config.services.iter().map(|service| service.listen);
    let forwards = config.forwards.iter();
    let forwards = forwards.filter_map(|forward| match forward.listen {
        Endpoint::Smc(address) => Some(address),
        Endpoint::Tcp(_) | Endpoint::Unix(_) => None,
    });
    services
        .chain(forwards)
        .map(|address| address.ip())
        .collect()
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
    use std::net::IpAddr;

    use super::{ExitStatus, OpenError, listened_on, status};
    use crate::config::Config;

    #[test]
    fn addresses_of_services_and_of_the_way_out_are_listened_on() {
        let text = "[[service]]\nkind = \"echo\"\nlisten = \"192.0.2.7:2\"\n\
                    [[forward]]\nname = \"out\"\nlisten = \"smc:192.0.2.8:1\"\n\
                    connect = \"tcp:127.0.0.1:3\"\n\
                    [[forward]]\nname = \"in\"\nlisten = \"tcp:127.0.0.1:4\"\n\
                    connect = \"smc:192.0.2.9:1\"\n";
        let config = Config::from_toml_str(text, "x.toml").expect("a configuration");
        let expected: [IpAddr; 2] = ["192.0.2.7", "192.0.2.8"].map(|a| a.parse().unwrap());
        assert_eq!(listened_on(&config), expected);
    }

    #[test]
    fn missing_device_and_wrong_configuration_end_with_different_statuses() {
        assert_eq!(status(&OpenError::NoDevices), ExitStatus::Unavailable);
        let (name, known) = ("rxe7".to_owned(), vec!["rxe0".to_owned()]);
        let wrong = OpenError::NoSuchDevice { name, known };
        assert_eq!(status(&wrong), ExitStatus::Config);
    }
}
