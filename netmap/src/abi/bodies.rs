//! The bodies of requests: `struct nmreq_register` and the other structures that a header points to.
//!
//! Fields keep netmap's order, with its padding as fields, so their encoding has netmap's offsets.

use nix::errno::Errno;

use super::CallerMemory;

/// Modes of [`Register::mode`]: the rings to bind.
pub mod modes {
    /// All rings of the card.
    pub const ALL_NIC: u32 = 1;
    /// All rings of the host.
    pub const SW: u32 = 2;
    /// All rings of the card and of the host.
    pub const NIC_SW: u32 = 3;
    /// The ring pair [`ringid`](super::Register::ringid) of the card.
    pub const ONE_NIC: u32 = 4;
    /// The first end of a pipe, in the legacy API; [`NIOCCTRL`](super::super::ioctls::NIOCCTRL) rejects it.
    pub const PIPE_MASTER: u32 = 5;
    /// The second end of a pipe, in the legacy API; [`NIOCCTRL`](super::super::ioctls::NIOCCTRL) rejects it.
    pub const PIPE_SLAVE: u32 = 6;
    /// No ring: memory of an existing region only.
    pub const NULL: u32 = 7;
    /// The ring pair [`ringid`](super::Register::ringid) of the host.
    pub const ONE_SW: u32 = 8;
}

/// Flags of [`Register::flags`].
pub mod register_flags {
    /// Monitors transmit rings.
    pub const MONITOR_TX: u64 = 0x100;
    /// Monitors receive rings.
    pub const MONITOR_RX: u64 = 0x200;
    /// Monitors both directions; sees packets after they were sent, or released by the program.
    pub const ZCOPY_MON: u64 = 0x400;
    /// No other file may bind the rings.
    pub const EXCLUSIVE: u64 = 0x800;
    /// Binds receive rings only.
    pub const RX_RINGS_ONLY: u64 = 0x2000;
    /// Binds transmit rings only.
    pub const TX_RINGS_ONLY: u64 = 0x4000;
    /// The program accepts packets that begin with a virtio-net header.
    pub const ACCEPT_VNET_HDR: u64 = 0x8000;
    /// poll(2) syncs receive rings even if it is not asked for POLLIN.
    pub const DO_RX_POLL: u64 = 0x1_0000;
    /// poll(2) syncs transmit rings only if it is asked for POLLOUT.
    pub const NO_TX_POLL: u64 = 0x2_0000;
}

/// Modes of [`Polling::mode`].
pub mod polling_modes {
    /// One processor polls all rings.
    pub const SINGLE_CPU: u32 = 1;
    /// One processor polls each ring.
    pub const MULTI_CPU: u32 = 2;
}

/// A value that stands in a body, in the machine's byte order.
pub(super) trait Field {
    /// Takes the value from the front.
    ///
    /// # Panics
    /// If fewer bytes are left than it has; callers pass whole bodies.
    fn take(bytes: &mut &[u8]) -> Self
    where
        Self: Sized;
    /// Appends the value.
    fn put(&self, bytes: &mut Vec<u8>);
}

macro_rules! integer_field {
    ($($integer:ty)*) => {$(
        impl Field for $integer {
            fn take(bytes: &mut &[u8]) -> Self {
                let (value, rest) = bytes.split_first_chunk().expect("a whole body");
                *bytes = rest;
                Self::from_ne_bytes(*value)
            }

            fn put(&self, bytes: &mut Vec<u8>) {
                bytes.extend_from_slice(&self.to_ne_bytes());
            }
        }
    )*};
}

integer_field!(u16 u32 u64);

impl<const N: usize> Field for [u8; N] {
    fn take(bytes: &mut &[u8]) -> Self {
        let (value, rest) = bytes.split_first_chunk().expect("a whole body");
        *bytes = rest;
        *value
    }

    fn put(&self, bytes: &mut Vec<u8>) {
        bytes.extend_from_slice(self);
    }
}

/// A structure that the program passes by address.
pub(super) trait Body: Field + Sized {
    /// Its size.
    const BYTES: usize;

    /// Copies the structure from the program's memory.
    ///
    /// # Errors
    /// EINVAL if the address is null, EFAULT if it has no readable memory.
    fn read(memory: &dyn CallerMemory, address: u64) -> Result<Self, Errno> {
        if address == 0 {
            return Err(Errno::EINVAL);
        }
        let mut bytes = vec![0; Self::BYTES];
        memory.read(address, &mut bytes)?;
        Ok(Self::take(&mut &bytes[..]))
    }
}

/// Returns the size of a structure.
pub(super) fn bytes(body: &dyn Field) -> usize {
    encode(body).len()
}

pub(super) fn encode(body: &dyn Field) -> Vec<u8> {
    let mut bytes = Vec::new();
    body.put(&mut bytes);
    bytes
}

/// Copies a structure to the program's memory.
///
/// # Errors
/// EFAULT if the address has no writable memory.
pub(super) fn write(
    memory: &dyn CallerMemory,
    address: u64,
    body: &dyn Field,
) -> Result<(), Errno> {
    memory.write(address, &encode(body))
}

/// Declares a structure of a number of bytes, from its fields in the order of their offsets.
macro_rules! body {
    ($(#[$doc:meta])* $vis:vis struct $name:ident, $bytes:literal {
        $($(#[$field_doc:meta])* $field:ident: $kind:ty,)*
    }) => {
        $(#[$doc])*
        $vis struct $name { $($(#[$field_doc])* $vis $field: $kind,)* }

        impl $crate::abi::bodies::Body for $name {
            const BYTES: usize = $bytes;
        }

        // The fields leave no gap, so each has the offset that their order gives it.
        const _: () = assert!(0 $(+ size_of::<$kind>())* == $bytes);

        impl $crate::abi::bodies::Field for $name {
            fn take(bytes: &mut &[u8]) -> Self {
                Self { $($field: $crate::abi::bodies::Field::take(bytes),)* }
            }

            fn put(&self, bytes: &mut Vec<u8>) {
                $($crate::abi::bodies::Field::put(&self.$field, bytes);)*
            }
        }
    };
}

pub(super) use body;

body! {
    /// `struct nmreq_register`: which rings of a port to bind, and how. Counts of 0 ask for the port's own.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    pub struct Register, 56 {
        /// Answer: the offset of the port's `netmap_if` in the region.
        offset: u64,
        /// Answer: bytes of the region.
        memsize: u64,
        /// Slots of each transmit ring.
        tx_slots: u32,
        /// Slots of each receive ring.
        rx_slots: u32,
        /// Transmit rings.
        tx_rings: u16,
        /// Receive rings.
        rx_rings: u16,
        /// Transmit rings to the host.
        host_tx_rings: u16,
        /// Receive rings from the host.
        host_rx_rings: u16,
        /// The region to use; 0 for the default one. Answer: the region in use.
        mem_id: u16,
        /// The ring of a mode that binds one.
        ringid: u16,
        /// One of [`modes`].
        mode: u32,
        /// Extra buffers. Answer: those allocated.
        extra_bufs: u32,
        /// Unused; returned as it came.
        pad: u32,
        /// A set of [`register_flags`].
        flags: u64,
    }
}

body! {
    /// `struct nmreq_port_info_get`: facts about a port or, without a name, about a region.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    pub struct PortInfo, 32 {
        /// Bytes of the region.
        memsize: u64,
        /// Slots of each transmit ring.
        tx_slots: u32,
        /// Slots of each receive ring.
        rx_slots: u32,
        /// Transmit rings.
        tx_rings: u16,
        /// Receive rings.
        rx_rings: u16,
        /// Transmit rings to the host.
        host_tx_rings: u16,
        /// Receive rings from the host.
        host_rx_rings: u16,
        /// The region; 0 for the port's own.
        mem_id: u16,
        /// Unused; returned as it came.
        pad: u16,
        /// Unused; returned as it came.
        pad2: u32,
    }
}

body! {
    /// `struct nmreq_vale_attach`: attaches a port to a VALE switch.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    pub struct ValeAttach, 64 {
        /// How to register the port; mode [`modes::NIC_SW`] also attaches the host.
        register: Register,
        /// Answer: the port's index in the switch.
        port_index: u32,
        /// Unused; returned as it came.
        pad: u32,
    }
}

body! {
    /// `struct nmreq_vale_detach`: detaches a port from a VALE switch.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    pub struct ValeDetach, 8 {
        /// Answer: the index that the port had in the switch.
        port_index: u32,
        /// Unused; returned as it came.
        pad: u32,
    }
}

body! {
    /// `struct nmreq_vale_list`: finds the named port, or without a name the next port from these indices on.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    pub struct ValeList, 8 {
        /// The index of the switch.
        bridge_index: u16,
        /// Unused; returned as it came.
        pad: u16,
        /// The index of the port in the switch.
        port_index: u32,
    }
}

body! {
    /// `struct nmreq_port_hdr`: the virtio-net header in front of a port's packets.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    pub struct PortHeader, 8 {
        /// Bytes of the header: 0, 10 or 12.
        header_bytes: u32,
        /// Unused; returned as it came.
        pad: u32,
    }
}

body! {
    /// `struct nmreq_vale_newif`: creates a persistent VALE port.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    pub struct ValeNewInterface, 16 {
        /// Slots of each transmit ring.
        tx_slots: u32,
        /// Slots of each receive ring.
        rx_slots: u32,
        /// Transmit rings.
        tx_rings: u16,
        /// Receive rings.
        rx_rings: u16,
        /// The region; 0 for one of its own.
        mem_id: u16,
        /// Unused; returned as it came.
        pad: u16,
    }
}

body! {
    /// `struct nmreq_vale_polling`: polls an attached port from kernel threads.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    pub struct Polling, 16 {
        /// One of [`polling_modes`].
        mode: u32,
        /// The first processor.
        first_cpu: u32,
        /// Processors.
        cpus: u32,
        /// Unused; returned as it came.
        pad: u32,
    }
}

body! {
    /// `struct nmreq_pools_info`: the layout of a region.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    pub struct PoolsInfo, 64 {
        /// Bytes of the region.
        memsize: u64,
        /// The region; 0 for the port's own.
        mem_id: u16,
        /// Unused; returned as it came.
        pad: u16,
        /// Unused; returned as it came.
        pad2: u32,
        /// The offset of the interfaces in the region.
        if_pool_offset: u64,
        /// Interfaces that fit.
        if_pool_objtotal: u32,
        /// Bytes of each.
        if_pool_objsize: u32,
        /// The offset of the rings in the region.
        ring_pool_offset: u64,
        /// Rings that fit.
        ring_pool_objtotal: u32,
        /// Bytes of each.
        ring_pool_objsize: u32,
        /// The offset of the buffers in the region.
        buf_pool_offset: u64,
        /// Buffers.
        buf_pool_objtotal: u32,
        /// Bytes of each.
        buf_pool_objsize: u32,
    }
}

body! {
    /// `struct nmreq_sync_kloop_start`: syncs the rings in a loop of the kernel.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    pub struct KloopStart, 8 {
        /// Sleep of an idle loop, in microseconds.
        sleep_us: u32,
        /// Unused; returned as it came.
        pad: u32,
    }
}
