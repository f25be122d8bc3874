//! Rotation: the limits of a file, and the names of the files.

use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};
use std::time::Duration;

use jiff::Timestamp;
use jiff::fmt::strtime;
use jiff::tz::TimeZone;
use sluicegate_base::ring::now_ns;

use super::super::Compression;
use super::chunk::Piece;
use sluicegate_base::error::{Error, Result};

/// When to begin a new file, and how many to keep. All limits may be combined; without any there is one file.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Rotation {
    /// Maximum size of a file in bytes, before compression, with its statistics as far as they are known. A
    /// file holds at least one record.
    pub bytes: Option<u64>,
    /// Maximum number of packets in a file.
    pub packets: Option<u64>,
    /// Begins a new file for each period of packet time, counted from the capture's first packet.
    pub period: Option<Duration>,
    /// Keeps the newest this many files and deletes older ones of this run.
    pub files: Option<u32>,
    /// Ends with this many files: later packets are not written.
    pub last_file: Option<u64>,
    /// Begins a new file after each [`Output::end_file`](super::Output::end_file), and none without packets.
    /// The numbers of existing files are skipped.
    pub on_request: bool,
}

impl Rotation {
    /// True if there can be more than one file.
    pub fn is_on(&self) -> bool {
        self.on_request || self.bytes.is_some() || self.packets.is_some() || self.period.is_some()
    }

    pub(super) fn check(&self) -> Result<()> {
        let reason = if self.bytes == Some(0) {
            "a file of 0 bytes: allow at least one packet"
        } else if self.packets == Some(0) {
            "a file of 0 packets: allow at least one"
        } else if self.period == Some(Duration::ZERO) {
            "a period of 0: allow at least 1 ns"
        } else if self.files == Some(0) {
            "keeping 0 files: keep at least one"
        } else if self.last_file == Some(0) {
            "an end after 0 files: allow at least one"
        } else if (self.files.is_some() || self.last_file.is_some()) && !self.is_on() {
            "a number of files without a size, a number of packets or a period: there is only one file"
        } else {
            return Ok(());
        };
        Err(Error::Usage(format!("rotation: {reason}")))
    }
}

/// The end of the current file.
#[derive(Debug)]
pub(super) struct Schedule {
    limit_bytes: u64,
    limit_packets: u64,
    period_ns: Option<u64>,
    start_ns: Option<u64>,
    /// The first time that belongs in the next file.
    end_ns: u64,
}

impl Schedule {
    pub(super) fn new(rotation: &Rotation) -> Self {
        let period_ns = |period: Duration| u64::try_from(period.as_nanos()).unwrap_or(u64::MAX);
        Self {
            limit_bytes: rotation.bytes.unwrap_or(u64::MAX),
            limit_packets: rotation.packets.unwrap_or(u64::MAX),
            period_ns: rotation.period.map(period_ns),
            start_ns: None,
            end_ns: rotation.period.map_or(u64::MAX, |_| 0),
        }
    }

    /// Begins a file whose first packet has the time `first_ns`. Periods never go back, even if that packet
    /// is late.
    pub(super) fn begin(&mut self, first_ns: u64) {
        let Some(period_ns) = self.period_ns else { return };
        let start_ns = *self.start_ns.get_or_insert(first_ns);
        let number = first_ns.saturating_sub(start_ns) / period_ns + 1;
        let end_ns = start_ns.saturating_add(number.saturating_mul(period_ns));
        self.end_ns = self.end_ns.max(end_ns);
    }

    /// Returns the first time that belongs in a later file; `u64::MAX` without a period.
    pub(super) fn end_ns(&self) -> u64 {
        self.end_ns
    }

    /// Returns true if a packet with this time belongs in a later file. None is later than the last time.
    fn is_later(&self, timestamp_ns: u64) -> bool {
        timestamp_ns >= self.end_ns && self.end_ns < u64::MAX
    }

    /// Returns true if a file with this many packets takes no more.
    pub(super) fn is_full(&self, packets: u64) -> bool {
        packets >= self.limit_packets
    }

    /// Divides records, none later than `last_ns`, between the current file, which holds `bytes` bytes and
    /// `packets` packets, and the next one. An empty file gets at least one record.
    pub(super) fn divide<'a>(
        &self,
        piece: Piece<'a>,
        last_ns: u64,
        bytes: u64,
        packets: u64,
    ) -> (Piece<'a>, Piece<'a>) {
        let room = self.limit_bytes.saturating_sub(bytes);
        let room_packets = self.limit_packets.saturating_sub(packets);
        if piece.bytes.len() as u64 <= room
            && piece.packets <= room_packets
            && !self.is_later(last_ns)
        {
            return piece.split(piece.bytes.len(), piece.packets);
        }
        let (mut now_bytes, mut now_packets) = (0, 0);
        for record in piece.records().into_iter().flatten() {
            let over =
                (now_bytes + record.bytes.len()) as u64 > room || now_packets >= room_packets;
            if (over || self.is_later(record.timestamp_ns)) && packets + now_packets > 0 {
                break;
            }
            now_bytes += record.bytes.len();
            now_packets += 1;
        }
        piece.split(now_bytes, now_packets)
    }
}

/// A template for file paths: strftime conversions (local time) of the first packet's time in the last
/// component, and a sequence number before the extensions.
#[derive(Clone, Debug)]
pub(super) struct Name {
    directory: PathBuf,
    stem: OsString,
    /// ".pcapng.zst", with its dots.
    extensions: OsString,
    pub(super) timed: bool,
    numbered: bool,
    zone: TimeZone,
}

impl Name {
    /// Parses a path. `numbered` means that there will be several files.
    pub(super) fn new(path: &Path, numbered: bool, zone: TimeZone) -> Result<Self> {
        let in_folder = path.as_os_str().as_encoded_bytes().ends_with(b"/");
        let Some(file) = path.file_name().filter(|_| !in_folder) else {
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

    /// Returns the directory of the files.
    pub(super) fn directory(&self) -> &Path {
        if self.directory.as_os_str().is_empty() { Path::new(".") } else { &self.directory }
    }

    /// Returns the path of file number `number` (from 1), whose first packet has the time `first_ns`.
    pub(super) fn at(&self, first_ns: u64, number: u64) -> Result<PathBuf> {
        let mut file = self.expand(&self.stem, first_ns)?;
        if self.numbered {
            file.push(format!("-{number:05}"));
        }
        file.push(self.expand(&self.extensions, first_ns)?);
        Ok(self.directory.join(file))
    }

    fn expand(&self, part: &OsStr, first_ns: u64) -> Result<OsString> {
        let (true, Some(pattern)) = (self.timed, part.to_str()) else { return Ok(part.to_owned()) };
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

/// Splits "a.b.pcap.zst" into "a.b" and ".pcap.zst": one extension, and another one before that of a
/// compression.
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
    use super::super::{Encoder, EncoderConfig};
    use super::*;
    use sluicegate_base::ring::{Meta, Packet};

    const SECOND: u64 = 1_000_000_000;

    /// Returns the times of the records in each file; each record has 36 bytes.
    fn files(rotation: Rotation, times: &[u64]) -> Vec<Vec<u64>> {
        let mut encoder = Encoder::new(&EncoderConfig::default());
        let mut chunk = encoder.chunk();
        for &timestamp_ns in times {
            let meta = Meta { timestamp_ns, ..Meta::default() };
            assert!(encoder.append(&mut chunk, &Packet::new(&meta, &[0; 4])));
        }
        let (mut rest, last_ns) = (chunk.piece(), chunk.last_ns().unwrap_or(0));
        let mut schedule = Schedule::new(&rotation);
        let mut files = Vec::new();
        while let Some(first_ns) = rest.first_ns() {
            schedule.begin(first_ns);
            let (now, later) = schedule.divide(rest, last_ns, 0, 0);
            let times: Vec<u64> =
                now.records().into_iter().flatten().map(|record| record.timestamp_ns).collect();
            assert_eq!(times.len() as u64, now.packets);
            files.push(times);
            rest = later;
        }
        assert_eq!(rest.packets, 0);
        files
    }

    #[test]
    fn a_file_ends_before_the_record_that_would_pass_a_limit() {
        const S: u64 = SECOND;
        let by = |bytes, seconds: Option<u64>| Rotation {
            bytes,
            period: seconds.map(Duration::from_secs),
            ..Rotation::default()
        };
        let packets = |packets| Rotation { packets: Some(packets), ..Rotation::default() };
        type Row = (&'static str, Rotation, &'static [u64], &'static [&'static [u64]]);
        let rows: &[Row] = &[
            ("no limit, one file", by(None, None), &[1, 2, 99 * S], &[&[1, 2, 99 * S]]),
            (
                "also at the last time",
                by(None, None),
                &[u64::MAX, u64::MAX],
                &[&[u64::MAX, u64::MAX]],
            ),
            ("two records of 36 bytes fit 72", by(Some(72), None), &[1, 2, 3], &[&[1, 2], &[3]]),
            ("two do not fit 71", by(Some(71), None), &[1, 2], &[&[1], &[2]]),
            ("one always does", by(Some(1), None), &[1, 2], &[&[1], &[2]]),
            ("packets are counted", packets(2), &[1, 2, 3, 4, 5], &[&[1, 2], &[3, 4], &[5]]),
            ("no file follows the last one", packets(2), &[1, 2, 3, 4], &[&[1, 2], &[3, 4]]),
            (
                "the size ends a file before the packets do",
                Rotation { bytes: Some(72), ..packets(3) },
                &[1, 2, 3],
                &[&[1, 2], &[3]],
            ),
            (
                "periods are counted from the first packet",
                by(None, Some(10)),
                &[5 * S, 15 * S - 1, 15 * S, 24 * S],
                &[&[5 * S, 15 * S - 1], &[15 * S, 24 * S]],
            ),
            (
                "empty periods make no files",
                by(None, Some(10)),
                &[5 * S, 45 * S, 54 * S, 55 * S],
                &[&[5 * S], &[45 * S, 54 * S], &[55 * S]],
            ),
            (
                "a new file by size does not move the periods",
                by(Some(72), Some(10)),
                &[0, S, 2 * S, 9 * S, 10 * S],
                &[&[0, S], &[2 * S, 9 * S], &[10 * S]],
            ),
            (
                "a late packet stays in the file that is open",
                by(None, Some(10)),
                &[5 * S, 16 * S, 14 * S, 2 * S, 25 * S],
                &[&[5 * S], &[16 * S, 14 * S, 2 * S], &[25 * S]],
            ),
            (
                "a late packet that begins a file does not bring an old period back",
                by(Some(72), Some(10)),
                &[5 * S, 16 * S, 17 * S, 2 * S, 24 * S],
                &[&[5 * S], &[16 * S, 17 * S], &[2 * S, 24 * S]],
            ),
        ];
        for (why, rotation, times, expected) in rows {
            assert_eq!(files(*rotation, times), *expected, "{why}");
        }
    }

    #[test]
    fn a_senseless_rotation_is_refused() {
        let zero = Some(0);
        let rows = [
            (zero, None, None, None, "no byte fits"),
            (None, zero, None, None, "no packet fits"),
            (None, None, Some(Duration::ZERO), None, "no time passes"),
            (Some(1), None, None, Some(0), "no file is kept"),
            (None, None, None, Some(3), "there is only one file"),
        ];
        for (bytes, packets, period, files, why) in rows {
            let rotation = Rotation { bytes, packets, period, files, ..Rotation::default() };
            assert!(rotation.check().is_err(), "{why}");
        }
        let counted = Rotation { packets: Some(1), files: Some(3), ..Rotation::default() };
        assert!(counted.check().is_ok());
        assert!(Rotation::default().check().is_ok());
    }

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
