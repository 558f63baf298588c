//! A description of types for the kernel (BTF): the map of marks has to have one.

/// The number of the only type, a signed integer of 32 bits.
pub(crate) const INT: u32 = 1;

/// The types, as the kernel takes them: a header, `int`, and its name.
pub(crate) fn int() -> Vec<u8> {
    const NAMES: &[u8] = b"\0int\0";
    const KIND_INT: u32 = 1 << 24;
    const BYTES: u32 = 4;
    let of_type = [1, KIND_INT, BYTES, 8 * BYTES];
    let (header_bytes, type_bytes) = (24, 4 * of_type.len() as u32);
    let mut blob = Vec::new();
    // Magic number, version and flags.
    blob.extend(0xeb9f_u16.to_ne_bytes());
    blob.extend([1, 0]);
    // Lengths, and offsets from the end of the header.
    for number in [header_bytes, 0, type_bytes, type_bytes, NAMES.len() as u32] {
        blob.extend(number.to_ne_bytes());
    }
    for number in of_type {
        blob.extend(number.to_ne_bytes());
    }
    blob.extend(NAMES);
    blob
}
