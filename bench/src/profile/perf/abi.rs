//! What perf_event_open(2) takes and what its ring holds. Source: linux/perf_event.h.

/// `struct perf_event_attr` as Linux 4.8 has it (`PERF_ATTR_SIZE_VER5`); what came later is zero.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct Attr {
    pub kind: u32,
    pub size: u32,
    pub config: u64,
    /// Events between two samples, or with [`flag::FREQUENCY`] samples a second.
    pub sample_period: u64,
    pub sample_type: u64,
    pub read_format: u64,
    pub flags: u64,
    pub wakeup_events: u32,
    pub bp_type: u32,
    pub config1: u64,
    pub config2: u64,
    pub branch_sample_type: u64,
    pub sample_regs_user: u64,
    pub sample_stack_user: u32,
    pub clock: i32,
    pub sample_regs_intr: u64,
    pub aux_watermark: u32,
    pub sample_max_stack: u16,
    pub reserved: u16,
}

const _: () = assert!(size_of::<Attr>() == 112);
const _: () = assert!(std::mem::offset_of!(Attr, flags) == 40);
const _: () = assert!(std::mem::offset_of!(Attr, sample_max_stack) == 108);

pub const TYPE_HARDWARE: u32 = 0;
pub const TYPE_SOFTWARE: u32 = 1;
pub const HARDWARE_CYCLES: u64 = 0;
pub const SOFTWARE_CPU_CLOCK: u64 = 0;
pub const SOFTWARE_CONTEXT_SWITCHES: u64 = 3;

/// `PERF_FLAG_FD_CLOEXEC`.
pub const CLOSE_ON_EXEC: u64 = 1 << 3;

/// Bits of [`Attr::flags`].
pub mod flag {
    pub const DISABLED: u64 = 1 << 0;
    pub const FREQUENCY: u64 = 1 << 10;
    /// Without the calls in user space: programs are rarely built to tell them.
    pub const NO_USER_CHAIN: u64 = 1 << 22;
    /// A record for each BPF program and the like that gets a symbol (Linux 5.1).
    pub const KERNEL_SYMBOLS: u64 = 1 << 29;
}

/// Bits of [`Attr::sample_type`]: a sample's fields, which stand in this order.
pub mod sample {
    pub const IDENTIFIER: u64 = 1 << 16;
    pub const ADDRESS: u64 = 1 << 0;
    pub const THREAD: u64 = 1 << 1;
    pub const CPU: u64 = 1 << 7;
    pub const PERIOD: u64 = 1 << 8;
    pub const CALL_CHAIN: u64 = 1 << 5;
    pub const ALL: u64 = IDENTIFIER | ADDRESS | THREAD | CPU | PERIOD | CALL_CHAIN;
}

/// Kinds of records.
pub mod record {
    pub const LOST: u32 = 2;
    pub const SAMPLE: u32 = 9;
    pub const KERNEL_SYMBOL: u32 = 17;
}

/// Bits of a record's `misc`: where the CPU was.
pub const MISC_CPU_MODE: u16 = 7;
pub const MISC_KERNEL: u16 = 1;

/// Addresses from here on in a call chain are marks of what follows (`PERF_CONTEXT_MAX`).
pub const CHAIN_MARKS: u64 = 4095u64.wrapping_neg();
/// What follows is the kernel's (`PERF_CONTEXT_KERNEL`).
pub const CHAIN_KERNEL: u64 = 128u64.wrapping_neg();

/// `struct perf_event_mmap_page`: where its fields stand that a reader of the ring needs.
pub mod page {
    pub const DATA_HEAD: usize = 1024;
    pub const DATA_TAIL: usize = 1032;
    pub const DATA_OFFSET: usize = 1040;
    pub const DATA_SIZE: usize = 1048;
}

/// `PERF_EVENT_IOC_ENABLE`, `_DISABLE`, `_SET_OUTPUT`, `_ID`.
pub mod ioctl {
    pub const ENABLE: u64 = 0x2400;
    pub const DISABLE: u64 = 0x2401;
    pub const SET_OUTPUT: u64 = 0x2405;
    pub const ID: u64 = 0x8008_2407;
}
