//! Structs whose bytes are all zero.

use core::mem::MaybeUninit;

use crate::types::{
    ibv_ah_attr, ibv_async_event, ibv_device_attr, ibv_gid_entry, ibv_global_route, ibv_port_attr,
    ibv_qp_attr, ibv_qp_cap, ibv_qp_init_attr, ibv_recv_wr, ibv_send_wr, ibv_sge, ibv_wc,
};

/// A struct for which all bytes zero is a value.
///
/// # Safety
///
/// Every field is an integer, an array of integers, a raw pointer, or again such a struct.
pub unsafe trait Zeroable: Sized {}

macro_rules! zeroable {
    ($($name:ty),+ $(,)?) => {
        $(
            // SAFETY: integers, arrays of integers, raw pointers and structs of this list only; see
            // its definition.
            unsafe impl Zeroable for $name {}
        )+
    };
}

zeroable!(
    ibv_ah_attr,
    ibv_async_event,
    ibv_device_attr,
    ibv_gid_entry,
    ibv_global_route,
    ibv_port_attr,
    ibv_qp_attr,
    ibv_qp_cap,
    ibv_qp_init_attr,
    ibv_recv_wr,
    ibv_send_wr,
    ibv_sge,
    ibv_wc,
);

/// The struct with all bytes zero, padding too.
#[inline]
pub fn zeroed<T: Zeroable>() -> T {
    let value = MaybeUninit::<T>::zeroed();
    // SAFETY: all bytes are zero, and that is a value, as the trait says.
    unsafe { value.assume_init() }
}
