//! Types of the functions in the table of a device. Calling one is unsafe; nothing here does.

use core::ffi::c_int;

use crate::types::{ibv_cq, ibv_qp, ibv_recv_wr, ibv_send_wr, ibv_wc};

/// `ibv_post_send` of a device.
pub type PostSend = unsafe extern "C" fn(
    qp: *mut ibv_qp,
    wr: *mut ibv_send_wr,
    bad_wr: *mut *mut ibv_send_wr,
) -> c_int;
/// `ibv_post_recv` of a device.
pub type PostRecv = unsafe extern "C" fn(
    qp: *mut ibv_qp,
    wr: *mut ibv_recv_wr,
    bad_wr: *mut *mut ibv_recv_wr,
) -> c_int;
/// `ibv_poll_cq` of a device.
pub type PollCq =
    unsafe extern "C" fn(cq: *mut ibv_cq, num_entries: c_int, wc: *mut ibv_wc) -> c_int;
/// `ibv_req_notify_cq` of a device.
pub type ReqNotifyCq = unsafe extern "C" fn(cq: *mut ibv_cq, solicited_only: c_int) -> c_int;
