//! Reads profiles.

use sluicegate_base::text_error::{Fault, Position};
use toml::de::DeValue;

use super::PolicyReader;
use super::limit;
use super::names::available;
use super::table::{Value, choice, expect_table, in_order, not, place, unknown};
use super::tcp;
use crate::policy::{
    AMPLIFICATION, ClassAction, FragmentAction, LimitKey, MAX_PROFILES, Profile, Verdict,
};

const KEYS: &[&str] = &["amplification", "fragments", "tcp", "limits", "default"];

impl PolicyReader<'_> {
    pub(super) fn profile(&mut self, name: &str, value: &Value) -> Result<(), Fault> {
        if name != "default" && self.policy.profiles.len() == MAX_PROFILES {
            let problem = format!("more than {MAX_PROFILES} profiles, with `default`: join some");
            return Err(Fault::new(&place(value), "", problem));
        }
        let mut profile = Profile { name: name.into(), ..Profile::default() };
        for (key, value) in in_order(expect_table(value, "", "a table")?) {
            match key.get_ref().as_ref() {
                "amplification" => {
                    profile.amplification =
                        self.amplification(value).map_err(|fault| fault.within("amplification"))?;
                }
                "fragments" => {
                    let choices = [
                        ("follow", FragmentAction::Follow),
                        ("known", FragmentAction::Known),
                        ("drop", FragmentAction::Drop),
                    ];
                    profile.fragments = choice(value, "fragments", &choices)?;
                }
                "tcp" => profile.tcp = tcp::read(value).map_err(|fault| fault.within("tcp"))?,
                "limits" => {
                    profile.limits = limit::read(value, LimitKey::Source)
                        .and_then(|it| self.count_limits(value, it.len()).map(|()| it))
                        .map_err(|fault| fault.within("limits"))?;
                }
                "default" => {
                    let choices = [("pass", Verdict::Pass), ("drop", Verdict::Drop)];
                    profile.default = choice(value, "default", &choices)?;
                }
                _ => return Err(unknown(key, KEYS)),
            }
        }
        match name {
            "default" => self.policy.profiles[0] = profile,
            _ => self.policy.profiles.push(profile),
        }
        Ok(())
    }

    fn amplification(&mut self, value: &Value) -> Result<Vec<ClassAction>, Fault> {
        let DeValue::Table(table) = value.get_ref() else {
            let action =
                choice(value, "", &[("drop", true), ("continue", false)]).map_err(|_| {
                    not(
                        value,
                        "",
                        "\"drop\", \"continue\" or { default = \"drop\", dns = \"continue\" }",
                    )
                })?;
            let action = if action { ClassAction::Drop } else { ClassAction::Continue };
            return Ok(vec![action; AMPLIFICATION.len()]);
        };
        let mut classes = vec![None; AMPLIFICATION.len()];
        for (key, value) in in_order(table) {
            let name = key.get_ref().as_ref();
            if name == "default" {
                continue;
            }
            let Some(class) = AMPLIFICATION.iter().position(|it| it.name == name) else {
                let known = available(AMPLIFICATION.iter().map(|it| it.name), name);
                let problem = format!("there is no class '{name}'; {known}, or default");
                return Err(Fault::new(&Position::Text(key.span()), "", problem));
            };
            let action = self.class_action(value, 1).map_err(|fault| fault.within(name))?;
            classes[class] = Some(action);
        }
        let rest = classes.iter().filter(|it| it.is_none()).count();
        let default = match table.get("default") {
            Some(value) => self.class_action(value, rest).map_err(|it| it.within("default"))?,
            None => ClassAction::default(),
        };
        Ok(classes.into_iter().map(|it| it.unwrap_or_else(|| default.clone())).collect())
    }

    /// Reads the action of some classes.
    fn class_action(&mut self, value: &Value, classes: usize) -> Result<ClassAction, Fault> {
        match value.get_ref().as_str() {
            Some("drop") => Ok(ClassAction::Drop),
            Some("continue") => Ok(ClassAction::Continue),
            Some(_) => Err(not(value, "", "\"drop\", \"continue\" or a limit")),
            None => {
                let limits = limit::read(value, LimitKey::Destination)?;
                self.count_limits(value, limits.len() * classes)?;
                Ok(ClassAction::Limit(limits))
            }
        }
    }
}
