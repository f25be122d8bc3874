//! Tables: a policy in the form that the XDP program reads.
//!
//! ```text
//!   policy --> networks, sets --> SetTables --+
//!          --> rules ----------> RuleTables --+--> image, parameters
//!          --> limits, profiles, classes -----+
//! ```

mod limits;
mod profiles;
mod rules;

use ipnet::IpNet;

use crate::image::{Image, MAX_BYTES};
use crate::policy::{Policy, Profile, SetAction};
use crate::rules::{RuleTables, RulesError};
use crate::sets::{Membership, SetTables, TooManyClasses};

/// Maximum of IPv6 networks of all sets: of more, two would often have the same tag (sets/v6.rs).
pub const MAX_IPV6: usize = 1 << 20;

/// A policy's tables.
#[derive(Debug)]
pub struct Tables {
    /// Most tables.
    pub image: Image,
    /// `struct scrub_params`.
    pub params: Vec<u8>,
}

/// A policy that does not fit into tables.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TablesError {
    /// Networks overlap in too many ways.
    #[error(transparent)]
    Classes(#[from] TooManyClasses),
    /// There are more IPv6 networks than their index tells apart.
    #[error("{0} IPv6 networks are too many: at most {MAX_IPV6}")]
    TooManyIpv6(usize),
    /// A rule has too many combinations of alternatives.
    #[error("rule {rule}: its alternatives have {count} combinations or more: write several rules")]
    TooManyAlternatives {
        /// Its name.
        rule: String,
        /// The number of combinations.
        count: usize,
    },
    /// The tables do not fit into an image.
    #[error("the tables take {0} MiB: at most {max}; make the sets smaller", max = MAX_BYTES >> 20)]
    TooLarge(usize),
    /// The rules have no tables.
    #[error(transparent)]
    Rules(#[from] RulesError),
}

impl Tables {
    /// Makes the tables of a policy. The seed makes hashes unpredictable for senders.
    ///
    /// # Errors
    /// The policy is too large or too involved.
    pub fn build(policy: &Policy, seed: u64) -> Result<Self, TablesError> {
        let ipv6 = memberships(policy).filter(|(net, _)| matches!(net, IpNet::V6(_))).count();
        if ipv6 > MAX_IPV6 {
            return Err(TablesError::TooManyIpv6(ipv6));
        }
        let mut image = Image::default();
        let default = [Profile::default()];
        let profiles =
            if policy.profiles.is_empty() { &default } else { policy.profiles.as_slice() };
        let sets = SetTables::build(memberships(policy), seed)?;
        let sets = sets.append(&mut image, |network| match network {
            0 => 0,
            _ => policy.networks.get(usize::from(network) - 1).map_or(0, |it| it.profile as u16),
        });
        let rules = RuleTables::build(&rules::records(policy)?, seed)?;
        let numbers = limits::Numbers::of(policy);
        let actions = profiles::append_actions(&mut image, policy, &numbers);
        let first_limit = limits::append(&mut image, policy);
        let first_profile = profiles::append(&mut image, profiles, &numbers);
        let (ports, classes) = profiles::append_classes(&mut image);
        let with = |action: SetAction| bits_of(policy, action);
        let words = [with(SetAction::Pass), with(SetAction::Drop)];
        let tunnels = u32::from(policy.tunnels.gre) | u32::from(policy.tunnels.ipip) << 1;
        let lines = [actions, first_limit, first_profile, ports, classes, tunnels];
        let mut params: Vec<u8> = words.iter().flat_map(|it| it.to_ne_bytes()).collect();
        params.extend(lines.iter().flat_map(|it| it.to_ne_bytes()));
        params.extend(sets);
        params.extend(rules.append(&mut image));
        params.extend(rules.filter());
        if image.bytes() > MAX_BYTES {
            return Err(TablesError::TooLarge(image.bytes() >> 20));
        }
        Ok(Self { image, params })
    }

    /// Returns the bytes of all tables.
    pub fn bytes(&self) -> u64 {
        (self.image.bytes() + self.params.len()) as u64
    }
}

/// Returns a bit for each set that has this action.
fn bits_of(policy: &Policy, action: SetAction) -> u64 {
    let sets = policy.sets.iter().enumerate();
    sets.filter(|(_, it)| it.action == action).fold(0, |bits, (at, _)| bits | 1 << at)
}

/// Returns all networks of a policy and their memberships. Without protected networks, everything is protected.
fn memberships(policy: &Policy) -> impl Iterator<Item = (IpNet, Membership)> {
    let everything = ["0.0.0.0/0", "::/0"].map(|it| it.parse().expect("a network"));
    let everything = everything.map(|net: IpNet| (net, Membership { sets: 0, network: 1 }));
    let everything = everything.into_iter().filter(|_| policy.networks.is_empty());
    let protected = policy.networks.iter().zip(1..).flat_map(|(protected, network)| {
        protected.networks.iter().map(move |net| (*net, Membership { sets: 0, network }))
    });
    let sets = policy.sets.iter().enumerate().flat_map(|(at, set)| {
        set.networks.iter().map(move |net| (*net, Membership { sets: 1 << at, network: 0 }))
    });
    everything.chain(protected).chain(sets)
}
