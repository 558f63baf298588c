//! Structs and constants of `infiniband/verbs.h`, as far as the driver uses them.
//!
//! C enums are `u32` here: a library may say a number that this header does not know. Structs that only the
//! library makes and that grow at their end ([`ibv_context`], [`ibv_qp`], [`ibv_cq`],
//! [`ibv_comp_channel`]) are given as far as they are read, and are only used behind pointers.

#![allow(non_camel_case_types, reason = "the names of the C header")]

use core::ffi::{c_char, c_int, c_void};
use core::marker::{PhantomData, PhantomPinned};

use crate::calls::{PollCq, PostRecv, PostSend, ReqNotifyCq};

/// A type that is only named, never looked into.
macro_rules! opaque {
    ($($(#[$doc:meta])* $name:ident),+ $(,)?) => {
        $(
            $(#[$doc])*
            #[repr(C)]
            pub struct $name {
                _bytes: [u8; 0],
                _not_send_not_moved: PhantomData<(*mut u8, PhantomPinned)>,
            }
        )+
    };
}

opaque!(
    /// A device of the list, before it is opened.
    ibv_device,
    /// A protection domain.
    ibv_pd,
    /// A shared receive queue; never made here.
    ibv_srq,
);

/// Constants of one C type.
macro_rules! constants {
    ($($(#[$doc:meta])* $name:ident = $value:expr;)+) => {
        $($(#[$doc])* pub const $name: u32 = $value;)+
    };
}

constants! {
    /// GID of InfiniBand.
    IBV_GID_TYPE_IB = 0;
    /// GID of RoCE over Ethernet frames.
    IBV_GID_TYPE_ROCE_V1 = 1;
    /// GID of RoCE over UDP: an IP address.
    IBV_GID_TYPE_ROCE_V2 = 2;

    /// 256 bytes.
    IBV_MTU_256 = 1;
    /// 512 bytes.
    IBV_MTU_512 = 2;
    /// 1024 bytes.
    IBV_MTU_1024 = 3;
    /// 2048 bytes.
    IBV_MTU_2048 = 4;
    /// 4096 bytes.
    IBV_MTU_4096 = 5;

    /// No state.
    IBV_PORT_NOP = 0;
    /// No cable, or its netdev is down.
    IBV_PORT_DOWN = 1;
    /// Waiting for a subnet manager.
    IBV_PORT_INIT = 2;
    /// Configured, not yet in use.
    IBV_PORT_ARMED = 3;
    /// Up.
    IBV_PORT_ACTIVE = 4;
    /// Up, with the link in trouble.
    IBV_PORT_ACTIVE_DEFER = 5;

    /// InfiniBand, said by drivers that say nothing.
    IBV_LINK_LAYER_UNSPECIFIED = 0;
    /// InfiniBand.
    IBV_LINK_LAYER_INFINIBAND = 1;
    /// Ethernet: RoCE.
    IBV_LINK_LAYER_ETHERNET = 2;

    /// A completion queue overran or broke.
    IBV_EVENT_CQ_ERR = 0;
    /// A queue pair failed and cannot report it.
    IBV_EVENT_QP_FATAL = 1;
    /// The peer's request was invalid.
    IBV_EVENT_QP_REQ_ERR = 2;
    /// The peer's request was refused.
    IBV_EVENT_QP_ACCESS_ERR = 3;
    /// The first message came before the state said that it may.
    IBV_EVENT_COMM_EST = 4;
    /// The send queue ran dry.
    IBV_EVENT_SQ_DRAINED = 5;
    /// The path was changed.
    IBV_EVENT_PATH_MIG = 6;
    /// The path could not be changed.
    IBV_EVENT_PATH_MIG_ERR = 7;
    /// The device is broken.
    IBV_EVENT_DEVICE_FATAL = 8;
    /// The port came up.
    IBV_EVENT_PORT_ACTIVE = 9;
    /// The port went down.
    IBV_EVENT_PORT_ERR = 10;
    /// The local identifier changed (InfiniBand).
    IBV_EVENT_LID_CHANGE = 11;
    /// The partition keys changed.
    IBV_EVENT_PKEY_CHANGE = 12;
    /// Another subnet manager (InfiniBand).
    IBV_EVENT_SM_CHANGE = 13;
    /// A shared receive queue broke.
    IBV_EVENT_SRQ_ERR = 14;
    /// A shared receive queue runs low.
    IBV_EVENT_SRQ_LIMIT_REACHED = 15;
    /// The last receive of a queue pair in error was flushed.
    IBV_EVENT_QP_LAST_WQE_REACHED = 16;
    /// The subnet manager asks for registrations again.
    IBV_EVENT_CLIENT_REREGISTER = 17;
    /// The GID table changed.
    IBV_EVENT_GID_CHANGE = 18;
    /// A work queue broke.
    IBV_EVENT_WQ_FATAL = 19;

    /// Done.
    IBV_WC_SUCCESS = 0;
    /// A message longer than its receive, or than the queue pair can send.
    IBV_WC_LOC_LEN_ERR = 1;
    /// The queue pair could not do the work.
    IBV_WC_LOC_QP_OP_ERR = 2;
    /// Reliable datagrams only.
    IBV_WC_LOC_EEC_OP_ERR = 3;
    /// A local piece is not registered for this use.
    IBV_WC_LOC_PROT_ERR = 4;
    /// Outstanding when the queue pair failed.
    IBV_WC_WR_FLUSH_ERR = 5;
    /// Memory windows only.
    IBV_WC_MW_BIND_ERR = 6;
    /// The peer's answer made no sense.
    IBV_WC_BAD_RESP_ERR = 7;
    /// A write with immediate hit memory that may not be written.
    IBV_WC_LOC_ACCESS_ERR = 8;
    /// The peer could not make sense of the request.
    IBV_WC_REM_INV_REQ_ERR = 9;
    /// The peer refused address, length or key.
    IBV_WC_REM_ACCESS_ERR = 10;
    /// The peer failed while it did the work.
    IBV_WC_REM_OP_ERR = 11;
    /// The peer does not answer.
    IBV_WC_RETRY_EXC_ERR = 12;
    /// The peer had no receive too often.
    IBV_WC_RNR_RETRY_EXC_ERR = 13;
    /// Reliable datagrams only.
    IBV_WC_LOC_RDD_VIOL_ERR = 14;
    /// Reliable datagrams only.
    IBV_WC_REM_INV_RD_REQ_ERR = 15;
    /// The peer gave the work up.
    IBV_WC_REM_ABORT_ERR = 16;
    /// Reliable datagrams only.
    IBV_WC_INV_EECN_ERR = 17;
    /// Reliable datagrams only.
    IBV_WC_INV_EEC_STATE_ERR = 18;
    /// The device failed.
    IBV_WC_FATAL_ERR = 19;
    /// The peer did not answer in time.
    IBV_WC_RESP_TIMEOUT_ERR = 20;
    /// Anything else.
    IBV_WC_GENERAL_ERR = 21;
    /// Tag matching only.
    IBV_WC_TM_ERR = 22;
    /// Tag matching only.
    IBV_WC_TM_RNDV_INCOMPLETE = 23;

    /// A send ended.
    IBV_WC_SEND = 0;
    /// A write ended.
    IBV_WC_RDMA_WRITE = 1;
    /// A receive took a send. Set in every opcode of a receive.
    IBV_WC_RECV = 1 << 7;
    /// A receive was used up by a write with immediate.
    IBV_WC_RECV_RDMA_WITH_IMM = (1 << 7) + 1;

    /// The completion has an immediate value.
    IBV_WC_WITH_IMM = 1 << 1;

    /// The device may write (receives).
    IBV_ACCESS_LOCAL_WRITE = 1;
    /// The peer may write.
    IBV_ACCESS_REMOTE_WRITE = 1 << 1;

    /// Reliable connection.
    IBV_QPT_RC = 2;

    /// Field is given.
    IBV_QP_STATE = 1 << 0;
    /// Field is given.
    IBV_QP_ACCESS_FLAGS = 1 << 3;
    /// Field is given.
    IBV_QP_PKEY_INDEX = 1 << 4;
    /// Field is given.
    IBV_QP_PORT = 1 << 5;
    /// Field is given.
    IBV_QP_AV = 1 << 7;
    /// Field is given.
    IBV_QP_PATH_MTU = 1 << 8;
    /// Field is given.
    IBV_QP_TIMEOUT = 1 << 9;
    /// Field is given.
    IBV_QP_RETRY_CNT = 1 << 10;
    /// Field is given.
    IBV_QP_RNR_RETRY = 1 << 11;
    /// Field is given.
    IBV_QP_RQ_PSN = 1 << 12;
    /// Field is given.
    IBV_QP_MAX_QP_RD_ATOMIC = 1 << 13;
    /// Field is given.
    IBV_QP_MIN_RNR_TIMER = 1 << 15;
    /// Field is given.
    IBV_QP_SQ_PSN = 1 << 16;
    /// Field is given.
    IBV_QP_MAX_DEST_RD_ATOMIC = 1 << 17;
    /// Field is given.
    IBV_QP_DEST_QPN = 1 << 20;

    /// Fresh.
    IBV_QPS_RESET = 0;
    /// Takes receives.
    IBV_QPS_INIT = 1;
    /// Ready to receive.
    IBV_QPS_RTR = 2;
    /// Ready to send.
    IBV_QPS_RTS = 3;
    /// Everything is flushed.
    IBV_QPS_ERR = 6;

    /// WRITE.
    IBV_WR_RDMA_WRITE = 0;
    /// WRITE that uses up a receive of the peer.
    IBV_WR_RDMA_WRITE_WITH_IMM = 1;
    /// SEND.
    IBV_WR_SEND = 2;

    /// A completion is wanted on success.
    IBV_SEND_SIGNALED = 1 << 1;
    /// The receive's completion counts for those who only wait for such.
    IBV_SEND_SOLICITED = 1 << 2;
    /// The bytes are read when the work is posted.
    IBV_SEND_INLINE = 1 << 3;
}

/// What a device can do, and who made it.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
#[allow(missing_docs, reason = "the manual page ibv_query_device(3)")]
pub struct ibv_device_attr {
    pub fw_ver: [c_char; 64],
    pub node_guid: u64,
    pub sys_image_guid: u64,
    pub max_mr_size: u64,
    pub page_size_cap: u64,
    pub vendor_id: u32,
    pub vendor_part_id: u32,
    pub hw_ver: u32,
    pub max_qp: c_int,
    pub max_qp_wr: c_int,
    pub device_cap_flags: u32,
    pub max_sge: c_int,
    pub max_sge_rd: c_int,
    pub max_cq: c_int,
    pub max_cqe: c_int,
    pub max_mr: c_int,
    pub max_pd: c_int,
    pub max_qp_rd_atom: c_int,
    pub max_ee_rd_atom: c_int,
    pub max_res_rd_atom: c_int,
    pub max_qp_init_rd_atom: c_int,
    pub max_ee_init_rd_atom: c_int,
    pub atomic_cap: u32,
    pub max_ee: c_int,
    pub max_rdd: c_int,
    pub max_mw: c_int,
    pub max_raw_ipv6_qp: c_int,
    pub max_raw_ethy_qp: c_int,
    pub max_mcast_grp: c_int,
    pub max_mcast_qp_attach: c_int,
    pub max_total_mcast_qp_attach: c_int,
    pub max_ah: c_int,
    pub max_fmr: c_int,
    pub max_map_per_fmr: c_int,
    pub max_srq: c_int,
    pub max_srq_wr: c_int,
    pub max_srq_sge: c_int,
    pub max_pkeys: u16,
    pub local_ca_ack_delay: u8,
    pub phys_port_cnt: u8,
}

/// State of a port. The library writes as much of it as it was built for; the rest stays as it was.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
#[allow(missing_docs, reason = "the manual page ibv_query_port(3)")]
pub struct ibv_port_attr {
    pub state: u32,
    pub max_mtu: u32,
    pub active_mtu: u32,
    pub gid_tbl_len: c_int,
    pub port_cap_flags: u32,
    pub max_msg_sz: u32,
    pub bad_pkey_cntr: u32,
    pub qkey_viol_cntr: u32,
    pub pkey_tbl_len: u16,
    pub lid: u16,
    pub sm_lid: u16,
    pub lmc: u8,
    pub max_vl_num: u8,
    pub sm_sl: u8,
    pub subnet_timeout: u8,
    pub init_type_reply: u8,
    pub active_width: u8,
    pub active_speed: u8,
    pub phys_state: u8,
    pub link_layer: u8,
    pub flags: u8,
    pub port_cap_flags2: u16,
}

/// One place of a GID table.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
#[allow(missing_docs, reason = "the manual page ibv_query_gid_table(3)")]
pub struct ibv_gid_entry {
    pub gid: ibv_gid,
    pub gid_index: u32,
    pub port_num: u32,
    pub gid_type: u32,
    pub ndev_ifindex: u32,
}

/// A GID in network order. As strictly aligned as the union in C, which also has two 64-bit halves.
#[repr(C, align(8))]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ibv_gid {
    /// Its bytes.
    pub raw: [u8; 16],
}

/// A registration.
#[repr(C)]
#[allow(missing_docs, reason = "the manual page ibv_reg_mr(3)")]
pub struct ibv_mr {
    pub context: *mut ibv_context,
    pub pd: *mut ibv_pd,
    pub addr: *mut c_void,
    pub length: usize,
    pub handle: u32,
    pub lkey: u32,
    pub rkey: u32,
}

/// A completion channel, as far as it is read.
#[repr(C)]
#[allow(missing_docs, reason = "the manual page ibv_create_comp_channel(3)")]
pub struct ibv_comp_channel {
    pub context: *mut ibv_context,
    pub fd: c_int,
}

/// A completion queue, as far as it is read.
#[repr(C)]
#[allow(missing_docs, reason = "the manual page ibv_create_cq(3)")]
pub struct ibv_cq {
    pub context: *mut ibv_context,
    pub channel: *mut ibv_comp_channel,
    pub cq_context: *mut c_void,
    pub handle: u32,
    pub cqe: c_int,
}

/// A queue pair, as far as it is read.
#[repr(C)]
#[allow(missing_docs, reason = "the manual page ibv_create_qp(3)")]
pub struct ibv_qp {
    pub context: *mut ibv_context,
    pub qp_context: *mut c_void,
    pub pd: *mut ibv_pd,
    pub send_cq: *mut ibv_cq,
    pub recv_cq: *mut ibv_cq,
    pub srq: *mut ibv_srq,
    pub handle: u32,
    pub qp_num: u32,
    pub state: u32,
    pub qp_type: u32,
}

/// Sizes of a queue pair, as asked; after its creation, as granted.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
#[allow(missing_docs, reason = "the manual page ibv_create_qp(3)")]
pub struct ibv_qp_cap {
    pub max_send_wr: u32,
    pub max_recv_wr: u32,
    pub max_send_sge: u32,
    pub max_recv_sge: u32,
    pub max_inline_data: u32,
}

/// What is asked of `ibv_create_qp`.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
#[allow(missing_docs, reason = "the manual page ibv_create_qp(3)")]
pub struct ibv_qp_init_attr {
    pub qp_context: *mut c_void,
    pub send_cq: *mut ibv_cq,
    pub recv_cq: *mut ibv_cq,
    pub srq: *mut ibv_srq,
    pub cap: ibv_qp_cap,
    pub qp_type: u32,
    pub sq_sig_all: c_int,
}

/// The global part of an address.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
#[allow(missing_docs, reason = "the manual page ibv_modify_qp(3)")]
pub struct ibv_global_route {
    pub dgid: ibv_gid,
    pub flow_label: u32,
    pub sgid_index: u8,
    pub hop_limit: u8,
    pub traffic_class: u8,
}

/// An address.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
#[allow(missing_docs, reason = "the manual page ibv_modify_qp(3)")]
pub struct ibv_ah_attr {
    pub grh: ibv_global_route,
    pub dlid: u16,
    pub sl: u8,
    pub src_path_bits: u8,
    pub static_rate: u8,
    pub is_global: u8,
    pub port_num: u8,
}

/// What `ibv_modify_qp` changes; a mask says which fields count.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
#[allow(missing_docs, reason = "the manual page ibv_modify_qp(3)")]
pub struct ibv_qp_attr {
    pub qp_state: u32,
    pub cur_qp_state: u32,
    pub path_mtu: u32,
    pub path_mig_state: u32,
    pub qkey: u32,
    pub rq_psn: u32,
    pub sq_psn: u32,
    pub dest_qp_num: u32,
    pub qp_access_flags: u32,
    pub cap: ibv_qp_cap,
    pub ah_attr: ibv_ah_attr,
    pub alt_ah_attr: ibv_ah_attr,
    pub pkey_index: u16,
    pub alt_pkey_index: u16,
    pub en_sqd_async_notify: u8,
    pub sq_draining: u8,
    pub max_rd_atomic: u8,
    pub max_dest_rd_atomic: u8,
    pub min_rnr_timer: u8,
    pub port_num: u8,
    pub timeout: u8,
    pub retry_cnt: u8,
    pub rnr_retry: u8,
    pub alt_port_num: u8,
    pub alt_timeout: u8,
    pub rate_limit: u32,
}

/// A piece of registered memory; for inline work any memory.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
#[allow(missing_docs, reason = "the manual page ibv_post_send(3)")]
pub struct ibv_sge {
    pub addr: u64,
    pub length: u32,
    pub lkey: u32,
}

/// Where a WRITE goes; padded to the size of the union in C, whose longest member is for atomics.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct ibv_send_wr_rdma {
    /// Address at the peer.
    pub remote_addr: u64,
    /// Key of the peer.
    pub rkey: u32,
    _padding: u32,
    _atomic: [u64; 2],
}

/// A request for the send queue.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
#[allow(missing_docs, reason = "the manual page ibv_post_send(3)")]
pub struct ibv_send_wr {
    pub wr_id: u64,
    pub next: *mut ibv_send_wr,
    pub sg_list: *mut ibv_sge,
    pub num_sge: c_int,
    pub opcode: u32,
    pub send_flags: u32,
    /// In network order.
    pub imm_data: u32,
    pub wr: ibv_send_wr_rdma,
    _xrc: u32,
    _bind_mw: [u64; 6],
}

/// A receive.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
#[allow(missing_docs, reason = "the manual page ibv_post_recv(3)")]
pub struct ibv_recv_wr {
    pub wr_id: u64,
    pub next: *mut ibv_recv_wr,
    pub sg_list: *mut ibv_sge,
    pub num_sge: c_int,
}

/// A completion.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
#[allow(missing_docs, reason = "the manual page ibv_poll_cq(3)")]
pub struct ibv_wc {
    pub wr_id: u64,
    pub status: u32,
    pub opcode: u32,
    pub vendor_err: u32,
    pub byte_len: u32,
    /// In network order.
    pub imm_data: u32,
    pub qp_num: u32,
    pub src_qp: u32,
    pub wc_flags: u32,
    pub pkey_index: u16,
    pub slid: u16,
    pub sl: u8,
    pub dlid_path_bits: u8,
}

/// News of a device. What `element` is depends on the type: a pointer, or a port number.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
#[allow(missing_docs, reason = "the manual page ibv_get_async_event(3)")]
pub struct ibv_async_event {
    pub element: usize,
    pub event_type: u32,
}

/// Function table of a device. Places that are not used here are only there to be passed over.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
#[allow(missing_docs, reason = "the manual pages of the functions")]
pub struct ibv_context_ops {
    _before_poll_cq: [usize; 11],
    pub poll_cq: Option<PollCq>,
    pub req_notify_cq: Option<ReqNotifyCq>,
    _before_post_send: [usize; 12],
    pub post_send: Option<PostSend>,
    pub post_recv: Option<PostRecv>,
    _after_post_recv: [usize; 5],
}

/// An open device, as far as it is read.
#[repr(C)]
#[allow(missing_docs, reason = "the manual page ibv_open_device(3)")]
pub struct ibv_context {
    pub device: *mut ibv_device,
    pub ops: ibv_context_ops,
    pub cmd_fd: c_int,
    pub async_fd: c_int,
    pub num_comp_vectors: c_int,
}
