//! Rejects a second unfiltered claim on a queue, which would get nothing, and a second port that drops the rest.

use std::ops::{Range, RangeInclusive};
use std::sync::Arc;

use super::name::PortName;
use crate::error::{Error, Result};
use crate::xdp::resident::{Action, ClaimLock, DROP, OwnedStage, Owner, Resident, Stage, WHOLE};

/// Takes the first free stage in a range for a port.
///
/// # Errors
/// As [`Stage::take`]; also if this owner and another would both take everything, or both drop the rest.
pub(super) fn take(
    name: &PortName,
    resident: &Arc<Resident>,
    stages: Range<u32>,
    owner: &Owner,
) -> Result<Stage> {
    if !is_whole(owner, stages.start) && stages.start != DROP {
        return Stage::take(resident, stages, owner);
    }
    // Held until our entry is among the owners.
    let _lock = ClaimLock::wait(resident)?;
    refuse_second(name, &resident.owned_stages()?, owner, stages.start)?;
    Stage::take(resident, stages, owner)
}

/// Rejects an owner's claim on everything, or on the rest to drop, if another owner already has one.
///
/// # Errors
/// Both take everything, and share a queue; or both drop the rest.
pub(super) fn refuse_second(
    name: &PortName,
    claims: &[OwnedStage],
    owner: &Owner,
    stage: u32,
) -> Result<()> {
    let whole =
        |it: &&OwnedStage| is_whole(&it.owner, it.stage) && overlap(&it.owner, &owner.range());
    if stage == DROP {
        let first = claims.iter().find(|it| it.stage == DROP);
        return first.map_or(Ok(()), |first| Err(second_drop(name, &first.owner)));
    }
    match claims.iter().find(whole) {
        Some(first) if is_whole(owner, stage) => Err(second_to(name, &first.owner)),
        _ => Ok(()),
    }
}

/// Returns true if an owner takes everything. An owner that only drops the rest, or only counts, does not.
fn is_whole(owner: &Owner, stage: u32) -> bool {
    let takes = matches!(owner.action, Action::Take | Action::Forward);
    owner.filter.is_empty() && (takes || WHOLE.contains(&stage))
}

fn second_to(name: &PortName, owner: &Owner) -> Error {
    let interface = name.name();
    let (first, last) = owner.range().into_inner();
    let queues = if first == last { first.to_string() } else { format!("{first}-{last}") };
    in_use(
        name,
        format!(
            "{owner} already has all packets of {interface}/{queues}: add filter= to this port \
         (`sluice claims {interface}` lists the owners)"
        ),
    )
}

fn second_drop(name: &PortName, owner: &Owner) -> Error {
    let interface = name.name();
    in_use(
        name,
        format!(
            "{owner} already drops the packets of {interface} that no other port takes: add filter= to this port \
         (`sluice claims {interface}` lists the owners)"
        ),
    )
}

fn in_use(name: &PortName, reason: String) -> Error {
    Error::InUse(name.error(reason).to_string())
}

/// Returns true if an owner has any of these queues.
pub(super) fn overlap(owner: &Owner, queues: &RangeInclusive<u32>) -> bool {
    let (first, last) = owner.range().into_inner();
    first <= *queues.end() && *queues.start() <= last
}
