//! The policy: protected networks, and the actions on packets to them.
//!
//! A packet meets these stages in this order, and the first that decides ends its way. Of [`Tunnels`] that the policy names,
//! this is the packet inside; the tunnel itself if it [cannot be looked into](crate::packet), or if the destination inside
//! is not protected, because otherwise a flood of tunnels could pass. Limits by bits count the frame in any case.
//!
//! 1. Packets that are not IP pass: ARP must work.
//! 2. Malformed packets are dropped. Then messages of IPv6 neighbor discovery pass, which are not in a tunnel.
//! 3. Packets to networks that are not protected pass.
//! 4. Later fragments whose first one came within 2 s: dropped if it was dropped. If it passed, they meet the sets and
//!    the profile's limits, and pass; limits of rules and classes count the first one only. One that overlaps those
//!    before it in order is dropped, and those that exceed the longest packet: 255 units of 512 bytes, rounded up for
//!    each.
//! 5. Sets with `action = "pass"`, then those with `action = "drop"`, by the source. Of several, the first decides.
//! 6. Rules, in their order: the first rule that matches is the only one that acts. `drop` and `pass` decide; a limit
//!    drops the packets above it; a [challenge](UdpChallenge) answers queries of sources that are not verified, and may
//!    answer others from a cache; all others continue with the next stage.
//! 7. Amplification: answers of protocols that attackers use as reflectors.
//! 8. Other fragments, then [TCP](TcpProtection), as the network's profile says.
//! 9. The profile's limits, in their order. Here and above, limits are charged until one refuses the packet, and those
//!    before it stay charged. All networks of a profile share its limits.
//! 10. The profile's default.

mod amplification;
mod conditions;
mod limit;
mod tcp;
mod text;
mod udp;

use ipnet::{IpNet, Ipv4Net, Ipv6Net};

use crate::packet::Tunnels;
pub use amplification::{AMPLIFICATION, AmplificationClass, PayloadByte};
pub use conditions::{AddressCondition, Conditions, FlagCondition, PayloadCondition, Range};
pub use limit::{Limit, LimitKey, Rate};
pub use tcp::{Challenge, HOLD_SECONDS, Handover, TcpProtection, Threshold};
pub use text::{PolicyError, parse_network, read_networks};
pub use udp::{UdpChallenge, UdpQuery};

/// Maximum of sets: an address's memberships are a bit each.
pub const MAX_SETS: usize = 64;
/// Maximum of protected networks.
pub const MAX_NETWORKS: usize = 1024;
/// Maximum of profiles.
pub const MAX_PROFILES: usize = 64;
/// Maximum of limits, of rules and profiles together.
pub const MAX_LIMITS: usize = 1024;
/// Maximum of limits of one rule, class or profile.
pub const MAX_LIMITS_OF_ONE: usize = 4;
/// Maximum of rules.
pub const MAX_RULES: usize = 16_384;

/// A policy; its parts refer to each other by their places in these lists.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Policy {
    /// The protected networks. None: all addresses are protected, by the profile `default`.
    pub networks: Vec<ProtectedNetwork>,
    /// The profiles. The first is `default`, as built in if the policy does not define it.
    pub profiles: Vec<Profile>,
    /// The sets.
    pub sets: Vec<Set>,
    /// The rules, in their order.
    pub rules: Vec<Rule>,
    /// Tunnels: the packet inside decides, if its destination is protected.
    pub tunnels: Tunnels,
}

/// Networks that are protected alike.
#[derive(Clone, Debug, PartialEq)]
pub struct ProtectedNetwork {
    /// Its name.
    pub name: String,
    /// The networks; of several that have an address, the longest counts, and of two equal ones the first.
    pub networks: Vec<IpNet>,
    /// The place of its profile.
    pub profile: usize,
}

/// A set of networks.
#[derive(Clone, Debug, PartialEq)]
pub struct Set {
    /// Its name.
    pub name: String,
    /// The action on packets from its networks.
    pub action: SetAction,
    /// Its networks, those of its files included.
    pub networks: Vec<IpNet>,
}

/// The action on packets whose source is in a set.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum SetAction {
    /// Nothing: rules name the set.
    #[default]
    None,
    /// They pass.
    Pass,
    /// They are dropped.
    Drop,
}

/// A rule.
#[derive(Clone, Debug, PartialEq)]
pub struct Rule {
    /// Its name, unique in the policy: its counters have it.
    pub name: String,
    /// The conditions, all of which a packet meets.
    pub conditions: Conditions,
    /// The action on packets that match.
    pub action: RuleAction,
    /// One of this number of packets is sampled; 0 for none.
    pub sample: u32,
    /// The DSCP that packets get.
    pub mark: Option<u8>,
    /// The line, from 1, that begins it in a policy's text.
    pub line: Option<usize>,
}

/// The action of a rule.
#[derive(Clone, Debug, PartialEq)]
pub enum RuleAction {
    /// Drops packets.
    Drop,
    /// Passes packets, past all later stages.
    Pass,
    /// Drops packets above limits; others go on to the next stage.
    Limit(Vec<Limit>),
    /// Answers queries of sources that are not verified; others go on to the next stage.
    Challenge(UdpChallenge),
    /// Counts, samples or marks packets, which go on to the next stage.
    Continue,
}

/// A profile: the protection of networks.
#[derive(Clone, Debug, PartialEq)]
pub struct Profile {
    /// Its name.
    pub name: String,
    /// The action on each amplification class, in the order of [`AMPLIFICATION`].
    pub amplification: Vec<ClassAction>,
    /// The action on fragments.
    pub fragments: FragmentAction,
    /// The protection of TCP.
    pub tcp: TcpProtection,
    /// Limits on all packets that reach them.
    pub limits: Vec<Limit>,
    /// The verdict on packets that no stage decided.
    pub default: Verdict,
}

/// The action on packets of an amplification class.
#[derive(Clone, Debug, Default, PartialEq)]
pub enum ClassAction {
    /// They go on to the next stage.
    #[default]
    Continue,
    /// They are dropped.
    Drop,
    /// They are dropped above limits; others go on to the next stage.
    Limit(Vec<Limit>),
}

/// The action on fragments. It does not concern later fragments whose first one is known: these follow it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum FragmentAction {
    /// Others go on to the next stage.
    #[default]
    Follow,
    /// Later fragments whose first one is unknown are dropped.
    Known,
    /// All that reach this stage are dropped, first ones too.
    Drop,
}

/// The end of a packet's way.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Verdict {
    /// To the host, or to the other side.
    #[default]
    Pass,
    /// Dropped.
    Drop,
    /// Answered by the scrubber, and not passed.
    Answer,
}

impl Verdict {
    /// All verdicts.
    pub const ALL: [Self; 3] = [Self::Pass, Self::Drop, Self::Answer];

    /// Returns its name in output.
    pub fn name(self) -> &'static str {
        match self {
            Self::Pass => "pass",
            Self::Drop => "drop",
            Self::Answer => "answer",
        }
    }
}

impl Default for Profile {
    fn default() -> Self {
        Self {
            name: "default".into(),
            amplification: vec![ClassAction::Continue; AMPLIFICATION.len()],
            fragments: FragmentAction::default(),
            tcp: TcpProtection::default(),
            limits: Vec::new(),
            default: Verdict::default(),
        }
    }
}

impl Policy {
    /// Reports whether packets of unknown TCP flows are dropped for some network.
    pub fn knows_flows(&self) -> bool {
        self.profiles.iter().any(|it| it.tcp.state)
    }

    /// Reports whether packets of unknown TCP flows are dropped for a network where they pass with an earlier policy.
    pub fn knows_more_flows(&self, earlier: &Self) -> bool {
        if self.networks == earlier.networks && self.profiles == earlier.profiles {
            return false;
        }
        let all = [IpNet::from(Ipv4Net::default()), Ipv6Net::default().into()];
        let networks = self.networks.iter().chain(&earlier.networks).flat_map(|it| &it.networks);
        networks.chain(&all).any(|it| self.knows_flows_to(it) && !earlier.knows_flows_to(it))
    }

    /// Reports whether packets of unknown TCP flows to a network are dropped. The longest protected one with it
    /// decides.
    fn knows_flows_to(&self, network: &IpNet) -> bool {
        let longest = |it: &ProtectedNetwork| {
            let with_it = it.networks.iter().filter(|it| it.contains(network));
            with_it.map(|it| it.prefix_len()).max().map(|length| (length, it.profile))
        };
        let profile = match self.networks.is_empty() {
            true => Some(0),
            false => self.networks.iter().filter_map(longest).max().map(|it| it.1),
        };
        profile.and_then(|it| self.profiles.get(it)).is_some_and(|it| it.tcp.state)
    }

    /// Reports whether connections of challenged clients of some network may be handed over to the kernel.
    pub fn hands_over(&self) -> bool {
        let mut all = self.profiles.iter().map(|it| it.tcp);
        all.any(|it| it.challenge != Challenge::Off && it.handover != Handover::Off)
    }

    /// Reports whether answers of this host's game servers are kept for some rule.
    pub fn caches_answers(&self) -> bool {
        let caches = |it: &Rule| {
            matches!(it.action, RuleAction::Challenge(UdpChallenge { cache: Some(_), .. }))
        };
        self.rules.iter().any(caches)
    }

    /// Returns all limits, each once: of rules in their order, then of profiles (amplification classes first).
    /// A limit's number is its place here.
    pub fn limits(&self) -> impl Iterator<Item = &Limit> {
        let of_rules = self.rules.iter().flat_map(|rule| match &rule.action {
            RuleAction::Limit(limits) => limits.as_slice(),
            _ => &[],
        });
        let of_profiles = self.profiles.iter().flat_map(|profile| {
            let of_classes = profile.amplification.iter().flat_map(|it| match it {
                ClassAction::Limit(limits) => limits.as_slice(),
                _ => &[],
            });
            of_classes.chain(&profile.limits)
        });
        of_rules.chain(of_profiles)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flows_are_learned_where_a_policy_begins_to_know_them() {
        let policy = |networks: &str| {
            let profiles = "[profile.on]\ntcp = { state = 'on' }\n[profile.off]\n";
            let networks = networks.split_whitespace().zip(0..).map(|(it, number)| {
                let (profile, network) = it.split_once('=').unwrap();
                format!("[protect.n{number}]\nnetworks = ['{network}']\nprofile = '{profile}'\n")
            });
            Policy::parse(&format!("{profiles}{}", networks.collect::<String>())).unwrap()
        };
        for (earlier, later, learns) in [
            ("", "on=10.0.0.0/8", true),
            ("on=10.0.0.0/8", "on=10.0.0.0/8", false),
            ("on=10.0.0.0/8", "on=10.0.0.0/8 on=192.0.2.0/24", true),
            ("on=10.0.0.0/8", "on=10.0.0.0/8 on=2001:db8::/32", true),
            ("on=10.0.0.0/8 off=192.0.2.0/24", "on=10.0.0.0/8 on=192.0.2.0/24", true),
            ("on=10.0.0.0/8", "on=10.1.0.0/16 off=192.0.2.0/24", false),
            // Without the longer network, the shorter one decides.
            ("on=10.0.0.0/8 off=10.1.0.0/16", "on=10.0.0.0/8", true),
            ("on=10.0.0.0/8", "off=10.0.0.0/8", false),
        ] {
            let (earlier_policy, later_policy) = (policy(earlier), policy(later));
            assert_eq!(
                later_policy.knows_more_flows(&earlier_policy),
                learns,
                "{earlier}: {later}"
            );
        }
        let all = Policy::parse("profile.default.tcp = { state = 'on' }").unwrap();
        assert!(all.knows_more_flows(&Policy::default()));
        assert!(all.knows_more_flows(&policy("on=10.0.0.0/8")));
        assert!(!policy("on=10.0.0.0/8").knows_more_flows(&all));
    }
}
