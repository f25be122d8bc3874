//! Asking for memory ahead of time.
#![allow(unsafe_code)]

/// Asks for the cache line of an address, which another CPU wrote: whoever reads it soon does not wait
/// for that CPU's cache. Any address will do; nothing is read.
#[inline]
pub fn prefetch(address: *const u8) {
    #[cfg(target_arch = "x86_64")]
    {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        // SAFETY: a prefetch reads nothing and may name any address.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(address.cast()) };
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = address;
}

/// The same for whoever writes there soon: the other CPU gives the line up.
#[inline]
pub fn prefetch_to_write(address: *const u8) {
    #[cfg(target_arch = "x86_64")]
    {
        // By name: of the intrinsic the compiler makes one for readers, unless it is told that all
        // CPUs have it. Those that have not take it for nothing.
        use std::arch::asm;
        // SAFETY: as above; nothing is written either.
        unsafe {
            asm!("prefetchw [{}]", in(reg) address, options(nostack, preserves_flags, readonly));
        }
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = address;
}
