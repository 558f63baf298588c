//! A liar's messages: cursors out of the ring, wrong tokens, numbers that repeat or go back, garbage.

use pollux_provider::QpIndex;
use pollux_wire::cdc::{self, CDC_BYTES};

use super::Adapter;
use crate::book::lock;
use crate::numbers::Numbers;

/// Longest lie: what a receive slot of the peer holds, and what goes inline.
const LIE_BYTES_MAX: u64 = 128;

impl Adapter {
    /// What is sent instead of `message`, if this is a liar and it feels like it.
    pub(super) fn lie(&mut self, qp: QpIndex, message: &[u8]) -> Option<Vec<u8>> {
        let may = self.lies && self.is_faulty() && self.numbers.chance(self.faults.lie_chance);
        let room = self.qp(qp).map_or(0, |book| book.inline_bytes) as usize;
        if !may || message.len() > room {
            return None;
        }
        let lie = alter(&mut self.numbers, message);
        if lie.len() > room {
            return None;
        }
        lock(&self.book).fault("lie", self.stack, || format!("{lie:02x?}"));
        Some(lie)
    }
}

fn alter(numbers: &mut Numbers, message: &[u8]) -> Vec<u8> {
    let mut lie = message.to_vec();
    match cdc::Repr::parse(message) {
        Ok(repr) if !numbers.chance(200_000) => {
            let mut bytes = [0; CDC_BYTES];
            alter_cdc(numbers, repr).emit(&mut bytes);
            lie = bytes.to_vec();
        }
        Ok(_) | Err(_) => match numbers.below(4) {
            0 => lie.truncate(numbers.below(message.len() as u64 + 1) as usize),
            1 => {
                let len = numbers.between(0, LIE_BYTES_MAX);
                lie = (0..len).map(|_| numbers.word() as u8).collect();
            }
            2 => {
                // Any LLC type with whatever behind it.
                let len = numbers.pick(&[44, 44, 43, 72, 96]);
                lie = (0..len).map(|_| numbers.below(4) as u8).collect();
                lie[0] = numbers.word() as u8;
                lie[1] = len;
            }
            _ => {
                for _ in 0..=numbers.below(3) {
                    let at = numbers.below(lie.len().max(1) as u64) as usize;
                    if let Some(byte) = lie.get_mut(at) {
                        *byte = numbers.word() as u8;
                    }
                }
            }
        },
    }
    lie
}

/// A CDC message with one thing wrong.
fn alter_cdc(numbers: &mut Numbers, honest: cdc::Repr) -> cdc::Repr {
    let mut lie = honest;
    let small = numbers.between(1, 70) as u32;
    let any = numbers.word() as u32;
    match numbers.below(12) {
        0 => lie.producer.count = honest.producer.count.saturating_add(small),
        1 => lie.producer.count = honest.producer.count.saturating_sub(small),
        2 => lie.producer.count = any,
        3 => lie.producer.wrap = honest.producer.wrap.saturating_add(small as u16),
        4 => lie.consumer.count = honest.consumer.count.saturating_add(small),
        5 => lie.consumer.wrap = any as u16,
        6 => lie.token = any,
        7 => lie.token = honest.token.saturating_add(numbers.pick(&[1, 1 << 16])),
        8 => lie.seq = honest.seq.saturating_sub(small as u16),
        9 => lie.producer_flags = cdc::ProducerFlags(any as u8),
        10 => lie.state_flags = cdc::ConnStateFlags(any as u8),
        _ => lie.credits = any as u8,
    }
    lie
}
