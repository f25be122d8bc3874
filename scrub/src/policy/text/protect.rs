//! Reads protected networks.

use sluicegate_base::text_error::Fault;

use super::names::available;
use super::table::{Value, each, expect_table, expect_text, in_order, place, unknown};
use super::{PolicyReader, networks};
use crate::policy::{MAX_NETWORKS, ProtectedNetwork};

const KEYS: &[&str] = &["networks", "profile"];

impl PolicyReader<'_> {
    pub(super) fn protect(&mut self, name: &str, value: &Value) -> Result<(), Fault> {
        let mut protected =
            ProtectedNetwork { name: name.into(), networks: Vec::new(), profile: 0 };
        for (key, value) in in_order(expect_table(value, "", "a table with networks")?) {
            match key.get_ref().as_ref() {
                "networks" => {
                    for value in each(value, "networks")? {
                        self.protected_network(&mut protected, value)?;
                    }
                }
                "profile" => protected.profile = self.find_profile(value)?,
                _ => return Err(unknown(key, KEYS)),
            }
        }
        if protected.networks.is_empty() {
            return Err(Fault::new(&place(value), "", "it has no networks: give it some"));
        }
        self.policy.networks.push(protected);
        Ok(())
    }

    fn protected_network(
        &self,
        protected: &mut ProtectedNetwork,
        value: &Value,
    ) -> Result<(), Fault> {
        let network = networks::read(value, "networks")?;
        let all = || self.policy.networks.iter().chain([&*protected]);
        if let Some(other) = all().find(|it| it.networks.contains(&network)) {
            let problem = format!("{network} is already in protect {}: remove one", other.name);
            return Err(Fault::new(&place(value), "networks", problem));
        }
        if all().map(|it| it.networks.len()).sum::<usize>() == MAX_NETWORKS {
            let problem = format!("more than {MAX_NETWORKS} protected networks: join some");
            return Err(Fault::new(&place(value), "networks", problem));
        }
        protected.networks.push(network);
        Ok(())
    }

    fn find_profile(&self, value: &Value) -> Result<usize, Fault> {
        let name = expect_text(value, "profile", "the name of a profile")?;
        let profiles = &self.policy.profiles;
        profiles.iter().position(|it| it.name == name).ok_or_else(|| {
            let known = available(profiles.iter().map(|it| it.name.as_str()), name);
            let problem = format!("there is no profile '{name}'; {known}");
            Fault::new(&place(value), "profile", problem)
        })
    }
}
