//! Where a bench ran, as far as numbers depend on it.

use std::fmt::{self, Display};
use std::fs;

use serde::{Deserialize, Serialize};

/// Where a bench ran.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Machine {
    /// CPUs that are in use.
    pub cpus: u32,
    /// The CPU model; empty if the kernel does not name it.
    pub model: String,
    /// True if the CPU reports a hypervisor.
    pub virtual_machine: bool,
    /// The kernel's release.
    pub kernel: String,
}

impl Machine {
    /// This one.
    pub fn here() -> Self {
        let kernel = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
        let cpuinfo = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
        Self { kernel: kernel.trim().into(), ..Self::of(&cpuinfo) }
    }

    fn of(cpuinfo: &str) -> Self {
        let values = |key: &str| {
            let key = key.to_owned();
            cpuinfo.lines().filter_map(move |line| {
                let (name, value) = line.split_once(':')?;
                (name.trim() == key).then(|| value.trim())
            })
        };
        let flags = values("flags").next().unwrap_or_default();
        Self {
            cpus: values("processor").count() as u32,
            model: values("model name").next().unwrap_or_default().into(),
            virtual_machine: flags.split_whitespace().any(|flag| flag == "hypervisor"),
            kernel: String::new(),
        }
    }
}

/// "2 CPUs (AMD EPYC, virtual), Linux 6.18".
impl Display for Machine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { cpus, model, virtual_machine, kernel } = self;
        let kind = if *virtual_machine { ", virtual" } else { "" };
        write!(f, "{cpus} CPUs ({model}{kind}), Linux {kernel}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_machine_is_told_by_what_the_kernel_says() {
        let text = "processor\t: 0\nmodel name\t: A CPU\nflags\t\t: fpu hypervisor\n\n\
                    processor\t: 1\nmodel name\t: A CPU\nflags\t\t: fpu\n";
        let machine = Machine::of(text);
        let expected = Machine {
            cpus: 2,
            model: "A CPU".into(),
            virtual_machine: true,
            kernel: String::new(),
        };
        assert_eq!(machine, expected);
        let shown = Machine { kernel: "6.18".into(), ..machine }.to_string();
        assert_eq!(shown, "2 CPUs (A CPU, virtual), Linux 6.18");
        assert!(!Machine::here().kernel.is_empty());
    }
}
