//! What every driver checks by itself, before it asks an adapter: arguments of the contract.

use crate::{
    DeviceLimits, ModifyError, Piece, PostError, QpCaps, QpState, Region, RegisterError, RtrAttr,
    RtsAttr, rnr_timer_ns,
};

/// Whether a path MTU of so many bytes exists.
pub(crate) fn is_mtu(bytes: u32) -> bool {
    bytes.is_power_of_two() && (256..=4096).contains(&bytes)
}

/// Whether a device has these sizes; the inline size is not looked at. Says what is wrong.
pub(crate) fn check_sizes(asked: &QpCaps, limits: &DeviceLimits) -> Result<(), String> {
    let sizes = [
        ("sends", asked.send_wr, limits.send_wr_max),
        ("receives", asked.recv_wr, limits.recv_wr_max),
        ("pieces per send", asked.send_sge, limits.send_sge_max),
        ("pieces per receive", asked.recv_sge, limits.recv_sge_max),
    ];
    for (what, size, limit) in sizes {
        if size == 0 || size > limit {
            return Err(format!("{size} {what} asked, 1 to {limit} are possible"));
        }
    }
    Ok(())
}

/// Whether a registration lies in its region.
pub(crate) fn check_span(region: &Region, offset: usize, len: usize) -> Result<(), RegisterError> {
    let region_bytes = region.len();
    if len == 0 || offset > region_bytes || len > region_bytes - offset {
        return Err(RegisterError::OutOfRegion {
            offset,
            len,
            region_bytes,
        });
    }
    Ok(())
}

/// Whether a queue pair in this state takes a send beside those that it has.
#[inline(always)]
pub(crate) fn may_send(state: QpState, queued: usize, caps: &QpCaps) -> Result<(), PostError> {
    match state {
        QpState::Rts => {}
        QpState::Reset | QpState::Init | QpState::Rtr | QpState::Error => {
            return Err(PostError::WrongState(state));
        }
    }
    if queued >= caps.send_wr as usize {
        return Err(PostError::SendQueueFull);
    }
    Ok(())
}

/// Whether a send may have so many pieces.
#[inline(always)]
pub(crate) fn check_count(pieces: usize, caps: &QpCaps) -> Result<(), PostError> {
    let limit = caps.send_sge;
    if pieces > limit as usize {
        return Err(PostError::TooManySges { pieces, limit });
    }
    Ok(())
}

/// Whether so many bytes may go inline.
#[inline(always)]
pub(crate) fn check_inline(bytes: u64, caps: &QpCaps) -> Result<(), PostError> {
    let limit = caps.inline_bytes;
    if bytes > u64::from(limit) {
        return Err(PostError::InlineTooLong { bytes, limit });
    }
    Ok(())
}

/// Whether an inline piece lies in its memory.
#[inline(always)]
pub(crate) fn check_bounds(piece: &Piece<'_>) -> Result<(), PostError> {
    let &Piece {
        region,
        offset,
        length,
    } = piece;
    let region_bytes = region.len();
    if offset > region_bytes || length as usize > region_bytes - offset {
        return Err(PostError::PieceOutOfBounds {
            offset,
            length,
            region_bytes,
        });
    }
    Ok(())
}

/// Whether the attributes of INIT -> RTR exist.
pub(crate) fn check_rtr(qpn: u32, attr: &RtrAttr) -> Result<(), ModifyError> {
    let bad = |name, value, allowed| {
        Err(ModifyError::BadAttribute {
            qpn,
            name,
            value: u64::from(value),
            allowed,
        })
    };
    if !is_mtu(attr.path_mtu) {
        return bad("path_mtu", attr.path_mtu, "256, 512, 1024, 2048 or 4096");
    }
    if attr.peer_qpn > 0xff_ffff {
        return bad("peer_qpn", attr.peer_qpn, "24 bits");
    }
    if attr.rq_psn > 0xff_ffff {
        return bad("rq_psn", attr.rq_psn, "24 bits");
    }
    if rnr_timer_ns(attr.min_rnr_timer).is_none() {
        return bad("min_rnr_timer", u32::from(attr.min_rnr_timer), "0 to 31");
    }
    Ok(())
}

/// Whether the attributes of RTR -> RTS exist.
pub(crate) fn check_rts(qpn: u32, attr: &RtsAttr) -> Result<(), ModifyError> {
    let bad = |name, value, allowed| {
        Err(ModifyError::BadAttribute {
            qpn,
            name,
            value: u64::from(value),
            allowed,
        })
    };
    if attr.sq_psn > 0xff_ffff {
        return bad("sq_psn", attr.sq_psn, "24 bits");
    }
    if attr.timeout > 31 {
        return bad("timeout", u32::from(attr.timeout), "0 to 31");
    }
    if attr.retry_count > 7 {
        return bad("retry_count", u32::from(attr.retry_count), "0 to 7");
    }
    if attr.rnr_retry > 7 {
        return bad("rnr_retry", u32::from(attr.rnr_retry), "0 to 7");
    }
    Ok(())
}
