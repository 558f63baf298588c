//! Device personalities: what a soft device pretends to be, and how it treats inline sizes.
//!
//! The rules follow what callers of real adapters ran into: some refuse, with different error numbers,
//! some grant more than asked, some trade depth against size, some take none.

use core::fmt;
use core::str::FromStr;

use crate::{Errno, QpCaps};

/// What a soft device pretends to be.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Personality {
    /// No particular maker; 256 B inline.
    #[default]
    Generic,
    /// Like an adapter of the mlx5 family: work queue entries are powers of two of at most 1,024 B, of
    /// which 36 B are not payload, and the whole queue has a budget; grants what the entry has.
    Mlx5Like,
    /// Like the first irdma generation (X722): 48 B.
    IrdmaGen1,
    /// Like the second (E810): 101 B.
    IrdmaGen2,
    /// Like the third: 216 B.
    IrdmaGen3,
    /// Like erdma: 96 B.
    Erdma,
    /// A device without inline data.
    None,
    /// Ignores what is asked and grants this many bytes (at most [`INLINE_BYTES_MAX`]).
    AcceptsAllGives(u32),
    /// Depth and inline size share a budget: a send queue whose entries of inline size plus 64 B need
    /// more than this many bytes together is refused with ENOMEM; else what is asked is granted (at most
    /// [`INLINE_BYTES_MAX`]).
    Budget(u32),
}

/// Largest inline size any personality grants, bytes.
pub const INLINE_BYTES_MAX: u32 = 4096;

/// Part of an entry that is not payload, for a personality with a budget.
const BUDGET_ENTRY_OVERHEAD: u64 = 64;
/// Largest work queue entry of the mlx5-like personality, bytes.
const MLX5_ENTRY_BYTES_MAX: u32 = 1024;
/// Part of such an entry that is not payload: control 16, remote address 16, inline header 4.
const MLX5_ENTRY_OVERHEAD: u32 = 36;
/// All entries of a send queue together: 32,768 basic blocks of 64 B.
const MLX5_QUEUE_BYTES_MAX: u64 = 32_768 * 64;

/// Why a personality refuses an inline size.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Refusal {
    pub(crate) errno: Errno,
    pub(crate) hint: String,
}

impl Personality {
    /// Every personality without a parameter, in the order of the documentation.
    pub const NAMED: [Personality; 7] = [
        Personality::Generic,
        Personality::Mlx5Like,
        Personality::IrdmaGen1,
        Personality::IrdmaGen2,
        Personality::IrdmaGen3,
        Personality::Erdma,
        Personality::None,
    ];

    /// IEEE OUI reported as vendor id (PCI vendor for makers that report that), 24 bits.
    pub fn vendor_id(self) -> u32 {
        match self {
            Personality::Generic
            | Personality::None
            | Personality::AcceptsAllGives(_)
            | Personality::Budget(_) => 0xff_ffff,
            Personality::Mlx5Like => 0x02c9,
            Personality::IrdmaGen1 | Personality::IrdmaGen2 | Personality::IrdmaGen3 => 0x8086,
            Personality::Erdma => 0x1ded,
        }
    }

    /// Part number reported.
    pub fn vendor_part_id(self) -> u32 {
        match self {
            Personality::Generic
            | Personality::None
            | Personality::AcceptsAllGives(_)
            | Personality::Budget(_) => 0,
            Personality::Mlx5Like => 0x1017,
            Personality::IrdmaGen1 => 0x37d2,
            Personality::IrdmaGen2 => 0x1592,
            Personality::IrdmaGen3 => 0x1452,
            Personality::Erdma => 0x107f,
        }
    }

    /// Inline size granted for `asked`, or how the device refuses.
    pub(crate) fn grant_inline(self, asked: &QpCaps) -> Result<u32, Refusal> {
        let at_most = |limit: u32| fits(asked.inline_bytes, limit).map(|()| limit);
        match self {
            Personality::Generic => at_most(256),
            Personality::Mlx5Like => mlx5_inline(asked),
            Personality::IrdmaGen1 => at_most(48),
            Personality::IrdmaGen2 => at_most(101),
            Personality::IrdmaGen3 => at_most(216),
            Personality::Erdma => at_most(96),
            Personality::None => at_most(0),
            Personality::AcceptsAllGives(bytes) => Ok(bytes.min(INLINE_BYTES_MAX)),
            Personality::Budget(bytes) => {
                fits(asked.inline_bytes, INLINE_BYTES_MAX)?;
                budget_inline(asked, bytes)
            }
        }
    }
}

/// Refuses an inline size over a fixed limit.
fn fits(wanted: u32, limit: u32) -> Result<(), Refusal> {
    if wanted <= limit {
        return Ok(());
    }
    let hint = format!("{wanted} B inline asked, this device has at most {limit}");
    Err(Refusal {
        errno: Errno::INVAL,
        hint,
    })
}

fn budget_inline(asked: &QpCaps, budget_bytes: u32) -> Result<u32, Refusal> {
    let entry_bytes = u64::from(asked.inline_bytes) + BUDGET_ENTRY_OVERHEAD;
    let queue_bytes = entry_bytes * u64::from(asked.send_wr);
    if queue_bytes <= u64::from(budget_bytes) {
        return Ok(asked.inline_bytes);
    }
    let hint = format!(
        "{} entries of {entry_bytes} B need {queue_bytes} B, a send queue has {budget_bytes}: ask for \
         less inline or less depth",
        asked.send_wr
    );
    Err(Refusal {
        errno: Errno::NOMEM,
        hint,
    })
}

fn mlx5_inline(asked: &QpCaps) -> Result<u32, Refusal> {
    let wanted = u64::from(asked.inline_bytes) + u64::from(MLX5_ENTRY_OVERHEAD);
    let entry_bytes = wanted.next_power_of_two().max(64);
    if entry_bytes > u64::from(MLX5_ENTRY_BYTES_MAX) {
        let limit = MLX5_ENTRY_BYTES_MAX - MLX5_ENTRY_OVERHEAD;
        let hint = format!(
            "{} B inline asked, an entry holds {limit}",
            asked.inline_bytes
        );
        return Err(Refusal {
            errno: Errno::INVAL,
            hint,
        });
    }
    let queue_bytes = entry_bytes * u64::from(asked.send_wr).next_power_of_two();
    if queue_bytes > MLX5_QUEUE_BYTES_MAX {
        let hint = format!(
            "{} entries of {entry_bytes} B need {queue_bytes} B, a send queue has \
             {MLX5_QUEUE_BYTES_MAX}: ask for less inline or less depth",
            asked.send_wr
        );
        return Err(Refusal {
            errno: Errno::NOMEM,
            hint,
        });
    }
    Ok(entry_bytes as u32 - MLX5_ENTRY_OVERHEAD)
}

impl fmt::Display for Personality {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Personality::Generic => "generic",
            Personality::Mlx5Like => "mlx5",
            Personality::IrdmaGen1 => "irdma-gen1",
            Personality::IrdmaGen2 => "irdma-gen2",
            Personality::IrdmaGen3 => "irdma-gen3",
            Personality::Erdma => "erdma",
            Personality::None => "none",
            Personality::AcceptsAllGives(bytes) => return write!(f, "gives-{bytes}"),
            Personality::Budget(bytes) => return write!(f, "budget-{bytes}"),
        })
    }
}

/// A name that is no personality.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "\"{0}\" is no device personality: use generic, mlx5, irdma-gen1, irdma-gen2, irdma-gen3, erdma, \
     none, gives-N with N from 0 to {INLINE_BYTES_MAX}, or budget-N with N up to 4294967295"
)]
pub struct UnknownPersonality(pub String);

impl FromStr for Personality {
    type Err = UnknownPersonality;

    fn from_str(name: &str) -> Result<Self, Self::Err> {
        if let Some(personality) = Self::NAMED.into_iter().find(|p| p.to_string() == name) {
            return Ok(personality);
        }
        let number = |prefix| {
            let digits = name.strip_prefix(prefix)?;
            // A sign would parse, and print back as another name.
            let plain = digits.bytes().all(|byte| byte.is_ascii_digit());
            plain.then(|| digits.parse::<u32>().ok()).flatten()
        };
        let gives = number("gives-").filter(|bytes| *bytes <= INLINE_BYTES_MAX);
        gives
            .map(Personality::AcceptsAllGives)
            .or_else(|| number("budget-").map(Personality::Budget))
            .ok_or_else(|| UnknownPersonality(name.to_owned()))
    }
}

#[cfg(test)]
mod tests {
    use super::{INLINE_BYTES_MAX, Personality};
    use crate::{Errno, QpCaps};

    fn asked(send_wr: u32, inline_bytes: u32) -> QpCaps {
        QpCaps {
            send_wr,
            recv_wr: 64,
            send_sge: 2,
            recv_sge: 1,
            inline_bytes,
        }
    }

    #[test]
    fn fixed_limits_are_inclusive_and_refuse_with_einval_above() {
        let table = [
            (Personality::Generic, 256),
            (Personality::IrdmaGen1, 48),
            (Personality::IrdmaGen2, 101),
            (Personality::IrdmaGen3, 216),
            (Personality::Erdma, 96),
            (Personality::None, 0),
        ];
        for (personality, limit) in table {
            assert_eq!(personality.grant_inline(&asked(48, limit)), Ok(limit));
            assert_eq!(personality.grant_inline(&asked(48, 0)), Ok(limit));
            let refusal = personality.grant_inline(&asked(48, limit + 1)).unwrap_err();
            assert_eq!(refusal.errno, Errno::INVAL, "{personality}");
        }
    }

    #[test]
    fn mlx5_like_grants_what_its_entry_holds_and_trades_depth_for_size() {
        let grant = |depth, inline| Personality::Mlx5Like.grant_inline(&asked(depth, inline));
        assert_eq!(grant(48, 0), Ok(28));
        assert_eq!(grant(48, 28), Ok(28));
        assert_eq!(grant(48, 29), Ok(92));
        assert_eq!(grant(48, 220), Ok(220));
        assert_eq!(grant(48, 988), Ok(988));
        assert_eq!(grant(48, 989).unwrap_err().errno, Errno::INVAL);
        assert_eq!(grant(2048, 988), Ok(988));
        assert_eq!(grant(2049, 988).unwrap_err().errno, Errno::NOMEM);
        assert_eq!(grant(2049, 476), Ok(476));
    }

    #[test]
    fn a_budget_is_shared_by_depth_and_size_and_refuses_with_enomem_above() {
        let grant =
            |depth, inline| Personality::Budget(8192 * 96).grant_inline(&asked(depth, inline));
        assert_eq!(grant(8192, 32), Ok(32));
        let refusal = grant(8192, 33).unwrap_err();
        assert_eq!(refusal.errno, Errno::NOMEM);
        assert!(refusal.hint.contains("786432"), "{}", refusal.hint);
        assert_eq!(grant(2457, 256), Ok(256));
        assert_eq!(grant(2458, 256).unwrap_err().errno, Errno::NOMEM);
        assert_eq!(grant(12_288, 0), Ok(0));
        assert_eq!(grant(12_289, 0).unwrap_err().errno, Errno::NOMEM);
        let wide = Personality::Budget(u32::MAX);
        assert_eq!(wide.grant_inline(&asked(48, 4096)), Ok(4096));
        let refusal = wide.grant_inline(&asked(48, 4097)).unwrap_err();
        assert_eq!(refusal.errno, Errno::INVAL);
    }

    #[test]
    fn accepts_all_gives_its_own_size() {
        assert_eq!(
            Personality::AcceptsAllGives(17).grant_inline(&asked(48, 4000)),
            Ok(17)
        );
        assert_eq!(
            Personality::AcceptsAllGives(u32::MAX).grant_inline(&asked(48, 0)),
            Ok(INLINE_BYTES_MAX)
        );
    }

    #[test]
    fn names_parse_back_and_unknown_names_are_refused_with_the_list() {
        for personality in Personality::NAMED {
            assert_eq!(personality.to_string().parse(), Ok(personality));
        }
        assert_eq!("gives-33".parse(), Ok(Personality::AcceptsAllGives(33)));
        assert_eq!("budget-81920".parse(), Ok(Personality::Budget(81920)));
        assert_eq!(Personality::Budget(7).to_string(), "budget-7");
        let refusal = "mlx6".parse::<Personality>().unwrap_err().to_string();
        assert!(
            refusal.contains("\"mlx6\"") && refusal.contains("irdma-gen2"),
            "{refusal}"
        );
        for name in [
            "gives-5000",
            "gives-+5",
            "gives-",
            "budget-4294967296",
            "budget-x",
        ] {
            assert!(name.parse::<Personality>().is_err(), "{name}");
        }
    }
}
