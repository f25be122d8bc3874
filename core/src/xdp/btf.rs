//! The functions that the kernel lends to programs, by name.
//!
//! A program calls them by their numbers in the kernel's description of its own types, BTF, which
//! are others in every kernel (Linux 5.13, CONFIG_DEBUG_INFO_BTF).
#![allow(unsafe_code)]

use std::ffi::CStr;
use std::io;
use std::ptr::NonNull;

use crate::filter::ebpf::KernelFunction;

/// The running kernel's types. To read them takes some milliseconds and megabytes.
#[derive(Debug)]
pub(crate) struct KernelTypes(NonNull<libbpf_sys::btf>);

impl KernelTypes {
    /// Reads them.
    pub(super) fn load() -> io::Result<Self> {
        // SAFETY: takes nothing; the answer is ours alone, or null with errno set.
        let types = unsafe { libbpf_sys::btf__load_vmlinux_btf() };
        NonNull::new(types).map(Self).ok_or_else(io::Error::last_os_error)
    }

    /// A function; none if this kernel has none of that name.
    pub(super) fn function(&self, name: &CStr) -> Option<KernelFunction> {
        // SAFETY: the types live as long as `self`; `name` is terminated and outlives the call.
        let number = unsafe {
            libbpf_sys::btf__find_by_name_kind(
                self.0.as_ptr(),
                name.as_ptr(),
                libbpf_sys::BTF_KIND_FUNC,
            )
        };
        // 0 is no function but `void`.
        (number > 0).then_some(KernelFunction(number))
    }
}

impl Drop for KernelTypes {
    fn drop(&mut self) {
        // SAFETY: made by libbpf, freed once, and nothing points into them any more.
        unsafe { libbpf_sys::btf__free(self.0.as_ptr()) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_function_has_a_number_and_what_is_none_has_not() {
        let Ok(types) = KernelTypes::load() else {
            println!("skipped: needs the kernel's types; get it by CONFIG_DEBUG_INFO_BTF");
            return;
        };
        assert!(types.function(c"schedule").is_some(), "every kernel has one");
        assert_eq!(types.function(c"no_such_function_anywhere"), None);
        assert_eq!(types.function(c"task_struct"), None, "a type, no function");
    }
}
