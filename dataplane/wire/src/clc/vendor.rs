//! Vendor fields: how the Anolis variant of Linux agrees on credits and on write with immediate.
//!
//! Mainline sends zero in all of them and does not look at them.

/// Which vendor speaks: three bytes in the Proposal. Zero in mainline.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct Oui(pub [u8; 3]);

impl Oui {
    /// No vendor.
    pub const NONE: Oui = Oui([0; 3]);
    /// Alibaba, whose kernels define [`VendorOptions`].
    pub const ALIBABA: Oui = Oui([0xfc, 0xa6, 0x4c]);
}

/// The option word: in the Proposal behind the OUI, in Accept and Confirm in the first contact
/// extension.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct VendorOptions(pub u32);

impl VendorOptions {
    /// Nothing is offered.
    pub const NONE: VendorOptions = VendorOptions(0);
    /// The word means something at all.
    pub const VALID: VendorOptions = VendorOptions(0x8000_0000);
    /// Receive-queue credits.
    pub const CREDITS: VendorOptions = VendorOptions(0x4000_0000);
    /// RDMA write with immediate in place of CDC messages.
    pub const WRITE_IMMEDIATE: VendorOptions = VendorOptions(0x2000_0000);

    /// Whether every bit of `options` is set here.
    pub const fn contains(self, options: VendorOptions) -> bool {
        self.0 & options.0 == options.0
    }

    /// The bits set in either.
    pub const fn union(self, options: VendorOptions) -> VendorOptions {
        VendorOptions(self.0 | options.0)
    }

    /// The bits set in both.
    pub const fn intersection(self, options: VendorOptions) -> VendorOptions {
        VendorOptions(self.0 & options.0)
    }
}
