//! Maps addresses to function names: for the kernel, its modules and BPF programs by /proc/kallsyms
//! (proc(5)); for programs and libraries by their mappings and the symbols of ELF files.

use std::collections::HashMap;
use std::fs;
use std::ops::Range;
use std::path::{Path, PathBuf};

use object::{Object, ObjectSegment, ObjectSymbol, ReadCache, SymbolKind};
use sluicegate::error::{Error, Result};

/// Functions by address.
#[derive(Clone, Debug, Default)]
struct Symbols(Vec<Symbol>);

/// A function: its address, its length (0 if unknown) and its name.
type Symbol = (u64, u64, String);

impl Symbols {
    fn of(functions: impl Iterator<Item = Symbol>) -> Self {
        let mut functions: Vec<Symbol> = functions.collect();
        functions.sort();
        Self(functions)
    }

    /// Adds a function, in front of an older one at the same address.
    fn add(&mut self, start: u64, bytes: u64, name: String) {
        let at = self.0.partition_point(|(other, ..)| *other <= start);
        self.0.insert(at, (start, bytes, name));
    }

    /// The function at an address.
    fn name(&self, address: u64) -> Option<&str> {
        let after = self.0.partition_point(|(start, ..)| *start <= address);
        let (start, bytes, name) = self.0.get(after.checked_sub(1)?)?;
        (*bytes == 0 || address - start < *bytes).then_some(name)
    }
}

/// Returns a function's name without the suffixes of functions that a compiler split, cloned or moved.
pub fn without_suffix(name: &str) -> &str {
    let suffixes = [".isra.", ".constprop.", ".part.", ".cold", ".llvm."];
    let end = suffixes.iter().filter_map(|suffix| name.find(suffix)).min();
    &name[..end.unwrap_or(name.len())]
}

/// The kernel's functions.
#[derive(Clone, Debug, Default)]
pub struct KernelSymbols {
    functions: Symbols,
    /// BPF programs that were loaded during sampling.
    later: Symbols,
}

impl KernelSymbols {
    /// Reads all functions of the running kernel.
    ///
    /// # Errors
    /// The kernel hides addresses.
    pub fn read() -> Result<Self> {
        let path = Path::new("/proc/kallsyms");
        let text = fs::read_to_string(path).map_err(|error| Error::path("read", path, error))?;
        let kernel = Self::parse(&text);
        if kernel.functions.0.last().is_none_or(|(address, ..)| *address == 0) {
            return Err(Error::Privilege {
                operation: "reading the names of the kernel's functions".into(),
                capability: "CAP_SYSLOG",
                remedy: "run it with sudo, and allow it by `sysctl kernel.kptr_restrict=1`".into(),
            });
        }
        Ok(kernel)
    }

    /// Parses lines such as `ffffffff81206a92 T name` or, of a module, `… t name [module]`.
    fn parse(text: &str) -> Self {
        let function = |line: &str| {
            let mut words = line.split_ascii_whitespace();
            let address = u64::from_str_radix(words.next()?, 16).ok()?;
            let (kind, name) = (words.next()?, words.next()?);
            // Padding before a function, for live patching, is not a function.
            let is_function = matches!(kind, "t" | "T" | "w" | "W") && !name.starts_with("__pfx_");
            is_function.then(|| (address, 0, name.to_owned()))
        };
        let functions = Symbols::of(text.lines().filter_map(function));
        Self { functions, later: Symbols::default() }
    }

    /// Adds a function that was loaded during sampling.
    pub fn add(&mut self, address: u64, bytes: u32, name: String) {
        self.later.add(address, bytes.into(), name);
    }

    /// The function at an address.
    pub fn name(&self, address: u64) -> Option<&str> {
        self.later.name(address).or_else(|| self.functions.name(address))
    }
}

/// A part of a file that holds code and is mapped into a process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mapping {
    addresses: Range<u64>,
    /// The offset of the first address in the file.
    offset: u64,
    /// The file, or the kernel's name for other code: `[vdso]`.
    pub path: PathBuf,
}

impl Mapping {
    /// The file offset of an address in this mapping.
    pub fn offset_of(&self, address: u64) -> Option<u64> {
        let inside = self.addresses.contains(&address);
        inside.then(|| address - self.addresses.start + self.offset)
    }
}

/// The mappings of a process that hold code; none if it has exited.
pub fn mappings(process: u32) -> Vec<Mapping> {
    let text = fs::read_to_string(format!("/proc/{process}/maps")).unwrap_or_default();
    text.lines().filter_map(mapping).collect()
}

/// Parses a line such as "55d0-55e0 r-xp 00001000 08:01 1234   /usr/bin/cat" (proc(5)).
fn mapping(line: &str) -> Option<Mapping> {
    let mut words = line.splitn(6, ' ');
    let (start, end) = words.next()?.split_once('-')?;
    let number = |word| u64::from_str_radix(word, 16).ok();
    let is_code = words.next()?.contains('x');
    let offset = number(words.next()?)?;
    let path = words.nth(2)?.trim_start();
    let addresses = number(start)?..number(end)?;
    (is_code && !path.is_empty()).then(|| Mapping { addresses, offset, path: path.into() })
}

/// The functions of files, each read once.
#[derive(Debug)]
pub struct Files {
    known: HashMap<PathBuf, ElfFile>,
    copies: Vec<(PathBuf, u64, &'static str)>,
}

impl Files {
    /// Reads no file yet.
    pub fn new() -> Self {
        Self { known: HashMap::new(), copies: copies() }
    }

    /// The functions of a file.
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

/// The C library's copy functions, by file and offset. It selects those that are best for the CPU, which
/// have no symbols in a stripped library; this process got the same selection.
fn copies() -> Vec<(PathBuf, u64, &'static str)> {
    let maps = mappings(std::process::id());
    let found = [("memmove", libc::memmove as *const ()), ("memcpy", libc::memcpy as *const ())];
    let place = |(name, function): (_, *const ())| {
        let address = function.addr() as u64;
        let (map, offset) = maps.iter().find_map(|map| Some((map, map.offset_of(address)?)))?;
        Some((map.path.clone(), offset, name))
    };
    found.into_iter().filter_map(place).collect()
}

/// The length of the longest of them (x86-64 glibc 2.36), in bytes.
const COPY_BYTES: u64 = 0x700;

/// The functions of one file.
#[derive(Debug, Default)]
pub struct ElfFile {
    functions: Symbols,
    /// File offsets, and the address of the first.
    segments: Vec<(Range<u64>, u64)>,
}

impl ElfFile {
    /// Reads a file's symbols; none if it cannot be read.
    fn read(path: &Path) -> Self {
        let Ok(file) = fs::File::open(path) else { return Self::default() };
        object::File::parse(&ReadCache::new(file))
            .map_or_else(|_| Self::default(), |it| Self::of(&it))
    }

    fn of<'data, R: object::ReadRef<'data>>(object: &object::File<'data, R>) -> Self {
        let segments = object.segments().map(|segment| {
            let (offset, bytes) = segment.file_range();
            (offset..offset + bytes, segment.address())
        });
        let symbols = object.symbols().chain(object.dynamic_symbols());
        let functions = symbols
            .filter(|symbol| symbol.kind() == SymbolKind::Text && symbol.is_definition())
            .filter_map(|symbol| {
                let name = format!("{:#}", rustc_demangle::demangle(symbol.name().ok()?));
                Some((symbol.address(), symbol.size(), name))
            });
        Self { functions: Symbols::of(functions), segments: segments.collect() }
    }

    /// Names a function that the file itself does not name.
    fn add(&mut self, offset: u64, bytes: u64, name: &str) {
        if let Some(start) = self.address(offset) {
            self.functions.add(start, bytes, name.to_owned());
        }
    }

    fn address(&self, offset: u64) -> Option<u64> {
        let (bytes, address) = self.segments.iter().find(|(bytes, _)| bytes.contains(&offset))?;
        Some(address + (offset - bytes.start))
    }

    /// The function at a file offset.
    pub fn name(&self, offset: u64) -> Option<&str> {
        self.functions.name(self.address(offset)?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn suffixes_of_compilers_are_left_out() {
        for (name, plain) in [
            ("memcpy", "memcpy"),
            ("veth_poll.isra.0", "veth_poll"),
            ("finish_task_switch.isra.0.cold", "finish_task_switch"),
            ("bpf_prog_6deef7357e7b4530_sluice_claim", "bpf_prog_6deef7357e7b4530_sluice_claim"),
        ] {
            assert_eq!(without_suffix(name), plain);
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
    fn an_address_belongs_to_the_function_that_begins_before_it() {
        let mut kernel = KernelSymbols::parse(TEXT);
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
