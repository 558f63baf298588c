//! Requests that wait for their doorbell.

use std::ptr;

use rdma_core_sys::{self as sys, ibv_send_wr, ibv_sge, zeroed};

/// A request without its bytes.
#[derive(Debug, Clone, Copy)]
pub(in super::super) struct Request {
    pub(in super::super) wr_id: u64,
    /// `IBV_WR_...`.
    pub(in super::super) opcode: u32,
    /// `IBV_SEND_...`; with `IBV_SEND_INLINE` the bytes are those at [`Chain::bytes`].
    pub(in super::super) flags: u32,
    /// In network order.
    pub(in super::super) imm_data: u32,
    pub(in super::super) remote_addr: u64,
    pub(in super::super) rkey: u32,
}

/// Places for as many requests as a send queue holds, each with room for its pieces and its inline bytes.
/// Allocated with the queue pair, filled from the front, and empty again after each doorbell: a short chain
/// always uses the same few cache lines.
pub(in super::super) struct Chain {
    requests: Box<[ibv_send_wr]>,
    sges: Box<[ibv_sge]>,
    bytes: Box<[u8]>,
    /// Pieces of one request.
    pieces: usize,
    /// Inline bytes from one request to the next.
    stride: usize,
    len: usize,
}

// SAFETY: the pointers in the requests are set and followed only inside `QueuePair::post_send`, which has the
// chain for itself; they point into its own boxes.
unsafe impl Send for Chain {}

impl std::fmt::Debug for Chain {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Chain")
            .field("len", &self.len)
            .finish_non_exhaustive()
    }
}

impl Chain {
    pub(in super::super) fn new(requests: usize, pieces: usize, inline_bytes: usize) -> Chain {
        let pieces = pieces.max(1);
        // The bytes of one request begin in a cache line of their own.
        let stride = inline_bytes.next_multiple_of(64);
        Chain {
            requests: vec![zeroed(); requests].into_boxed_slice(),
            sges: vec![zeroed(); requests * pieces].into_boxed_slice(),
            bytes: vec![0; requests * stride].into_boxed_slice(),
            pieces,
            stride,
            len: 0,
        }
    }

    pub(in super::super) fn is_empty(&self) -> bool {
        self.len == 0
    }

    pub(in super::super) fn clear(&mut self) {
        self.len = 0;
    }

    /// Where the inline bytes of the next request go; `len` is at most the inline size.
    #[inline]
    pub(in super::super) fn bytes(&mut self, len: usize) -> &mut [u8] {
        debug_assert!(len <= self.stride);
        let start = self.len * self.stride;
        &mut self.bytes[start..start + len]
    }

    /// Where the pieces of the next request go.
    #[inline]
    pub(in super::super) fn sges(&mut self) -> &mut [ibv_sge] {
        let start = self.len * self.pieces;
        &mut self.sges[start..start + self.pieces]
    }

    /// Appends the request whose pieces or inline bytes were filled in. `size` is the number of pieces, or
    /// of inline bytes.
    #[inline]
    pub(in super::super) fn push(&mut self, request: &Request, size: usize) {
        let inline = request.flags & sys::IBV_SEND_INLINE != 0;
        if inline {
            // Its address is filled in when the chain is linked.
            self.sges()[0].length = size as u32;
        }
        let place = &mut self.requests[self.len];
        place.wr_id = request.wr_id;
        place.num_sge = if inline { 1 } else { size as i32 };
        place.opcode = request.opcode;
        place.send_flags = request.flags;
        place.imm_data = request.imm_data;
        place.wr.remote_addr = request.remote_addr;
        place.wr.rkey = request.rkey;
        self.len += 1;
    }

    /// Sets all pointers and gives the first request. Good until the chain is used again.
    #[inline]
    pub(super) fn link(&mut self) -> *mut ibv_send_wr {
        let mut next = ptr::null_mut();
        for at in (0..self.len).rev() {
            let sges = &mut self.sges[at * self.pieces..(at + 1) * self.pieces];
            let request = &mut self.requests[at];
            if request.send_flags & sys::IBV_SEND_INLINE != 0 {
                sges[0].addr = self.bytes[at * self.stride..].as_ptr() as u64;
            }
            request.sg_list = sges.as_mut_ptr();
            request.next = next;
            next = &raw mut *request;
        }
        next
    }

    /// How many requests stand before this one, which the adapter refused.
    pub(super) fn index_of(&self, refused: *const ibv_send_wr) -> usize {
        let same = |request: &ibv_send_wr| ptr::eq(request, refused);
        let found = self.requests[..self.len].iter().position(same);
        // An adapter that does not say which one has taken none.
        found.unwrap_or(0)
    }
}

#[cfg(test)]
mod tests {
    use rdma_core_sys as sys;

    use super::{Chain, Request};

    fn request(wr_id: u64, flags: u32) -> Request {
        Request {
            wr_id,
            opcode: sys::IBV_WR_RDMA_WRITE,
            flags,
            imm_data: 0,
            remote_addr: 0x1000 + wr_id,
            rkey: 7,
        }
    }

    /// The requests from `first` on, by following the pointers as an adapter does.
    fn walk(chain: &mut Chain) -> Vec<(u64, Vec<(u64, u32)>)> {
        let mut at = chain.link();
        let mut seen = Vec::new();
        while !at.is_null() {
            // SAFETY: a chain that was just linked; it ends with null.
            let wr = unsafe { *at };
            // SAFETY: each request has room for at least as many pieces as it says.
            let sges = unsafe { std::slice::from_raw_parts(wr.sg_list, wr.num_sge as usize) };
            let pieces = sges.iter().map(|sge| (sge.addr, sge.length)).collect();
            seen.push((wr.wr_id, pieces));
            at = wr.next;
        }
        seen
    }

    #[test]
    fn empty_chain_is_no_pointer() {
        let mut chain = Chain::new(4, 2, 64);
        assert!(chain.is_empty() && chain.link().is_null());
    }

    #[test]
    fn requests_are_linked_in_the_order_of_their_posts_with_their_pieces() {
        let mut chain = Chain::new(4, 2, 64);
        for at in 0..3u64 {
            let sges = chain.sges();
            (sges[0].addr, sges[0].length) = (10 * at, 1);
            (sges[1].addr, sges[1].length) = (10 * at + 1, 2);
            chain.push(&request(at, 0), at as usize);
        }
        let expected = [(0, vec![]), (1, vec![(10, 1)]), (2, vec![(20, 1), (21, 2)])];
        assert_eq!(walk(&mut chain), expected);
    }

    #[test]
    fn inline_bytes_lie_where_the_piece_says() {
        let mut chain = Chain::new(4, 1, 100);
        for text in [&b"first"[..], b"second"] {
            chain.bytes(text.len()).copy_from_slice(text);
            chain.push(&request(1, sys::IBV_SEND_INLINE), text.len());
        }
        for ((_, pieces), text) in walk(&mut chain).into_iter().zip([&b"first"[..], b"second"]) {
            let (addr, length) = pieces[0];
            assert_eq!(length as usize, text.len());
            // SAFETY: the address of so many bytes in the chain, which is not touched meanwhile.
            let bytes = unsafe { std::slice::from_raw_parts(addr as *const u8, text.len()) };
            assert_eq!(bytes, text);
        }
    }

    #[test]
    fn chain_starts_again_at_its_first_place() {
        let mut chain = Chain::new(2, 1, 0);
        chain.push(&request(1, 0), 0);
        chain.push(&request(2, 0), 0);
        let first = chain.link();
        chain.clear();
        chain.push(&request(3, 0), 0);
        assert_eq!(chain.link(), first);
        assert_eq!(walk(&mut chain), [(3, vec![])]);
    }

    #[test]
    fn refused_request_is_found_and_an_unknown_one_means_none_was_taken() {
        let mut chain = Chain::new(4, 1, 0);
        (0..3).for_each(|at| chain.push(&request(at, 0), 0));
        let first = chain.link();
        // SAFETY: the chain was just linked.
        let second = unsafe { (*first).next };
        assert_eq!(chain.index_of(second), 1);
        assert_eq!(chain.index_of(std::ptr::null()), 0);
    }
}
