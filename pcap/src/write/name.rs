//! What the files of a capture are called.

use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};

use jiff::Timestamp;
use jiff::fmt::strtime;
use jiff::tz::TimeZone;

use super::super::Compression;
use sluicegate_base::error::{Error, Result};

/// A name that becomes a path once the file's first packet is known: strftime conversions
/// (local time) in the last part of the path, and a running number before the extensions.
#[derive(Clone, Debug)]
pub(super) struct Name {
    directory: PathBuf,
    stem: OsString,
    /// ".pcapng.zst", with its dots.
    extensions: OsString,
    timed: bool,
    numbered: bool,
    zone: TimeZone,
}

impl Name {
    /// Takes a path apart. `numbered` says that there will be more than one file.
    pub(super) fn new(path: &Path, numbered: bool, zone: TimeZone) -> Result<Self> {
        let Some(file) = path.file_name().filter(|_| !ends_in_slash(path)) else {
            return Err(Error::Usage(format!(
                "'{}' names no file: add a file name",
                path.display()
            )));
        };
        let (stem, extensions) = split_extensions(file);
        let name = Self {
            directory: path.parent().unwrap_or(Path::new("")).to_owned(),
            stem,
            extensions,
            timed: file.to_str().is_some_and(|file| file.contains('%')),
            numbered,
            zone,
        };
        name.at(now_ns(), 1)?;
        Ok(name)
    }

    /// Whether the name depends on the file's first packet.
    pub(super) fn is_timed(&self) -> bool {
        self.timed
    }

    /// Where the files are.
    pub(super) fn directory(&self) -> &Path {
        match self.directory.as_os_str().is_empty() {
            true => Path::new("."),
            false => &self.directory,
        }
    }

    /// The path of file number `number` (from 1), whose first packet is of `first_ns`.
    pub(super) fn at(&self, first_ns: u64, number: u64) -> Result<PathBuf> {
        let mut file = self.expand(&self.stem, first_ns)?;
        if self.numbered {
            file.push(format!("-{number:05}"));
        }
        file.push(self.expand(&self.extensions, first_ns)?);
        Ok(self.directory.join(file))
    }

    fn expand(&self, part: &OsStr, first_ns: u64) -> Result<OsString> {
        let (true, Some(pattern)) = (self.timed, part.to_str()) else {
            return Ok(part.to_owned());
        };
        let usage = |reason: String| Error::Usage(format!("file name '{pattern}': {reason}"));
        let time = Timestamp::from_nanosecond(first_ns.into())
            .map_err(|error| usage(error.to_string()))?
            .to_zoned(self.zone.clone());
        let expanded = strtime::format(pattern, &time)
            .map_err(|error| usage(format!("{error}; write %% for a percent sign")))?;
        if expanded.contains('/') {
            return Err(usage("its time contains a '/': use %F for the date".to_owned()));
        }
        Ok(expanded.into())
    }
}

/// The present, for files that have no packet to be named after.
pub(super) fn now_ns() -> u64 {
    u64::try_from(Timestamp::now().as_nanosecond()).unwrap_or(0)
}

fn ends_in_slash(path: &Path) -> bool {
    path.as_os_str().as_encoded_bytes().ends_with(b"/")
}

/// "a.b.pcap.zst" is "a.b" and ".pcap.zst": one extension, and one more under a packed one.
fn split_extensions(file: &OsStr) -> (OsString, OsString) {
    let split = |name: &OsStr| {
        let path = Path::new(name);
        let stem = path.file_stem().unwrap_or(name).to_owned();
        let dotted = path.extension().map_or_else(OsString::new, |extension| {
            let mut dotted = OsString::from(".");
            dotted.push(extension);
            dotted
        });
        (stem, dotted)
    };
    let (stem, last) = split(file);
    if Compression::of(Path::new(file)) == Compression::None {
        return (stem, last);
    }
    let (stem, mut extensions) = split(&stem);
    extensions.push(last);
    (stem, extensions)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// 2023-11-14 22:13:20 UTC.
    const TIME_NS: u64 = 1_700_000_000_000_000_000;

    fn name(path: &str, numbered: bool) -> Result<PathBuf> {
        let zone = TimeZone::fixed(jiff::tz::offset(2));
        Name::new(Path::new(path), numbered, zone)?.at(TIME_NS, 7)
    }

    #[test]
    fn a_name_becomes_a_path() {
        let rows: &[(&str, bool, &str, &str)] = &[
            ("a.pcap", false, "a.pcap", "one file keeps its name"),
            ("a.pcap", true, "a-00007.pcap", "a row is numbered before the extension"),
            ("/d.x/a.pcapng.zst", true, "/d.x/a-00007.pcapng.zst", "before both extensions"),
            ("a.b.pcap.lz4", true, "a.b-00007.pcap.lz4", "other dots stay"),
            ("a", true, "a-00007", "without extension at the end"),
            (".pcap", true, ".pcap-00007", "a hidden file has no extension"),
            ("a-%F-%H%M%S.pcap", false, "a-2023-11-15-001320.pcap", "local time"),
            ("%H.pcap", true, "00-00007.pcap", "time and number"),
            ("100%%.pcap", false, "100%.pcap", "a percent sign is written twice"),
            ("%d/a.pcap", false, "%d/a.pcap", "a directory is taken as it is"),
        ];
        for (path, numbered, expected, why) in rows {
            assert_eq!(name(path, *numbered).unwrap(), Path::new(expected), "{why}");
        }
    }

    #[test]
    fn a_senseless_name_is_refused_with_a_remedy() {
        let rows = [
            ("d/", "add a file name", "a directory"),
            ("..", "add a file name", "the parent"),
            ("a%D.pcap", "use %F", "a time with slashes"),
            ("100%", "write %%", "a lone percent sign"),
            ("%!.pcap", "write %%", "no such conversion"),
        ];
        for (path, remedy, why) in rows {
            let error = name(path, false).unwrap_err().to_string();
            assert!(error.contains(remedy), "{why}: {error}");
        }
    }
}
