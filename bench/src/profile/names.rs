//! From addresses to names of functions: of the kernel, its modules and BPF programs by /proc/kallsyms
//! (proc(5)); of programs and libraries by their mappings and the symbols of ELF files.

use std::collections::HashMap;
use std::fs;
use std::path::{Path, PathBuf};

use object::{Object, ObjectSegment, ObjectSymbol, ReadCache, SymbolKind};
use sluicegate::error::{Error, Result};

/// Files that have been looked at.
#[derive(Debug)]
pub struct Files {
    known: HashMap<PathBuf, ElfFile>,
    copies: Vec<(PathBuf, u64, &'static str)>,
}

impl Files {
    /// None yet.
    pub fn new() -> Self {
        Self { known: HashMap::new(), copies: copies() }
    }

    /// The functions of one.
    pub fn get(&mut self, path: &Path) -> &ElfFile {
        self.known.entry(path.to_owned()).or_insert_with(|| {
            let mut file = ElfFile::read(path);
            for (_, offset, name) in self.copies.iter().filter(|(of, ..)| of == path) {
                file.add(*offset, COPY_BYTES, name);
            }
            file
        })
    }
}

/// A function by a name that does not change from build to build: without what compilers add to
/// those they split, clone or move apart.
pub fn plain(name: &str) -> &str {
    let end = [".isra.", ".constprop.", ".part.", ".cold", ".llvm."]
        .iter()
        .filter_map(|mark| name.find(mark))
        .min();
    &name[..end.unwrap_or(name.len())]
}

/// Functions by address.
#[derive(Clone, Debug, Default)]
pub struct Kernel {
    /// All names, one behind the other.
    text: String,
    /// By address: where a function starts, and where its name stands in `text`.
    functions: Vec<(u64, std::ops::Range<u32>)>,
    /// Functions added during sampling: address, length and name.
    later: Vec<(u64, u32, String)>,
}

impl Kernel {
    /// Reads all functions of the running kernel.
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
            // Padding before a function, for live patching, is no function.
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

/// A piece of a file with code in it, as a process has it in its memory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mapping {
    start: u64,
    end: u64,
    /// Where `start` is in the file.
    offset: u64,
    /// The file, or what the kernel calls the rest: `[vdso]`.
    pub path: PathBuf,
}

impl Mapping {
    /// Where an address is in the file, if it is in this mapping.
    pub fn offset_of(&self, address: u64) -> Option<u64> {
        (self.start..self.end).contains(&address).then(|| address - self.start + self.offset)
    }
}

/// The mappings of a process that hold code; none of one that has ended.
pub fn mappings(process: u32) -> Vec<Mapping> {
    let text = fs::read_to_string(format!("/proc/{process}/maps")).unwrap_or_default();
    text.lines().filter_map(mapping).collect()
}

/// A line such as "55d0-55e0 r-xp 00001000 08:01 1234   /usr/bin/cat" (proc(5)).
fn mapping(line: &str) -> Option<Mapping> {
    let mut words = line.splitn(6, ' ');
    let (start, end) = words.next()?.split_once('-')?;
    let number = |word| u64::from_str_radix(word, 16).ok();
    if !words.next()?.contains('x') {
        return None;
    }
    let offset = number(words.next()?)?;
    let path = words.nth(2)?.trim_start();
    if path.is_empty() {
        return None;
    }
    Some(Mapping { start: number(start)?, end: number(end)?, offset, path: path.into() })
}

/// The C library's copies, by file and offset: it takes those that are best for the CPU, which have
/// no names of their own where it is stripped. This program has been given the same.
pub fn copies() -> Vec<(PathBuf, u64, &'static str)> {
    let maps = mappings(std::process::id());
    let found = [("memmove", libc::memmove as *const ()), ("memcpy", libc::memcpy as *const ())]
        .map(|(name, function)| (name, function.addr() as u64));
    let place = |(name, address)| {
        let (map, offset) = maps.iter().find_map(|map| Some((map, map.offset_of(address)?)))?;
        Some((map.path.clone(), offset, name))
    };
    found.into_iter().filter_map(place).collect()
}

/// The length of the longest of them (x86-64 glibc 2.36), in bytes.
pub const COPY_BYTES: u64 = 0x700;

/// The functions of one file.
#[derive(Debug, Default)]
pub struct ElfFile {
    /// By address: start, length (0 where it is not told), name.
    functions: Vec<(u64, u64, String)>,
    /// Where pieces of the file go: its bytes, and the first one's address.
    segments: Vec<(std::ops::Range<u64>, u64)>,
}

impl ElfFile {
    /// Reads a file's symbols; one that cannot be read has none.
    pub fn read(path: &Path) -> Self {
        let Ok(file) = fs::File::open(path) else { return Self::default() };
        let cache = ReadCache::new(file);
        match object::File::parse(&cache) {
            Ok(object) => Self::of(&object),
            Err(_) => Self::default(),
        }
    }

    fn of<'data, R: object::ReadRef<'data>>(object: &object::File<'data, R>) -> Self {
        let segments = object.segments().map(|segment| {
            let (offset, bytes) = segment.file_range();
            (offset..offset + bytes, segment.address())
        });
        let mut functions: Vec<_> = object
            .symbols()
            .chain(object.dynamic_symbols())
            .filter(|symbol| symbol.kind() == SymbolKind::Text && symbol.is_definition())
            .filter_map(|symbol| {
                let name = symbol.name().ok()?;
                let name = format!("{:#}", rustc_demangle::demangle(name));
                Some((symbol.address(), symbol.size(), name))
            })
            .collect();
        functions.sort();
        Self { functions, segments: segments.collect() }
    }

    /// Names a function that the file itself does not name.
    pub fn add(&mut self, offset: u64, bytes: u64, name: &str) {
        if let Some(start) = self.address(offset) {
            let at = self.functions.partition_point(|(other, ..)| *other < start);
            self.functions.insert(at, (start, bytes, name.to_owned()));
        }
    }

    fn address(&self, offset: u64) -> Option<u64> {
        let (bytes, address) = self.segments.iter().find(|(bytes, _)| bytes.contains(&offset))?;
        Some(address + (offset - bytes.start))
    }

    /// The function at an offset of the file.
    pub fn name(&self, offset: u64) -> Option<&str> {
        let address = self.address(offset)?;
        let after = self.functions.partition_point(|(start, ..)| *start <= address);
        let (start, length, name) = self.functions.get(after.checked_sub(1)?)?;
        (*length == 0 || address - start < *length).then_some(name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_compilers_add_to_names_is_left_out() {
        for (name, plain) in [
            ("memcpy", "memcpy"),
            ("veth_poll.isra.0", "veth_poll"),
            ("finish_task_switch.isra.0.cold", "finish_task_switch"),
            ("bpf_prog_6deef7357e7b4530_sluice_claim", "bpf_prog_6deef7357e7b4530_sluice_claim"),
        ] {
            assert_eq!(super::plain(name), plain);
        }
    }

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

    #[test]
    fn mappings_with_code_are_read_and_no_others() {
        let line = "55d0-55e0 r-xp 00001000 08:01 1234                       /opt/a b/cat";
        let mapping_there = mapping(line).unwrap();
        assert_eq!(mapping_there.path, Path::new("/opt/a b/cat"));
        assert_eq!(mapping_there.offset_of(0x55d8), Some(0x1008));
        assert_eq!(mapping_there.offset_of(0x55e0), None);
        for line in ["55d0-55e0 rw-p 00001000 08:01 1234  /bin/cat", "55d0-55e0 r-xp 0 0:0 0 ", "x"]
        {
            assert_eq!(mapping(line), None, "{line}");
        }
    }

    #[test]
    fn a_function_of_this_program_has_its_name() {
        let address = a_function_of_this_program_has_its_name as fn() as usize as u64;
        let maps = mappings(std::process::id());
        let (path, offset) =
            maps.iter().find_map(|map| Some((&map.path, map.offset_of(address)?))).unwrap();
        let file = ElfFile::read(path);
        let name = file.name(offset).unwrap();
        assert!(name.ends_with("a_function_of_this_program_has_its_name"), "{name}");
        assert!(ElfFile::read(Path::new("/proc/self/maps")).name(0).is_none(), "no ELF file");
    }

    #[test]
    fn a_copy_of_the_c_library_has_a_name() {
        let copies = copies();
        let (path, offset, name) = &copies[0];
        let mut file = ElfFile::read(path);
        file.add(*offset, COPY_BYTES, name);
        assert_eq!(file.name(offset + 16), Some("memmove"));
    }
}
