//! The kernel's functions, its modules' and BPF programs, from /proc/kallsyms (proc(5)).

use std::fs;
use std::path::Path;

use sluicegate::error::{Error, Result};

/// Functions by address.
#[derive(Clone, Debug, Default)]
pub struct Kernel {
    /// All names, one behind the other.
    text: String,
    /// By address: where a function starts, and where its name stands in `text`.
    functions: Vec<(u64, std::ops::Range<u32>)>,
    /// Of these, what came later: address, length and name.
    later: Vec<(u64, u32, String)>,
}

impl Kernel {
    /// Reads all that are there now.
    ///
    /// # Errors
    /// The kernel does not tell addresses.
    pub fn read() -> Result<Self> {
        let path = Path::new("/proc/kallsyms");
        let text = fs::read_to_string(path).map_err(|error| Error::path("read", path, error))?;
        let kernel = Self::parse(&text);
        if kernel.functions.last().is_none_or(|(address, _)| *address == 0) {
            return Err(Error::Privilege {
                operation: "names of the kernel's functions".into(),
                capability: "CAP_SYSLOG",
                remedy: "run it with sudo, and allow it by `sysctl kernel.kptr_restrict=1`".into(),
            });
        }
        Ok(kernel)
    }

    /// Lines such as `ffffffff81206a92 T name` or, of a module, `… t name [module]`.
    fn parse(text: &str) -> Self {
        let mut kernel = Self::default();
        for line in text.lines() {
            let mut words = line.split_ascii_whitespace();
            let (Some(address), Some(kind), Some(name)) =
                (words.next(), words.next(), words.next())
            else {
                continue;
            };
            let Ok(address) = u64::from_str_radix(address, 16) else { continue };
            // What is before a function for those who patch it is none.
            if matches!(kind, "t" | "T" | "w" | "W") && !name.starts_with("__pfx_") {
                let start = kernel.text.len() as u32;
                kernel.text.push_str(name);
                kernel.functions.push((address, start..kernel.text.len() as u32));
            }
        }
        kernel.functions.sort_by_key(|(address, _)| *address);
        kernel
    }

    /// A function that has come into being since.
    pub fn add(&mut self, address: u64, bytes: u32, name: String) {
        self.later.push((address, bytes, name));
    }

    /// The function that an address is in.
    pub fn name(&self, address: u64) -> Option<&str> {
        let inside = |(start, bytes, _): &&(u64, u32, String)| {
            address.wrapping_sub(*start) < u64::from(*bytes)
        };
        // The newest first: memory is used again.
        if let Some((_, _, name)) = self.later.iter().rev().find(inside) {
            return Some(name);
        }
        let after = self.functions.partition_point(|(start, _)| *start <= address);
        let (_, name) = self.functions.get(after.checked_sub(1)?)?;
        self.text.get(name.start as usize..name.end as usize)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "\
ffffffff81000000 T _text
ffffffff81000100 t __pfx_veth_poll
ffffffff81000110 t veth_poll
ffffffff81000200 D jiffies
ffffffffc0000000 t bpf_prog_6deef7357e7b4530_sluice_ingress\t[bpf]
garbage
";

    #[test]
    fn an_address_is_in_the_function_that_begins_before_it() {
        let mut kernel = Kernel::parse(TEXT);
        kernel.add(0xffff_ffff_8100_0110, 0x10, "later".into());
        for (address, name) in [
            (0xffff_ffff_8100_0050, Some("_text")),
            (0xffff_ffff_8100_0105, Some("_text")),
            (0xffff_ffff_8100_0110, Some("later")),
            (0xffff_ffff_8100_0120, Some("veth_poll")),
            (0xffff_ffff_c000_0010, Some("bpf_prog_6deef7357e7b4530_sluice_ingress")),
            (0x1000, None),
        ] {
            assert_eq!(kernel.name(address), name, "{address:x}");
        }
    }
}
