//! Sets of networks, and the look-up of an address in all of them at once.

mod bitmaps;
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

    /// Appends the tables to an image; `profile_of` returns the profile of a protected network, by its number. Returns
    /// `struct scrub_set_params`.
    pub fn append(&self, image: &mut Image, profile_of: impl Fn(u16) -> u16) -> Vec<u8> {
        let classes = self.classes.append(image, &profile_of);
        let (v4, v6) = (self.v4.append(image), self.v6.append(image));
        let mut lengths = [0; LENGTHS];
        lengths[..v6.lengths.len()].copy_from_slice(&v6.lengths);
        let of_v4 = [v4.ranks, v4.blocks, v4.kinds, v4.mixed, v4.root.bits().into()];
        let of_v6 = [v6.first, v6.prefixes, classes, v6.lengths.len() as u32, 0];
        let bitmaps = v4.bitmaps.iter().chain(&v6.bitmaps);
        let numbers = bitmaps.chain(&of_v4).chain(&of_v6);
        let mut params: Vec<u8> = numbers.flat_map(|it| it.to_ne_bytes()).collect();
        for root in [v4.root, v6.root] {
            params.extend(self.classes.membership(root).encode(&profile_of));
        }
        params.extend(v4.mixed_index);
        params.extend(v4.longer);
        params.extend(v6.networks);
        params.extend(v6.index);
        params.extend(v6.seed.to_ne_bytes());
        params.extend(lengths);
        params
    }
}
