//! Sets of networks, and the look-up of an address in all of them at once.

mod classes;
mod prefixes;
mod v4;
mod v6;

use std::net::IpAddr;

use ipnet::IpNet;

use crate::image::Image;
use crate::prefix::Prefix;
use classes::Classes;
pub use classes::{MAX_CLASSES, Membership, SetBits, TooManyClasses};
use prefixes::resolve;
use v4::V4Table;
use v6::V6Table;

/// Room for lengths in `struct scrub_set_params`.
const LENGTHS: usize = 112;

/// The tables of all sets and protected networks.
#[derive(Debug)]
pub struct SetTables {
    v4: V4Table,
    v6: V6Table,
    classes: Classes,
}

/// The parameters of sets, and their tables outside of the image.
#[derive(Debug)]
pub struct SetParams {
    /// `struct scrub_set_params`.
    pub params: Vec<u8>,
    /// The distance of the page of each /16 of IPv4 from the first one.
    pub v4_page_of: Vec<u32>,
    /// `struct scrub_networks` of IPv4 and IPv6.
    pub networks: [Vec<u8>; 2],
}

impl SetTables {
    /// Builds the tables of networks and their memberships; those of a network that comes again are added.
    ///
    /// # Errors
    /// Networks overlap in too many ways.
    pub fn build(
        networks: impl IntoIterator<Item = (IpNet, Membership)>,
        seed: u64,
    ) -> Result<Self, TooManyClasses> {
        let (mut v4, mut v6) = (Vec::new(), Vec::new());
        for (network, membership) in networks {
            let of_family = if matches!(network, IpNet::V4(_)) { &mut v4 } else { &mut v6 };
            of_family.push((Prefix::from(network), membership));
        }
        let mut classes = Classes::default();
        let v4 = V4Table::build(&resolve(v4, &mut classes)?, seed);
        let v6 = V6Table::build(&resolve(v6, &mut classes)?, seed);
        Ok(Self { v4, v6, classes })
    }

    /// Returns an address's memberships, by the look-ups of the XDP program.
    pub fn find(&self, address: IpAddr) -> Membership {
        self.classes.membership(match address {
            IpAddr::V4(it) => self.v4.class(it.into()),
            IpAddr::V6(it) => self.v6.class(it.into()),
        })
    }

    /// Appends the tables to an image; `profile_of` returns the profile of a protected network, by its number.
    pub fn append(&self, image: &mut Image, profile_of: impl Fn(u16) -> u16) -> SetParams {
        let classes = self.classes.append(image, &profile_of);
        let (v4, v6) = (self.v4.append(image), self.v6.append(image));
        let mut lengths = [0; LENGTHS];
        lengths[..v6.lengths.len()].copy_from_slice(&v6.lengths);
        let tables = [v4.pages, v6.first, v6.prefixes];
        let numbers = [v6.lengths.len() as u32, classes, v4.root_page];
        let mut params: Vec<u8> =
            tables.iter().chain(&numbers).flat_map(|it| it.to_ne_bytes()).collect();
        params.extend(self.classes.membership(v4.root).encode(&profile_of));
        params.extend(v4.longer);
        params.extend(v6.index);
        params.extend(v6.seed.to_ne_bytes());
        params.extend(lengths);
        let networks = [self.v4.bitmap(), self.v6.bitmap()];
        let networks = networks.map(|it| it.iter().flat_map(|it| it.to_ne_bytes()).collect());
        SetParams { params, v4_page_of: v4.page_of, networks }
    }
}
