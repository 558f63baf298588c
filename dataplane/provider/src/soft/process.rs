//! The carrier inside one process: devices find each other in a map, and segments are shared as they are.
//!
//! No thread, no file, no randomness: with the same seed and the same calls, a run is the same run.

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, Weak};

use pollux_ring::{Segment, Wake};

use super::device::{Carrier, DeviceOptions, NoPath, OpenError, SoftDevice, make_shared};
use super::shared::{Offer, Peer, Shared};
use crate::lock::lock;
use crate::table::Id;
use crate::table::mix;
use crate::{Errno, GidHex};

#[derive(Debug, Default)]
struct Devices {
    by_gid: HashMap<[u8; 16], Weak<Shared>>,
    opened: u64,
}

/// A fabric inside this process: the devices opened on it reach each other. Clones are the same fabric.
#[derive(Debug, Clone, Default)]
pub struct Fabric {
    seed: u64,
    devices: Arc<Mutex<Devices>>,
}

impl Fabric {
    /// A fabric without devices, with seed 0.
    pub fn new() -> Fabric {
        Fabric::default()
    }

    /// A fabric whose devices draw their queue pair numbers and keys from `seed`.
    pub fn with_seed(seed: u64) -> Fabric {
        Fabric {
            seed,
            ..Fabric::default()
        }
    }

    /// Opens a device.
    ///
    /// # Errors
    /// [`OpenError`]: the address is zero or taken, or an option has an impossible value.
    pub fn open(&self, options: DeviceOptions) -> Result<SoftDevice, OpenError> {
        let gid = options.gid;
        let mut devices = lock(&self.devices);
        if devices.by_gid.contains_key(&gid) {
            return Err(OpenError::InUse {
                gid,
                path: PathBuf::new(),
                pid: 0,
            });
        }
        devices.opened += 1;
        let seed = mix(self.seed ^ devices.opened << 32);
        let shared = make_shared(options, "soft/process", seed)?;
        devices.by_gid.insert(gid, Arc::downgrade(&shared));
        drop(devices);
        let (fabric, own) = (self.clone(), Arc::clone(&shared));
        Ok(SoftDevice::new(
            shared,
            Arc::new(ProcessCarrier { fabric, own }),
        ))
    }

    fn find(&self, gid: &[u8; 16]) -> Option<Arc<Shared>> {
        lock(&self.devices).by_gid.get(gid)?.upgrade()
    }

    fn all(&self) -> Vec<Arc<Shared>> {
        lock(&self.devices)
            .by_gid
            .values()
            .filter_map(Weak::upgrade)
            .collect()
    }
}

/// One device's place on a [`Fabric`].
#[derive(Debug)]
struct ProcessCarrier {
    fabric: Fabric,
    own: Arc<Shared>,
}

impl ProcessCarrier {
    fn device(&self, gid: &[u8; 16]) -> Result<Arc<Shared>, NoPath> {
        self.fabric.find(gid).ok_or_else(|| NoPath {
            place: "the fabric inside this process".to_owned(),
            cause: format!("no device {} is open on it", GidHex(*gid)),
        })
    }
}

impl ProcessCarrier {
    /// Peers read our table itself; they only have to look again.
    fn tell_all(&self) {
        for device in self.fabric.all() {
            device.table_changed(&self.own.exports);
        }
    }
}

/// How `here` knows the device `there`.
fn introduce(here: &Shared, there: &Shared) -> Arc<Peer> {
    here.peer(there.identity.gid, there.incarnation, || {
        Arc::clone(&there.exports)
    })
}

impl Carrier for ProcessCarrier {
    fn reach(&self, gid: [u8; 16]) -> Result<Arc<Peer>, NoPath> {
        Ok(introduce(&self.own, &*self.device(&gid)?))
    }

    fn offer(
        &self,
        peer: &Peer,
        to: u32,
        from: u32,
        port: &Segment,
        wake: &Wake,
    ) -> Result<(), NoPath> {
        let device = self.device(&peer.gid)?;
        let wake = wake.try_clone().map_err(|error| NoPath {
            place: "the fabric inside this process".to_owned(),
            cause: error.to_string(),
        })?;
        let peer = introduce(&device, &self.own);
        device.deliver(
            to,
            Offer {
                peer,
                qpn: from,
                port: port.clone(),
                wake,
            },
        );
        Ok(())
    }

    fn exported(&self, _id: Id, _segment: &Segment) -> Result<(), Errno> {
        self.tell_all();
        Ok(())
    }

    fn withdrawn(&self, _id: Id) {
        self.tell_all();
    }

    fn leave(&self) {
        let gid = self.own.identity.gid;
        lock(&self.fabric.devices).by_gid.remove(&gid);
        for device in self.fabric.all() {
            device.bury_life(&gid, self.own.incarnation);
        }
    }
}
