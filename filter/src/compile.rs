//! From an expression to a program: libpcap's compiler.

use std::fs::File;
use std::io::Write;
use std::os::fd::AsRawFd;

use nix::sys::memfd::{MFdFlags, memfd_create};
use pcap::{Activated, Capture, Linktype, Offline};

use super::cbpf::Instruction;
use super::locate::tokens;

/// Above so many tokens libpcap's optimizer, whose work grows with the square of the program or
/// faster, may take minutes: it is used only where the raw program turns out short.
const MANY_TOKENS: usize = 256;
const LONG_PROGRAM: usize = 1 << 14;

/// libpcap's compiler for one link type.
pub(super) struct Compiler {
    handle: Capture<dyn Activated>,
}

impl Compiler {
    /// A compiler for packets of a link type (LINKTYPE_), which any port may have.
    pub(super) fn new(link_type: u16) -> Result<Self, String> {
        let handle = Capture::dead(Linktype(data_link_type(link_type)));
        Ok(Self { handle: handle.map_err(|error| complaint(&error))?.into() })
    }

    /// A compiler for packets from a file, written on a machine of this byte order or of the
    /// other. It takes nothing that asks the kernel.
    pub(super) fn for_file(link_type: u16, swapped: bool) -> Result<Self, String> {
        let number = |number: u32| if swapped { number.swap_bytes() } else { number };
        let mut header = Vec::with_capacity(24);
        // `struct pcap_file_header`: magic, versions 2 and 4 as one word, zone, accuracy.
        let versions =
            if cfg!(target_endian = "little") ^ swapped { 0x0004_0002 } else { 0x0002_0004 };
        for word in [0xa1b2_c3d4, versions, 0, 0, 0xffff, link_type.into()] {
            header.extend(number(word).to_ne_bytes());
        }
        let open = || -> std::io::Result<Capture<Offline>> {
            let mut file = File::from(memfd_create(c"sluice-filter", MFdFlags::MFD_CLOEXEC)?);
            file.write_all(&header)?;
            Capture::from_file(format!("/proc/self/fd/{}", file.as_raw_fd()))
                .map_err(|error| std::io::Error::other(complaint(&error)))
        };
        let handle = open().map_err(|error| format!("no file to compile for: {error}"))?;
        Ok(Self { handle: handle.into() })
    }

    /// Compiles, optimized where that is not out of proportion.
    pub(super) fn compile_with_care(&self, expression: &str) -> Result<Vec<Instruction>, String> {
        if tokens(expression).len() > MANY_TOKENS {
            let raw = self.compile(expression, false)?;
            if raw.len() > LONG_PROGRAM {
                return Ok(raw);
            }
        }
        self.compile(expression, true)
    }

    pub(super) fn compile(
        &self,
        expression: &str,
        optimize: bool,
    ) -> Result<Vec<Instruction>, String> {
        let program =
            self.handle.compile(expression, optimize).map_err(|error| complaint(&error))?;
        program
            .get_instructions()
            .iter()
            .map(|instruction| parse(&instruction.to_string()))
            .collect::<Option<_>>()
            .ok_or_else(|| "libpcap made a program that cannot be read".into())
    }
}

/// An instruction as the `pcap` crate and `tcpdump -ddd` print it: code, jt, jf, k.
fn parse(text: &str) -> Option<Instruction> {
    let mut numbers = text.split(' ').map(str::parse::<u32>);
    let mut next = || numbers.next()?.ok();
    Some(Instruction {
        code: next()?.try_into().ok()?,
        jt: next()?.try_into().ok()?,
        jf: next()?.try_into().ok()?,
        k: next()?,
    })
}

/// What libpcap says, without saying twice that a filter expression is what does not parse.
fn complaint(error: &pcap::Error) -> String {
    let text = match error {
        pcap::Error::PcapError(text) => text.trim().to_owned(),
        other => other.to_string(),
    };
    ["can't parse filter expression: ", "syntax error in filter expression: "]
        .iter()
        .find_map(|prefix| text.strip_prefix(prefix))
        .map_or(text.clone(), str::to_owned)
}

/// The number libpcap's compiler knows a link type by: DLT_, which was given differently on
/// different systems before there were LINKTYPE_ numbers for files (libpcap's `pcap-common.c`,
/// `linktype_to_dlt`; `pcap/dlt.h` for Linux).
fn data_link_type(link_type: u16) -> i32 {
    match link_type {
        100 => 11, // ATM_RFC1483
        101 => 12, // RAW
        102 => 15, // SLIP_BSDOS
        103 => 16, // PPP_BSDOS
        106 => 19, // ATM_CLIP
        same => same.into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn link_types_of_files_are_mapped_to_libpcaps_own() {
        let rows = [
            (1, "EN10MB"),
            (100, "ATM_RFC1483"),
            (101, "RAW"),
            (102, "SLIP_BSDOS"),
            (103, "PPP_BSDOS"),
            (106, "ATM_CLIP"),
            (113, "LINUX_SLL"),
            (228, "IPV4"),
            (276, "LINUX_SLL2"),
        ];
        for (link_type, name) in rows {
            let mapped = Linktype(data_link_type(link_type));
            assert_eq!(mapped.get_name().unwrap(), name, "link type {link_type}");
            // The file's own way to the same number, through libpcap.
            let by_file = Compiler::for_file(link_type, true).unwrap().handle.get_datalink();
            assert_eq!(by_file, mapped, "link type {link_type}");
        }
    }

    #[test]
    fn a_complaint_is_said_once() {
        let error = |text: &str| complaint(&pcap::Error::PcapError(text.into()));
        assert_eq!(error("can't parse filter expression: syntax error"), "syntax error");
        assert_eq!(error("syntax error in filter expression: syntax error"), "syntax error");
        assert_eq!(error("unknown port 'x'"), "unknown port 'x'");
    }
}
