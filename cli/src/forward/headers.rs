//! Flags for other addresses and VLAN tags in what is forwarded.

use sluicegate::error::{Error, Result};
use sluicegate::forward::{Rewriter, Vlan};
use sluicegate::link::Mac;

/// Changes to Ethernet headers, in both directions.
#[derive(clap::Args, Clone, Debug)]
#[group(id = "headers", multiple = true, conflicts_with = "in_kernel")]
#[command(next_help_heading = "Ethernet headers")]
pub struct Headers {
    /// Source address of what goes to the second port
    #[arg(long, value_name = "MAC")]
    smac: Option<Mac>,

    /// Destination address of what goes to the second port
    #[arg(long, value_name = "MAC")]
    dmac: Option<Mac>,

    /// VLAN tags of what goes to the second port: push:10, set:10 or pop
    #[arg(long, value_name = "CHANGE", value_parser = vlan)]
    vlan: Option<Vlan>,

    /// Source address of what goes back to the first port
    #[arg(long, value_name = "MAC")]
    reverse_smac: Option<Mac>,

    /// Destination address of what goes back to the first port
    #[arg(long, value_name = "MAC")]
    reverse_dmac: Option<Mac>,

    /// VLAN tags of what goes back to the first port: push:10, set:10 or pop
    #[arg(long, value_name = "CHANGE", value_parser = vlan)]
    reverse_vlan: Option<Vlan>,
}

impl Headers {
    /// Refuses changes of what does not come back.
    pub fn check(&self, one_way: bool) -> Result<()> {
        let back = self.reverse_smac.is_some()
            || self.reverse_dmac.is_some()
            || self.reverse_vlan.is_some();
        match one_way && back {
            true => Err(Error::Usage(
                "--one-way sends nothing back: remove the --reverse- flags".into(),
            )),
            false => Ok(()),
        }
    }

    /// Of packets that come in at each port; none where nothing changes.
    pub fn rewriters(&self) -> [Option<Rewriter>; 2] {
        [
            rewriter(self.smac, self.dmac, self.vlan),
            rewriter(self.reverse_smac, self.reverse_dmac, self.reverse_vlan),
        ]
    }
}

fn rewriter(smac: Option<Mac>, dmac: Option<Mac>, vlan: Option<Vlan>) -> Option<Rewriter> {
    let changes = smac.is_some() || dmac.is_some() || vlan.is_some();
    let [source, destination] = [smac, dmac].map(|mac| mac.map(|mac| mac.0));
    changes.then(|| Rewriter::new(source, destination, vlan))
}

fn vlan(text: &str) -> std::result::Result<Vlan, String> {
    let number = |text: &str| {
        let number = text.parse().ok().filter(|number| (1..=4094).contains(number));
        number.ok_or_else(|| format!("VLAN '{text}': use 1 to 4094"))
    };
    match text.split_once(':') {
        Some(("push", text)) => number(text).map(Vlan::Push),
        Some(("set", text)) => number(text).map(Vlan::Set),
        None if text == "pop" => Ok(Vlan::Pop),
        _ => Err("use push:VLAN, set:VLAN or pop".into()),
    }
}
