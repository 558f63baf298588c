//! The calls of bpf(2) that are needed. Structs are those of the kernel's `union bpf_attr`, as far as
//! they are used; what is left off is zero to it.

use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};

use rustix::io::Errno;

use crate::assembler::Instruction;

const MAP_CREATE: libc::c_long = 0;
const MAP_LOOKUP_ELEM: libc::c_long = 1;
const MAP_UPDATE_ELEM: libc::c_long = 2;
const PROG_LOAD: libc::c_long = 5;
const BTF_LOAD: libc::c_long = 18;
const LINK_CREATE: libc::c_long = 28;

const PROGRAM_SOCKOPS: u32 = 13;
const ATTACH_CGROUP_SOCKOPS: u32 = 3;
const MAP_SOCKET_STORAGE: u32 = 24;
/// Demanded of such a map.
const NO_PREALLOCATION: u32 = 1;
/// A socket that is accepted begins with the number of its listener.
const INHERITED: u32 = 1 << 9;
/// Bytes of a key and of a value: a descriptor, and a mark.
const WORD_BYTES: u32 = 4;
/// Told to the kernel: functions of its own are for those only who say that they share. The program is
/// under the project's licence and under this one.
const LICENCE: &[u8] = b"Dual MIT/GPL\0";
const NAME: [u8; 16] = *b"pollux_smc_opt\0\0";
/// Room for what the verifier prints.
const LOG_BYTES: usize = 64 << 10;

/// Attributes of a command, without padding.
trait Attributes {
    const COMMAND: libc::c_long;
}

#[repr(C)]
struct LoadBtf {
    btf: u64,
    log: u64,
    btf_bytes: u32,
    log_bytes: u32,
    log_level: u32,
    padding: u32,
}

impl Attributes for LoadBtf {
    const COMMAND: libc::c_long = BTF_LOAD;
}

#[repr(C)]
struct CreateMap {
    kind: u32,
    key_bytes: u32,
    value_bytes: u32,
    entries_max: u32,
    flags: u32,
    inner_map: u32,
    numa_node: u32,
    name: [u8; 16],
    interface: u32,
    btf: RawFd,
    btf_key: u32,
    btf_value: u32,
}

impl Attributes for CreateMap {
    const COMMAND: libc::c_long = MAP_CREATE;
}

#[repr(C)]
struct LoadProgram {
    kind: u32,
    instructions: u32,
    text: u64,
    licence: u64,
    log_level: u32,
    log_bytes: u32,
    log: u64,
    kernel_version: u32,
    flags: u32,
    name: [u8; 16],
    interface: u32,
    attach_type: u32,
}

impl Attributes for LoadProgram {
    const COMMAND: libc::c_long = PROG_LOAD;
}

#[repr(C)]
struct CreateLink {
    program: RawFd,
    target: RawFd,
    attach_type: u32,
    flags: u32,
}

impl Attributes for CreateLink {
    const COMMAND: libc::c_long = LINK_CREATE;
}

/// Of a look-up and of an update, which is why there is a type for each.
#[repr(C)]
struct Element {
    map: RawFd,
    padding: u32,
    key: u64,
    value: u64,
    flags: u64,
}

#[repr(transparent)]
struct Lookup(Element);

impl Attributes for Lookup {
    const COMMAND: libc::c_long = MAP_LOOKUP_ELEM;
}

#[repr(transparent)]
struct Update(Element);

impl Attributes for Update {
    const COMMAND: libc::c_long = MAP_UPDATE_ELEM;
}

/// Runs a command.
///
/// # Safety
/// Addresses in the attributes point to memory of the length that the command expects there, and which
/// it may read, or write where it returns something.
unsafe fn call<A: Attributes>(attributes: &A) -> Result<RawFd, Errno> {
    let address = std::ptr::from_ref(attributes);
    // SAFETY: the attributes live through the call, and what they point to does by the contract.
    let result = unsafe { libc::syscall(libc::SYS_bpf, A::COMMAND, address, size_of::<A>()) };
    match RawFd::try_from(result) {
        Ok(descriptor @ 0..) => Ok(descriptor),
        Ok(_) | Err(_) => {
            Err(Errno::from_io_error(&std::io::Error::last_os_error()).unwrap_or(Errno::INVAL))
        }
    }
}

/// As [`call`], for commands that return a descriptor.
///
/// # Safety
/// As for [`call`].
unsafe fn open<A: Attributes>(attributes: &A) -> Result<OwnedFd, Errno> {
    // SAFETY: by the contract of this function.
    let descriptor = unsafe { call(attributes) }?;
    // SAFETY: the kernel has just made it for the caller, closed on exec.
    Ok(unsafe { OwnedFd::from_raw_fd(descriptor) })
}

fn address<T>(of: &[T]) -> u64 {
    of.as_ptr().expose_provenance() as u64
}

/// Hands in a description of types.
pub(crate) fn load_btf(btf: &[u8]) -> Result<OwnedFd, Errno> {
    let attributes = LoadBtf {
        btf: address(btf),
        log: 0,
        btf_bytes: btf.len() as u32,
        log_bytes: 0,
        log_level: 0,
        padding: 0,
    };
    // SAFETY: the description is read, in its length.
    unsafe { open(&attributes) }
}

/// Makes a map with a number of 32 bits for each socket, described by a type of `btf`. Sockets that are
/// accepted begin with that of their listener.
pub(crate) fn create_socket_map(btf: BorrowedFd<'_>, number: u32) -> Result<OwnedFd, Errno> {
    let attributes = CreateMap {
        kind: MAP_SOCKET_STORAGE,
        key_bytes: WORD_BYTES,
        value_bytes: WORD_BYTES,
        entries_max: 0,
        flags: NO_PREALLOCATION | INHERITED,
        inner_map: 0,
        numa_node: 0,
        name: NAME,
        interface: 0,
        btf: btf.as_raw_fd(),
        btf_key: number,
        btf_value: number,
    };
    // SAFETY: there are no addresses in it.
    unsafe { open(&attributes) }
}

/// Loads a program for the moments of sockets. If the verifier does not like it, its last words come
/// with the error.
pub(crate) fn load_sockops(text: &[Instruction]) -> Result<OwnedFd, (Errno, Option<String>)> {
    let quiet = LoadProgram {
        kind: PROGRAM_SOCKOPS,
        instructions: text.len() as u32,
        text: address(text),
        licence: address(LICENCE),
        log_level: 0,
        log_bytes: 0,
        log: 0,
        kernel_version: 0,
        flags: 0,
        name: NAME,
        interface: 0,
        attach_type: ATTACH_CGROUP_SOCKOPS,
    };
    // SAFETY: instructions and licence are read, in their number and up to its end.
    let errno = match unsafe { open(&quiet) } {
        Ok(program) => return Ok(program),
        Err(errno) => errno,
    };
    let mut log = vec![0_u8; LOG_BYTES];
    let talkative = LoadProgram {
        log_level: 1,
        log_bytes: LOG_BYTES as u32,
        log: log.as_mut_ptr().expose_provenance() as u64,
        ..quiet
    };
    // SAFETY: as before; the log is written within its length.
    let again = unsafe { open(&talkative) };
    let mut lines = log.split(|byte| matches!(byte, 0 | b'\n'));
    // The last line but its statistics says why.
    let why = lines.rfind(|line| !line.is_empty() && !line.starts_with(b"processed "));
    let why = why.map(|line| String::from_utf8_lossy(line).into_owned());
    again.map_err(|_| (errno, why))
}

/// Attaches a program to a cgroup until the link is closed.
pub(crate) fn link_sockops(
    program: BorrowedFd<'_>,
    cgroup: BorrowedFd<'_>,
) -> Result<OwnedFd, Errno> {
    let attributes = CreateLink {
        program: program.as_raw_fd(),
        target: cgroup.as_raw_fd(),
        attach_type: ATTACH_CGROUP_SOCKOPS,
        flags: 0,
    };
    // SAFETY: there are no addresses in it.
    unsafe { open(&attributes) }
}

fn element(map: BorrowedFd<'_>, key: &[RawFd; 1], value: u64) -> Element {
    Element {
        map: map.as_raw_fd(),
        padding: 0,
        key: address(key),
        value,
        flags: 0,
    }
}

/// Sets the number of a socket.
pub(crate) fn set(map: BorrowedFd<'_>, socket: BorrowedFd<'_>, number: u32) -> Result<(), Errno> {
    let key = [socket.as_raw_fd()];
    let number = [number];
    let attributes = Update(element(map, &key, address(&number)));
    // SAFETY: key and value are read, four bytes each, and live until the end of this function.
    unsafe { call(&attributes) }.map(drop)
}

/// The number of a socket.
pub(crate) fn get(map: BorrowedFd<'_>, socket: BorrowedFd<'_>) -> Result<u32, Errno> {
    let (key, mut number) = ([socket.as_raw_fd()], [0_u32]);
    let value = number.as_mut_ptr().expose_provenance() as u64;
    let attributes = Lookup(element(map, &key, value));
    // SAFETY: the key is read and the value is written, four bytes each; both live until the end.
    unsafe { call(&attributes) }?;
    Ok(number[0])
}
