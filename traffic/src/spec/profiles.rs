//! Built-in specifications: attacks, mixes, standard tests. Their files, `traffic/profiles/*.toml`,
//! are meant to be copied and changed.

use std::path::Path;

use super::fault::{Fault, Origin, Position, SpecError};
use super::size::Size;
use super::{Spec, file};

/// A specification with a name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Profile {
    /// The profile's name.
    pub name: &'static str,
    /// The file.
    pub text: &'static str,
    /// The size of its frames in place of the file's, if it is one of several for which there
    /// is one file: bytes without the frame check sequence.
    size: Option<u16>,
}

const RFC2544: &str = include_str!("../../profiles/rfc2544.toml");

/// All there are.
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

    /// One size of RFC 2544's: its sizes count the frame check sequence.
    const fn sized(name: &'static str, size: u16) -> Self {
        Self { name, text: RFC2544, size: Some(size) }
    }

    /// A one-line description: the file's first line.
    pub fn about(&self) -> &'static str {
        self.text.lines().next().unwrap_or_default().trim_start_matches("# ")
    }
}

impl Spec {
    /// Returns the built-in specification `name`.
    ///
    /// # Errors
    /// There is none of this name: the error lists those there are.
    pub fn profile(name: &str) -> Result<Self, SpecError> {
        let Some(profile) = PROFILES.iter().find(|profile| profile.name == name) else {
            let names: Vec<_> = PROFILES.iter().map(|profile| profile.name).collect();
            let problem = format!("there is no profile '{name}': there are {}", names.join(", "));
            return Err(Origin::default().locate(Fault::new(&Position::Nowhere, "", problem)));
        };
        let mut spec = file::parse(&format!("profile {name}"), profile.text, Path::new(""))?;
        if let Some(size) = profile.size {
            for stream in &mut spec.streams {
                stream.size = Some((Size::InTurn(vec![size]), Position::Nowhere));
            }
        }
        Ok(spec)
    }
}
