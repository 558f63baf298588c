//! Diagnosis: why a Decline was sent (RFC 7609 appendix A.2.4; values of Linux and of its Anolis
//! variant).

/// The 32-bit reason in a Decline. Any value is legal; [`Diagnosis::name`] knows the common ones.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Diagnosis(pub u32);

macro_rules! diagnoses {
    ($($(#[$doc:meta])* $name:ident = $value:literal;)*) => {
        impl Diagnosis {
            $($(#[$doc])* pub const $name: Diagnosis = Diagnosis($value);)*

            /// Every value that has a name, in the order of the table.
            pub const NAMED: &[Diagnosis] = &[$(Diagnosis::$name),*];

            /// The name of a known value, as Linux spells it without its prefix.
            pub const fn name(self) -> Option<&'static str> {
                match self.0 {
                    $($value => Some(stringify!($name)),)*
                    _ => None,
                }
            }
        }
    };
}

diagnoses! {
    /// Out of memory.
    MEM = 0x0101_0000;
    /// No CONFIRM LINK came in time.
    TIMEOUT_CL = 0x0201_0000;
    /// No ADD LINK came in time.
    TIMEOUT_AL = 0x0202_0000;
    /// Configuration error.
    CNFERR = 0x0300_0000;
    /// The peer did not indicate SMC; normally local only.
    PEERNOSMC = 0x0301_0000;
    /// Anolis: active peer.
    ACTIVE = 0x0301_0001;
    /// IPsec is in use on the TCP connection.
    IPSEC = 0x0302_0000;
    /// No usable device of either kind.
    NOSMCDEV = 0x0303_0000;
    /// No SMC-D device.
    NOSMCDDEV = 0x0303_0001;
    /// No SMC-R device.
    NOSMCRDEV = 0x0303_0002;
    /// No ISM version 2 hardware.
    NOISM2SUPP = 0x0303_0003;
    /// The version 2 extension is missing.
    NOV2EXT = 0x0303_0004;
    /// The SMC-D version 2 extension is missing.
    NOV2DEXT = 0x0303_0005;
    /// The SEID is missing.
    NOSEID = 0x0303_0006;
    /// No SMC-D version 2 device.
    NOSMCD2DEV = 0x0303_0007;
    /// No UEID was sent.
    NOUEID = 0x0303_0008;
    /// Release mismatch.
    RELEASEERR = 0x0303_0009;
    /// Maximum of connections invalid or not the agreed one.
    MAXCONNERR = 0x0303_000a;
    /// Maximum of links invalid or not the agreed one.
    MAXLINKERR = 0x0303_000b;
    /// Anolis: vendor options are not the agreed ones.
    VENDORERR = 0x0303_000c;
    /// Anolis: link group request failed.
    ERR_REQ_LGR = 0x0303_000d;
    /// Path or version was not offered.
    MODEUNSUPP = 0x0304_0000;
    /// The peer insists on an eye catcher in its RMBEs.
    RMBE_EC = 0x0305_0000;
    /// A socket option is not supported.
    OPTUNSUPP = 0x0306_0000;
    /// Version 1: the two hosts are not in one subnet.
    DIFFPREFIX = 0x0307_0000;
    /// VLAN lookup failed.
    GETVLANERR = 0x0308_0000;
    /// VLAN registration with the ISM device failed.
    ISMVLANERR = 0x0309_0000;
    /// The link group has no active link.
    NOACTLINK = 0x030a_0000;
    /// The server's link is not in the link group.
    NOSRVLINK = 0x030b_0000;
    /// Version mismatch.
    VERSMISMAT = 0x030c_0000;
    /// The SMC-D buffer limit is reached.
    MAX_DMB = 0x030d_0000;
    /// Version 2: no route to the peer's GID.
    NOROUTE = 0x030e_0000;
    /// Version 2: the two hosts disagree on direct or indirect attachment.
    NOINDIRECT = 0x030f_0000;
    /// The two hosts disagree on the link group; sent with the sync bit, which ends the group.
    SYNCERR = 0x0400_0000;
    /// The peer declined; internal to Linux, never on the wire.
    PEERDECL = 0x0500_0000;
    /// Internal error.
    INTERR = 0x0999_0000;
    /// The rtoken table is full.
    ERR_RTOK = 0x0999_0001;
    /// The queue pair could not be made ready.
    ERR_RDYLNK = 0x0999_0002;
    /// Buffer registration or CONFIRM RKEY failed.
    ERR_REGBUF = 0x0999_0003;
    /// Anolis: credits failure.
    CREDITSERR = 0x0999_0004;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_found_and_unknown_values_have_none() {
        assert_eq!(Diagnosis::NOSMCDEV.name(), Some("NOSMCDEV"));
        assert_eq!(Diagnosis(0x0303_0009).name(), Some("RELEASEERR"));
        assert_eq!(Diagnosis(0xdead_beef).name(), None);
    }

    #[test]
    fn no_value_stands_twice_in_the_table() {
        let mut values: std::vec::Vec<_> = Diagnosis::NAMED.to_vec();
        values.sort();
        values.dedup();
        assert_eq!(values.len(), Diagnosis::NAMED.len());
    }
}
