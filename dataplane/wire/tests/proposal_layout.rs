//! Exact arithmetic of Proposal lengths and offsets, which the kernel checks to the byte.

use pollux_wire::clc::*;
use pollux_wire::field::{Gid, Mac, PeerId, Ueid};
use pollux_wire::{Error, Field};

fn ip(prefixes: usize) -> IpArea {
    IpArea {
        ipv6: (0..prefixes).map(|_| Ipv6Prefix::default()).collect(),
        ..IpArea::default()
    }
}

fn v1(prefixes: usize) -> Option<V1Offer> {
    Some(V1Offer {
        paths: V1Paths::R,
        ip: ip(prefixes),
    })
}

fn v2(ueids: usize, ism_gids: Option<usize>) -> Option<V2Offer> {
    let paths = ism_gids.map_or(V2Paths::R, |count| {
        V2Paths::Both(IsmV2 {
            seid: [0; 32],
            gids: (0..count).map(|_| IsmGid::default()).collect(),
        })
    });
    Some(V2Offer {
        paths,
        ueids: (0..ueids).map(|_| Ueid::new("A").unwrap()).collect(),
        release: 1,
        seid: SeidUse::Unused,
        gid: Gid::ZERO,
        max_conns: 255,
        max_links: 2,
        features: 1,
    })
}

fn version_2(v1: Option<V1Offer>, v2: Option<V2Offer>) -> Proposal {
    let form = Form::V2 {
        v1,
        ism: IsmV1::default(),
        oui: Oui::NONE,
        options: VendorOptions::NONE,
        v2,
    };
    Proposal {
        peer_id: PeerId::ZERO,
        gid: Gid::ZERO,
        mac: Mac::ZERO,
        form,
    }
}

fn bytes_of(proposal: &Proposal) -> Vec<u8> {
    let mut out = [0; MESSAGE_BYTES_MAX];
    let len = proposal.emit(&mut out).unwrap();
    out[..len].to_vec()
}

fn be16(bytes: &[u8], at: usize) -> u16 {
    u16::from_be_bytes([bytes[at], bytes[at + 1]])
}

#[test]
fn lengths_and_offsets_of_version_2_headers_are_those_of_the_kernel() {
    // v1 prefixes, UEIDs, ISM GIDs -> byte 7, length, IP area offset, v2 offset, SMC-D offset
    let table = [
        (None, Some((1, None)), (0x22, 156, 0, 28, 0)),
        (None, Some((4, None)), (0x22, 252, 0, 28, 0)),
        (None, Some((8, None)), (0x22, 380, 0, 28, 0)),
        (Some(0), Some((1, None)), (0x20, 164, 40, 36, 0)),
        (Some(1), Some((1, None)), (0x20, 181, 40, 53, 0)),
        (Some(8), Some((1, None)), (0x20, 300, 40, 172, 0)),
        (Some(0), None, (0x28, 92, 40, 0, 0)),
        (Some(8), None, (0x28, 228, 40, 0, 0)),
        (None, None, (0x2a, 84, 0, 0, 0)),
        (None, Some((1, Some(0))), (0x2e, 204, 0, 28, 64)),
        (Some(0), Some((8, Some(8))), (0x2c, 516, 40, 36, 288)),
        (Some(8), Some((8, Some(8))), (0x2c, 652, 40, 172, 288)),
    ];
    for (prefixes, extension, expected) in table {
        let v1 = prefixes.and_then(v1);
        let v2 = extension.and_then(|(ueids, ism_gids)| v2(ueids, ism_gids));
        let proposal = version_2(v1, v2);
        let bytes = bytes_of(&proposal);
        let v2_offset = be16(&bytes, 50);
        let smcd_offset = match v2_offset {
            0 => 0,
            offset => be16(&bytes, 52 + usize::from(offset) + 6),
        };
        let found = (
            bytes[7],
            bytes.len(),
            be16(&bytes, 38),
            v2_offset,
            smcd_offset,
        );
        assert_eq!(found, expected, "{prefixes:?} {extension:?}");
        assert_eq!(usize::from(be16(&bytes, 5)), bytes.len());
        assert_eq!(Proposal::parse(&bytes), Ok(proposal));
    }
}

#[test]
fn lengths_and_offsets_of_version_1_headers_are_those_of_the_kernel() {
    for (prefixes, has_block, length, offset) in [
        (0, false, 52, 0),
        (2, false, 86, 0),
        (8, false, 188, 0),
        (0, true, 92, 40),
        (8, true, 228, 40),
    ] {
        let ism = has_block.then(IsmV1::default);
        let form = Form::V1 {
            offer: v1(prefixes).unwrap(),
            ism,
        };
        let proposal = Proposal {
            peer_id: PeerId::ZERO,
            gid: Gid::ZERO,
            mac: Mac::ZERO,
            form,
        };
        let bytes = bytes_of(&proposal);
        assert_eq!(
            (bytes[7], bytes.len(), be16(&bytes, 38)),
            (0x10, length, offset)
        );
        assert_eq!(Proposal::parse(&bytes), Ok(proposal));
    }
}

/// Makes the header declare the length the message has.
fn set_length(bytes: &mut [u8]) {
    let length = bytes.len() as u16;
    bytes[5..7].copy_from_slice(&length.to_be_bytes());
}

#[test]
fn a_length_that_is_off_by_one_either_way_is_refused() {
    let good = bytes_of(&version_2(v1(1), v2(2, None)));
    let mut longer = good.clone();
    longer.insert(good.len() - 4, 0);
    set_length(&mut longer);
    let refused = Error::BadLength {
        declared: good.len() + 1,
        expected: good.len(),
    };
    assert_eq!(Proposal::parse(&longer), Err(refused));
    let mut shorter = good.clone();
    shorter.remove(good.len() - 5);
    set_length(&mut shorter);
    let refused = Error::BadLength {
        declared: good.len() - 1,
        expected: good.len(),
    };
    assert_eq!(Proposal::parse(&shorter), Err(refused));
}

#[test]
fn a_trailer_that_is_no_eye_catcher_is_refused() {
    let mut bytes = bytes_of(&version_2(None, v2(1, None)));
    let end = bytes.len();
    bytes[end - 1] = 0xc4;
    assert!(Proposal::parse(&bytes).is_ok());
    bytes[end - 1] = 0xc5;
    assert_eq!(
        Proposal::parse(&bytes),
        Err(Error::BadTrailer([0xe2, 0xd4, 0xc3, 0xc5]))
    );
}

/// Changes one byte of a good message and expects the error of that field.
fn refuses(proposal: &Proposal, at: usize, value: u8, field: Field, found: u64) {
    let mut bytes = bytes_of(proposal);
    bytes[at] = value;
    assert_eq!(
        Proposal::parse(&bytes),
        Err(Error::BadField {
            field,
            value: found
        }),
        "byte {at}"
    );
}

#[test]
fn counts_and_offsets_beyond_the_limits_are_refused_by_name() {
    let v2_only = version_2(None, v2(1, None));
    refuses(&v2_only, 39, 41, Field::IpAreaOffset, 41);
    refuses(&v2_only, 51, 27, Field::V2ExtensionOffset, 27);
    refuses(&v2_only, 51, 0, Field::V2ExtensionOffset, 0);
    refuses(&v2_only, 80, 9, Field::UeidCount, 9);
    let both = version_2(v1(0), v2(1, Some(1)));
    refuses(&both, 39, 0, Field::IpAreaOffset, 0);
    refuses(&both, 87, 9, Field::Ipv6PrefixCount, 9);
    refuses(&both, 51, 28, Field::V2ExtensionOffset, 28);
    refuses(&both, 89, 9, Field::IsmGidCount, 9);
    refuses(&both, 95, 32, Field::SmcdExtensionOffset, 32);
    let v1_only = Form::V1 {
        offer: v1(0).unwrap(),
        ism: None,
    };
    let v1_only = Proposal {
        peer_id: PeerId::ZERO,
        gid: Gid::ZERO,
        mac: Mac::ZERO,
        form: v1_only,
    };
    refuses(&v1_only, 39, 39, Field::IpAreaOffset, 39);
    refuses(&v1_only, 7, 0x12, Field::Path, 2);
}
