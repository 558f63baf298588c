//! Attributes of the contract as the verbs want them.
//!
//! The values that the contract leaves open are those of the Linux kernel's SMC: one outstanding RDMA READ
//! (nobody reads), partition key 0, flow label and traffic class 0, and no remote access but WRITE.

use rdma_core_sys::{self as sys, ibv_qp_attr, zeroed};

use crate::{RtrAttr, RtsAttr};

/// Attributes, and the mask that says which of them count.
pub(super) struct Change {
    pub(super) attr: ibv_qp_attr,
    pub(super) mask: u32,
}

impl Change {
    fn to(state: u32, mask: u32) -> Change {
        let mut attr: ibv_qp_attr = zeroed();
        attr.qp_state = state;
        let mask = sys::IBV_QP_STATE | mask;
        Change { attr, mask }
    }
}

/// Where a queue pair sends from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Source {
    pub(super) port: u8,
    /// Index in the port's GID table; work requests name it in 8 bits.
    pub(super) gid_index: u8,
    /// Active path MTU of the port, as the verbs number it.
    pub(super) mtu: u32,
}

/// RESET -> INIT.
pub(super) fn init(source: &Source) -> Change {
    let mask = sys::IBV_QP_PKEY_INDEX | sys::IBV_QP_PORT | sys::IBV_QP_ACCESS_FLAGS;
    let mut change = Change::to(sys::IBV_QPS_INIT, mask);
    change.attr.port_num = source.port;
    change.attr.qp_access_flags = sys::IBV_ACCESS_LOCAL_WRITE | sys::IBV_ACCESS_REMOTE_WRITE;
    change
}

/// INIT -> RTR. The peer's Ethernet address is not among the attributes of the verbs: the kernel finds it
/// by the peer's IP address, which is its GID.
pub(super) fn rtr(source: &Source, attr: &RtrAttr) -> Change {
    let mask = sys::IBV_QP_AV
        | sys::IBV_QP_PATH_MTU
        | sys::IBV_QP_DEST_QPN
        | sys::IBV_QP_RQ_PSN
        | sys::IBV_QP_MAX_DEST_RD_ATOMIC
        | sys::IBV_QP_MIN_RNR_TIMER;
    let mut change = Change::to(sys::IBV_QPS_RTR, mask);
    let to = &mut change.attr;
    to.path_mtu = path_mtu(attr.path_mtu, source.mtu);
    to.dest_qp_num = attr.peer_qpn;
    to.rq_psn = attr.rq_psn;
    to.max_dest_rd_atomic = 1;
    to.min_rnr_timer = attr.min_rnr_timer;
    to.ah_attr.is_global = 1;
    to.ah_attr.port_num = source.port;
    to.ah_attr.grh.dgid.raw = attr.peer_gid;
    to.ah_attr.grh.sgid_index = source.gid_index;
    to.ah_attr.grh.hop_limit = attr.hop_limit;
    change
}

/// RTR -> RTS.
pub(super) fn rts(attr: &RtsAttr) -> Change {
    let mask = sys::IBV_QP_SQ_PSN
        | sys::IBV_QP_TIMEOUT
        | sys::IBV_QP_RETRY_CNT
        | sys::IBV_QP_RNR_RETRY
        | sys::IBV_QP_MAX_QP_RD_ATOMIC;
    let mut change = Change::to(sys::IBV_QPS_RTS, mask);
    let to = &mut change.attr;
    to.sq_psn = attr.sq_psn;
    to.timeout = attr.timeout;
    to.retry_cnt = attr.retry_count;
    to.rnr_retry = attr.rnr_retry;
    to.max_rd_atomic = 1;
    change
}

/// Any state -> ERROR.
pub(super) fn error() -> Change {
    Change::to(sys::IBV_QPS_ERR, 0)
}

/// The lower of a path MTU in bytes, which exists, and the port's active one, as the verbs number it.
fn path_mtu(asked_bytes: u32, active: u32) -> u32 {
    let asked = match asked_bytes {
        ..512 => sys::IBV_MTU_256,
        512..1024 => sys::IBV_MTU_512,
        1024..2048 => sys::IBV_MTU_1024,
        2048..4096 => sys::IBV_MTU_2048,
        4096.. => sys::IBV_MTU_4096,
    };
    asked.min(active)
}

/// Bytes of a path MTU as the verbs number it; none for a number that does not exist.
pub fn mtu_bytes(number: u32) -> Option<u32> {
    (sys::IBV_MTU_256..=sys::IBV_MTU_4096)
        .contains(&number)
        .then(|| 128 << number)
}

#[cfg(test)]
mod tests {
    use rdma_core_sys as sys;

    use super::{Source, error, init, mtu_bytes, path_mtu, rtr, rts};
    use crate::{RtrAttr, RtsAttr};

    const SOURCE: Source = Source {
        port: 2,
        gid_index: 3,
        mtu: sys::IBV_MTU_1024,
    };

    #[test]
    fn path_mtu_is_the_lower_of_both() {
        let table = [
            (256, 5, 1),
            (1024, 5, 3),
            (4096, 5, 5),
            (4096, 3, 3),
            (512, 1, 1),
        ];
        for (asked, active, lower) in table {
            assert_eq!(path_mtu(asked, active), lower, "{asked} {active}");
        }
    }

    #[test]
    fn mtu_numbers_have_their_bytes() {
        let bytes: Vec<Option<u32>> = (0..7).map(mtu_bytes).collect();
        let expected = [
            None,
            Some(256),
            Some(512),
            Some(1024),
            Some(2048),
            Some(4096),
            None,
        ];
        assert_eq!(bytes, expected);
    }

    #[test]
    fn init_lets_the_peer_write_and_nothing_else() {
        let change = init(&SOURCE);
        assert_eq!(change.attr.qp_state, sys::IBV_QPS_INIT);
        assert_eq!((change.attr.port_num, change.attr.qp_access_flags), (2, 3));
        assert_eq!(change.mask, 1 | 1 << 3 | 1 << 4 | 1 << 5);
    }

    #[test]
    fn rtr_addresses_the_peer_over_our_gid() {
        let attr = RtrAttr {
            path_mtu: 4096,
            peer_qpn: 0x11,
            rq_psn: 0x123456,
            min_rnr_timer: 5,
            peer_gid: [7; 16],
            peer_mac: [2; 6],
            hop_limit: 64,
        };
        let change = rtr(&SOURCE, &attr);
        let to = change.attr;
        assert_eq!(
            (to.qp_state, to.path_mtu),
            (sys::IBV_QPS_RTR, sys::IBV_MTU_1024)
        );
        assert_eq!(
            (to.dest_qp_num, to.rq_psn, to.min_rnr_timer),
            (0x11, 0x123456, 5)
        );
        assert_eq!(to.max_dest_rd_atomic, 1);
        assert_eq!((to.ah_attr.is_global, to.ah_attr.port_num), (1, 2));
        let grh = to.ah_attr.grh;
        assert_eq!(
            (grh.dgid.raw, grh.sgid_index, grh.hop_limit),
            ([7; 16], 3, 64)
        );
        assert_eq!((grh.flow_label, grh.traffic_class), (0, 0));
        assert_eq!(
            change.mask,
            1 | 1 << 7 | 1 << 8 | 1 << 12 | 1 << 15 | 1 << 17 | 1 << 20
        );
    }

    #[test]
    fn rts_takes_the_retries_as_they_are() {
        let attr = RtsAttr {
            sq_psn: 0x654321,
            timeout: 15,
            retry_count: 6,
            rnr_retry: 7,
        };
        let change = rts(&attr);
        let to = change.attr;
        assert_eq!(
            (to.sq_psn, to.timeout, to.retry_cnt, to.rnr_retry),
            (0x654321, 15, 6, 7)
        );
        assert_eq!(to.max_rd_atomic, 1);
        assert_eq!(
            change.mask,
            1 | 1 << 9 | 1 << 10 | 1 << 11 | 1 << 13 | 1 << 16
        );
    }

    #[test]
    fn error_changes_the_state_alone() {
        let change = error();
        assert_eq!((change.attr.qp_state, change.mask), (sys::IBV_QPS_ERR, 1));
    }
}
