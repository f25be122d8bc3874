//! Policies of the suite `scrub`, from a seed: they drop all packets, behind lists of networks, rules and limits.

use std::collections::HashSet;
use std::fmt::Write as _;
use std::fs;
use std::path::Path;

use ipnet::Ipv4Net;
use sluicegate::error::{Error, Result};
use sluicegate_scrub::policy::{AddressCondition, Conditions, Range, Rule};
use sluicegate_scrub::testing::{Random, rule_list};

/// The networks' file in the folder of a policy, one network a line.
pub const NETWORKS: &str = "networks.txt";
/// The policy's file.
pub const POLICY: &str = "policy.toml";
/// The limit of a policy.
const LIMIT: &str = r#"limits = [{ by = "source", packets = "1kpps", burst = "100ms" }]"#;
/// Prefix lengths of the networks, each as often as it stands here.
const LENGTHS: [u8; 10] = [20, 22, 24, 24, 28, 29, 32, 32, 32, 32];

/// Content of a policy.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PolicySize {
    /// Networks of a set.
    pub networks: u32,
    /// Rules.
    pub rules: u32,
    /// Sources are limited.
    pub limit: bool,
    /// TCP connections are challenged.
    pub challenge: bool,
}

impl PolicySize {
    /// Writes the policy and its networks into a folder, which is created.
    ///
    /// # Errors
    /// A file cannot be written.
    pub fn write(self, folder: &Path) -> Result<()> {
        let failed =
            |error| Error::system("write a policy into", folder.display().to_string(), error);
        fs::create_dir_all(folder).map_err(failed)?;
        if self.networks > 0 {
            fs::write(folder.join(NETWORKS), listed(self.networks)).map_err(failed)?;
        }
        fs::write(folder.join(POLICY), self.text()).map_err(failed)
    }

    /// The policy in TOML.
    fn text(self) -> String {
        let mut text = String::from("[profile.default]\ndefault = \"drop\"\n");
        if self.limit {
            text += LIMIT;
            text += "\n";
        }
        if self.challenge {
            text += "tcp = \"always\"\n";
        }
        if self.networks > 0 {
            let _ = write!(text, "\n[set.list]\naction = \"drop\"\nfiles = [\"{NETWORKS}\"]\n");
        }
        for rule in rule_list(&mut Random::new(5), self.rules as usize) {
            let (name, conditions) = (&rule.name, written(&rule));
            let _ = write!(
                text,
                "\n[[rule]]\nname = \"{name}\"\nmatch = {{ {conditions} }}\naction = \"drop\"\n"
            );
        }
        text
    }
}

/// Networks in 0.0.0.0/1, each once: the sources of the suite's packets.
fn networks(count: u32) -> HashSet<Ipv4Net> {
    let mut random = Random::new(1);
    let mut networks = HashSet::new();
    while networks.len() < count as usize {
        let address = random.number() as u32 & (u32::MAX >> 1);
        let network = Ipv4Net::new(address.into(), random.pick(&LENGTHS));
        networks.insert(network.expect("a length of at most 32").trunc());
    }
    networks
}

fn listed(count: u32) -> String {
    let mut networks: Vec<_> = networks(count).into_iter().collect();
    networks.sort_unstable();
    networks.iter().fold(String::new(), |text, network| text + &format!("{network}\n"))
}

/// The conditions of a rule of [`rule_list`] as fields of a match.
fn written(rule: &Rule) -> String {
    let Conditions { version, src, dst, protocol, sport, dport, tcp_flags, .. } = &rule.conditions;
    let mut fields: Vec<String> = version.iter().map(|it| format!("version = {it}")).collect();
    for (key, addresses) in [("src", src), ("dst", dst)] {
        fields.extend(addresses.iter().filter_map(|it| match it {
            AddressCondition::Network(network) => Some(format!("{key} = \"{network}\"")),
            AddressCondition::Set(_) => None,
        }));
    }
    fields.extend(protocol.iter().map(|it| format!("protocol = {it}")));
    for (key, ports) in [("sport", sport), ("dport", dport)] {
        let port = |Range { first, last }: &Range<u16>| format!("{key} = \"{first}-{last}\"");
        fields.extend(ports.iter().map(port));
    }
    fields.extend(tcp_flags.iter().map(|it| {
        let syn = if it.value & 0x02 == 0 { "!syn" } else { "syn" };
        let ack = if it.value & 0x10 == 0 { "!ack" } else { "ack" };
        format!("tcp_flags = \"{syn},{ack}\"")
    }));
    fields.join(", ")
}

#[cfg(test)]
mod tests {
    use sluicegate_scrub::policy::Policy;

    use super::*;

    #[test]
    fn a_policy_has_what_was_requested() {
        let folder = tempfile::tempdir().unwrap();
        let size = PolicySize { networks: 1000, rules: 200, limit: true, challenge: false };
        size.write(folder.path()).unwrap();
        let policy = Policy::read(&folder.path().join(POLICY)).unwrap();
        assert_eq!(policy.sets[0].networks.len(), 1000);
        assert_eq!(policy.limits().count(), 1);
        let wanted = rule_list(&mut Random::new(5), 200);
        assert_eq!(policy.rules.len(), 200);
        for (read, wanted) in policy.rules.iter().zip(&wanted) {
            assert_eq!((&read.name, &read.conditions), (&wanted.name, &wanted.conditions));
        }
    }

    #[test]
    fn the_same_networks_are_listed_again() {
        assert_eq!(listed(500), listed(500));
    }
}
