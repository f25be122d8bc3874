//! Specifications of traffic: streams of layers with fields.
//!
//! ```text
//!   TOML --> file --+
//!                   +--> Spec: streams of layers --> build --> Plan
//!   flags ----------+
//! ```
//!
//! | module | contents |
//! | --- | --- |
//! | `value`, `size` | the grammar of a field's value and notation of its numbers; sizes of frames |
//! | `layer` | the table of protocols by family, settings of fields, the writer of headers |
//! | `edits` | constants and changing numbers in the bytes of a frame |
//! | `build` | converts a stream's layers to a plan: headers, payload, edits and checksums |
//! | `file`, `flags`, `capture` | specifications from TOML, from flags of a command, from a capture file |
//! | `error` | errors and their positions |
//!
//! ```
//! use sluicegate_traffic::plan::FrameBuilder;
//! use sluicegate_traffic::spec::{Defaults, Spec};
//!
//! let spec = Spec::parse(
//!     "[[stream]]\n\
//!      size = 60\n\
//!      layers = ['ether', { ipv4 = { src = '198.18.0.0/16' } }, 'udp']\n",
//! )?;
//! let plan = spec.plan(&Defaults::default())?;
//! let mut frame = [0; 2048];
//! let mut frames = FrameBuilder::new(&plan, 0, 1, || 0);
//! assert_eq!(frames.next_into(&mut frame), Some(60));
//! assert_eq!(frame[26..28], [198, 18]);
//! # Ok::<(), sluicegate_traffic::spec::SpecError>(())
//! ```

mod build;
mod capture;
mod edits;
mod file;
mod flags;
pub(crate) mod layer;
mod size;
pub(crate) mod value;

use std::borrow::Cow;
use std::net::{Ipv4Addr, Ipv6Addr};
use std::path::Path;

use sluicegate_base::text_error::{Fault, Origin, Position};

use crate::plan::Plan;
use layer::Layer;
use size::{Size, turns_of};

pub use flags::Flags;
/// An error in a specification: line, field and remedy.
pub use sluicegate_base::text_error::TextError as SpecError;

/// Maximum of streams. A plan has 16 bits for their numbers.
const MAX_STREAMS: usize = 4096;
/// Maximum memory of a plan's templates, sizes, lists and sums.
const MAX_BYTES: usize = 64 << 20;

/// A specification of traffic.
#[derive(Clone, Debug)]
pub struct Spec {
    /// Seed of the random numbers; `None` is 0. The same seed gives the same packets.
    pub seed: Option<u64>,
    pub(crate) streams: Vec<StreamSpec>,
    origin: Origin,
}

/// A stream: one kind of packets.
#[derive(Clone, Debug)]
pub(crate) struct StreamSpec {
    pub(crate) name: String,
    /// Its frequency, relative to other streams.
    weight: u32,
    /// Its packets per second; all streams have a rate, or none has.
    rate: Option<u32>,
    /// The number of its packets; `None` for an endless stream.
    pub(crate) count: Option<u64>,
    pub(crate) flows: u32,
    pub(crate) size: Option<(Size, Position)>,
    /// Frames without a size are padded to the Ethernet minimum.
    pad: bool,
    pub(crate) layers: Vec<Layer>,
    place: Position,
}

impl StreamSpec {
    /// Creates a stream with default settings.
    fn new(name: String, layers: Vec<Layer>, place: Position) -> Self {
        let (rate, count, size) = (None, None, None);
        Self { name, weight: 1, rate, count, flows: 1, size, pad: true, layers, place }
    }
}

/// Addresses for fields that the specification does not set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Defaults {
    /// The Ethernet source: the interface's own.
    pub smac: [u8; 6],
    /// The Ethernet destination: that of the neighbour.
    pub dmac: [u8; 6],
    /// The IPv4 source and destination.
    pub ipv4: [Ipv4Addr; 2],
    /// The IPv6 source and destination.
    pub ipv6: [Ipv6Addr; 2],
}

impl Default for Defaults {
    /// Locally administered Ethernet addresses, which no card has, and IP addresses for tests (RFC 2544)
    /// and documentation (RFC 3849).
    fn default() -> Self {
        let ipv6 = |host| Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, host);
        Self {
            smac: [2, 0, 0, 0, 0, 1],
            dmac: [2, 0, 0, 0, 0, 2],
            ipv4: [Ipv4Addr::new(198, 18, 0, 1), Ipv4Addr::new(198, 18, 0, 2)],
            ipv6: [ipv6(1), ipv6(2)],
        }
    }
}

impl Spec {
    /// Returns the packets per second of all streams together, if the streams have rates.
    pub fn rate(&self) -> Option<f64> {
        self.streams.iter().map(|stream| stream.rate.map(f64::from)).sum()
    }

    /// Plans the packets.
    ///
    /// # Errors
    /// Layers that cannot follow each other, sizes too small for the headers, settings that share bits.
    pub fn plan(&self, defaults: &Defaults) -> Result<Plan, SpecError> {
        self.plan_each(&[*defaults])
    }

    /// Plans the packets with addresses for each stream: the element of `defaults` with its number, or the
    /// last one.
    ///
    /// # Errors
    /// The errors of [`plan`](Self::plan).
    pub fn plan_each(&self, defaults: &[Defaults]) -> Result<Plan, SpecError> {
        self.build(defaults).map_err(|fault| self.origin.locate(fault))
    }

    fn build(&self, defaults: &[Defaults]) -> Result<Plan, Fault> {
        let seed = self.seed.unwrap_or(0);
        let weights = self.streams.iter().map(|stream| stream.rate.unwrap_or(stream.weight));
        let turns = turns_of(&weights.collect::<Vec<_>>()).map_err(|problem| {
            let object = if self.rate().is_some() { "rate" } else { "weight" };
            Fault::new(&Position::Nowhere, object, problem)
        })?;
        let mut streams = Vec::new();
        let mut bytes = 0;
        for (index, stream) in self.streams.iter().enumerate() {
            let defaults = defaults.get(index).or(defaults.last()).copied().unwrap_or_default();
            let object = format!("stream {}", stream.name);
            let planned = build::stream(index, stream, seed, &defaults)
                .map_err(|fault| fault.within(&object))?;
            bytes += build::memory_bytes(&planned);
            if bytes > MAX_BYTES {
                let problem = format!(
                    "up to here more than {} MiB are needed: take shorter frames, fewer streams \
                     or sizes",
                    MAX_BYTES >> 20
                );
                return Err(Fault::new(&stream.place, object, problem));
            }
            streams.push(planned);
        }
        Ok(Plan { seed, streams, turns, has_rates: self.rate().is_some() })
    }

    /// Returns the built-in specification `name`.
    ///
    /// # Errors
    /// No profile has this name; the error lists all.
    pub fn profile(name: &str) -> Result<Self, SpecError> {
        let Some(profile) = PROFILES.iter().find(|profile| profile.name == name) else {
            let names: Vec<_> = PROFILES.iter().map(|profile| profile.name).collect();
            let problem = format!("no profile '{name}'; available: {}", names.join(", "));
            return Err(Origin::default().locate(Fault::new(&Position::Nowhere, "", problem)));
        };
        let origin = Origin { name: format!("profile {name}"), text: profile.text.into() };
        let mut spec = file::parse(origin, Path::new(""))?;
        let size = profile.size.map(|size| size.to_string());
        spec.apply(&Flags { size, ..Flags::default() })?;
        Ok(spec)
    }
}

/// A named, built-in specification.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Profile {
    /// The profile's name.
    pub name: &'static str,
    /// The specification in TOML.
    pub text: &'static str,
    /// The size that replaces the one in `text`, for profiles that share a text: bytes without the frame
    /// check sequence.
    size: Option<u16>,
}

const RFC2544: &str = include_str!("../../profiles/rfc2544.toml");

/// All profiles.
pub const PROFILES: &[Profile] = &[
    Profile::of("syn-flood", include_str!("../../profiles/syn-flood.toml")),
    Profile::of("udp-flood", include_str!("../../profiles/udp-flood.toml")),
    Profile::of("dns-amplification", include_str!("../../profiles/dns-amplification.toml")),
    Profile::of("ntp-amplification", include_str!("../../profiles/ntp-amplification.toml")),
    Profile::of("icmp-flood", include_str!("../../profiles/icmp-flood.toml")),
    Profile::of("fragments", include_str!("../../profiles/fragments.toml")),
    Profile::of("imix", include_str!("../../profiles/imix.toml")),
    Profile::of("rfc2544", RFC2544),
    Profile::sized("rfc2544-64", 60),
    Profile::sized("rfc2544-128", 124),
    Profile::sized("rfc2544-256", 252),
    Profile::sized("rfc2544-512", 508),
    Profile::sized("rfc2544-1024", 1020),
    Profile::sized("rfc2544-1280", 1276),
    Profile::sized("rfc2544-1518", 1514),
];

impl Profile {
    const fn of(name: &'static str, text: &'static str) -> Self {
        Self { name, text, size: None }
    }

    /// Creates a profile with one of RFC 2544's sizes, which count the frame check sequence.
    const fn sized(name: &'static str, size: u16) -> Self {
        Self { name, text: RFC2544, size: Some(size) }
    }

    /// Returns a one-line description: the frame size if fixed, otherwise the first line of the text.
    pub fn about(&self) -> Cow<'static, str> {
        match self.size {
            Some(bytes) => format!("one flow of UDP, frames of {bytes} bytes").into(),
            None => self.text.lines().next().unwrap_or_default().trim_start_matches("# ").into(),
        }
    }
}
