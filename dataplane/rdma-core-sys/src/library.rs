//! Opening libibverbs and finding its symbols.

use core::ffi::{CStr, c_char, c_int, c_void};

use crate::types::{
    ibv_async_event, ibv_comp_channel, ibv_context, ibv_cq, ibv_device, ibv_device_attr,
    ibv_gid_entry, ibv_mr, ibv_pd, ibv_port_attr, ibv_qp, ibv_qp_attr, ibv_qp_init_attr,
};

/// Name of the library, with the major version that the structs here belong to.
const LIBRARY: &CStr = c"libibverbs.so.1";

/// Why the library cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum LoadError {
    /// The library cannot be opened; most often it is not installed.
    #[error(
        "verbs library not found ({cause}): install rdma-core's libibverbs \
         (Debian: libibverbs1 and ibverbs-providers; Fedora: libibverbs)"
    )]
    NotFound {
        /// What the loader says.
        cause: String,
    },
    /// The library lacks a function.
    #[error(
        "the verbs library libibverbs.so.1 has no {symbol} of version {version} ({cause}): \
         it is older than rdma-core {since}, install a newer one"
    )]
    NoSymbol {
        /// Function.
        symbol: &'static str,
        /// Symbol version.
        version: &'static str,
        /// Release of rdma-core that has it first.
        since: &'static str,
        /// What the loader says.
        cause: String,
    },
}

/// A release of rdma-core by the symbol version that it brought.
struct Version {
    name: &'static CStr,
    text: &'static str,
    since: &'static str,
}

const V1_0: Version = Version {
    name: c"IBVERBS_1.0",
    text: "IBVERBS_1.0",
    since: "1",
};
const V1_1: Version = Version {
    name: c"IBVERBS_1.1",
    text: "IBVERBS_1.1",
    since: "1",
};
const V1_11: Version = Version {
    name: c"IBVERBS_1.11",
    text: "IBVERBS_1.11",
    since: "32",
};

/// The symbol versions that a [`Library`] has functions of.
pub const SYMBOL_VERSIONS: [&str; 3] = [V1_0.text, V1_1.text, V1_11.text];

/// Declares [`Library`]: for each function its symbol version and its type.
macro_rules! library {
    ($($(#[$doc:meta])* $version:ident $name:ident: fn($($arg:ty),*) -> $result:ty;)+) => {
        /// The functions of libibverbs that are not in the function table of a device.
        ///
        /// Calling one is unsafe: its manual page says what has to hold.
        #[derive(Debug, Clone, Copy)]
        pub struct Library {
            $($(#[$doc])* pub $name: unsafe extern "C" fn($($arg),*) -> $result,)+
        }

        impl Library {
            /// Opens the library, for the rest of the process: drivers of adapters, which it loads, do not
            /// bear being taken out again.
            ///
            /// # Errors
            /// [`LoadError`] says what is missing.
            pub fn open() -> Result<Library, LoadError> {
                let library = open()?;
                Ok(Library {
                    $($name: {
                        let symbol = library.symbol(
                            concat!(stringify!($name), "\0"),
                            &$version,
                        )?;
                        // SAFETY: the symbol of this name and version is a function of this type: the
                        // header declares it so, and what a version means never changes.
                        unsafe {
                            core::mem::transmute::<
                                *mut c_void,
                                unsafe extern "C" fn($($arg),*) -> $result,
                            >(symbol)
                        }
                    },)+
                })
            }
        }
    };
}

library! {
    /// Makes memory survive a fork of the process.
    V1_1 ibv_fork_init: fn() -> c_int;
    /// All devices.
    V1_1 ibv_get_device_list: fn(*mut c_int) -> *mut *mut ibv_device;
    /// Gives that back.
    V1_1 ibv_free_device_list: fn(*mut *mut ibv_device) -> ();
    /// Name of a device.
    V1_1 ibv_get_device_name: fn(*mut ibv_device) -> *const c_char;
    /// Opens a device.
    V1_1 ibv_open_device: fn(*mut ibv_device) -> *mut ibv_context;
    /// Closes it.
    V1_1 ibv_close_device: fn(*mut ibv_context) -> c_int;
    /// Limits and maker.
    V1_1 ibv_query_device: fn(*mut ibv_context, *mut ibv_device_attr) -> c_int;
    /// State of a port.
    V1_1 ibv_query_port: fn(*mut ibv_context, u8, *mut ibv_port_attr) -> c_int;
    /// All valid GIDs of all ports: entries, their number, flags (0), size of one.
    V1_11 _ibv_query_gid_table: fn(*mut ibv_context, *mut ibv_gid_entry, usize, u32, usize) -> isize;
    /// Reads one event.
    V1_1 ibv_get_async_event: fn(*mut ibv_context, *mut ibv_async_event) -> c_int;
    /// Every event has to be acknowledged.
    V1_1 ibv_ack_async_event: fn(*mut ibv_async_event) -> ();
    /// Makes a protection domain.
    V1_1 ibv_alloc_pd: fn(*mut ibv_context) -> *mut ibv_pd;
    /// Destroys it.
    V1_1 ibv_dealloc_pd: fn(*mut ibv_pd) -> c_int;
    /// Registers memory.
    V1_1 ibv_reg_mr: fn(*mut ibv_pd, *mut c_void, usize, c_int) -> *mut ibv_mr;
    /// Ends a registration.
    V1_1 ibv_dereg_mr: fn(*mut ibv_mr) -> c_int;
    /// Makes a completion channel.
    V1_0 ibv_create_comp_channel: fn(*mut ibv_context) -> *mut ibv_comp_channel;
    /// Destroys it.
    V1_0 ibv_destroy_comp_channel: fn(*mut ibv_comp_channel) -> c_int;
    /// Makes a completion queue: entries, its context, its channel, its interrupt.
    V1_1 ibv_create_cq: fn(
        *mut ibv_context, c_int, *mut c_void, *mut ibv_comp_channel, c_int
    ) -> *mut ibv_cq;
    /// Destroys it, after all its events were acknowledged.
    V1_1 ibv_destroy_cq: fn(*mut ibv_cq) -> c_int;
    /// Reads one completion event.
    V1_1 ibv_get_cq_event: fn(*mut ibv_comp_channel, *mut *mut ibv_cq, *mut *mut c_void) -> c_int;
    /// Acknowledges completion events.
    V1_1 ibv_ack_cq_events: fn(*mut ibv_cq, u32) -> ();
    /// Makes a queue pair.
    V1_1 ibv_create_qp: fn(*mut ibv_pd, *mut ibv_qp_init_attr) -> *mut ibv_qp;
    /// Changes it.
    V1_1 ibv_modify_qp: fn(*mut ibv_qp, *mut ibv_qp_attr, c_int) -> c_int;
    /// Destroys it, after all its events were acknowledged.
    V1_1 ibv_destroy_qp: fn(*mut ibv_qp) -> c_int;
}

/// An open library; never closed.
struct Opened(*mut c_void);

fn open() -> Result<Opened, LoadError> {
    // SAFETY: the name ends with a zero byte. The library's initialisers run; they are those of a
    // library that is made to be loaded.
    let handle = unsafe { libc::dlopen(LIBRARY.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL) };
    if handle.is_null() {
        return Err(LoadError::NotFound { cause: cause() });
    }
    Ok(Opened(handle))
}

impl Opened {
    /// `name_z` ends with a zero byte.
    fn symbol(&self, name_z: &'static str, version: &Version) -> Result<*mut c_void, LoadError> {
        debug_assert!(name_z.ends_with('\0'));
        // SAFETY: the handle is that of an open library, and both names end with a zero byte.
        let symbol = unsafe { libc::dlvsym(self.0, name_z.as_ptr().cast(), version.name.as_ptr()) };
        if symbol.is_null() {
            return Err(LoadError::NoSymbol {
                symbol: name_z.trim_end_matches('\0'),
                version: version.text,
                since: version.since,
                cause: cause(),
            });
        }
        Ok(symbol)
    }
}

/// What the loader says about the last failure of this thread.
fn cause() -> String {
    // SAFETY: no argument; the text stays until the next call of this thread.
    let text = unsafe { libc::dlerror() };
    if text.is_null() {
        return "no reason given".to_owned();
    }
    // SAFETY: a string that ends with a zero byte, not changed before the next call.
    let text = unsafe { CStr::from_ptr(text) };
    text.to_string_lossy().into_owned()
}

#[cfg(test)]
mod tests {
    use super::{Library, LoadError, V1_0, V1_11, open};

    #[test]
    fn library_opens_or_says_what_is_missing() {
        match Library::open() {
            Ok(library) => {
                let again = Library::open().expect("it was there a moment ago");
                assert!(core::ptr::fn_addr_eq(
                    library.ibv_create_qp,
                    again.ibv_create_qp
                ));
            }
            Err(LoadError::NotFound { cause }) => assert!(cause.contains("libibverbs.so.1")),
            Err(error @ LoadError::NoSymbol { .. }) => {
                assert!(error.to_string().contains("rdma-core"), "{error}");
            }
        }
    }

    #[test]
    fn missing_symbol_is_named_with_its_version_and_release() {
        let Ok(library) = open() else {
            eprintln!("skipped: libibverbs.so.1 is not installed");
            return;
        };
        let refusal = library.symbol("ibv_make_coffee\0", &V1_11);
        let text = refusal.expect_err("there is no such function").to_string();
        for part in ["ibv_make_coffee of", "IBVERBS_1.11", "rdma-core 32"] {
            assert!(text.contains(part), "{part}: {text}");
        }
        let other_version = library.symbol("_ibv_query_gid_table\0", &V1_0);
        assert!(other_version.is_err(), "the version counts");
    }
}
