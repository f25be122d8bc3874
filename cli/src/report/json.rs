//! The report as JSON; the contract is docs/json.md.

use serde::Serialize;
use serde_json::{Map, Value, json};
use sluicegate_traffic::analyse::Analysis;

use crate::advice;
use crate::analysis;
use crate::ledger::{Ledger, Section, remedies};
use crate::recorded::Recorded;
use crate::stats::Stats;

/// `{in, out, omitted {name: count}, losses {name: count}, remedies {name: text}, uncertain {min, max},
/// unexplained, notes {name: count}}`. At least `min` and at most `max` of the uncertain packets are out.
pub fn ledger_value(ledger: &Ledger) -> Value {
    let names = |section| -> Map<String, Value> {
        let entries = ledger.entries(section).filter(|entry| entry.packets > 0);
        entries.map(|entry| (entry.name.to_owned(), entry.packets.into())).collect()
    };
    let mut object = json!({
        "in": ledger.total(Section::In),
        "out": ledger.total(Section::Out),
        "losses": names(Section::Loss),
    });
    if ledger.total(Section::Omitted) > 0 {
        object["omitted"] = names(Section::Omitted).into();
    }
    let remedies = remedies(ledger);
    if !remedies.is_empty() {
        let completed =
            remedies.into_iter().map(|(loss, it)| (loss, advice::with_namespace(&it).into_owned()));
        object["remedies"] = completed.collect();
    }
    let uncertain = ledger.total(Section::Uncertain);
    if uncertain > 0 {
        object["uncertain"] = json!({"min": 0, "max": uncertain});
    }
    object["unexplained"] = ledger.unexplained().into();
    object["notes"] = names(Section::Note).into();
    object
}

pub(super) fn recorded_json<S: serde::Serializer>(
    recorded: &Option<Recorded>,
    serializer: S,
) -> Result<S::Ok, S::Error> {
    recorded.map(Recorded::to_json).serialize(serializer)
}

pub(super) fn notices_json<S: serde::Serializer>(
    notices: &[String],
    serializer: S,
) -> Result<S::Ok, S::Error> {
    serializer.collect_seq(notices.iter().map(|it| advice::with_namespace(it)))
}

pub(super) fn is_zero(number: &u64) -> bool {
    *number == 0
}

pub(super) fn analysis_json<S: serde::Serializer>(
    analysis: &Option<Analysis>,
    serializer: S,
) -> Result<S::Ok, S::Error> {
    analysis.as_ref().map(analysis::to_json).serialize(serializer)
}

pub(super) fn stats_json<S: serde::Serializer>(
    stats: &Option<Stats>,
    serializer: S,
) -> Result<S::Ok, S::Error> {
    stats.as_ref().map(Stats::to_json).serialize(serializer)
}

pub(super) fn ledger_json<S: serde::Serializer>(
    ledger: &Ledger,
    serializer: S,
) -> Result<S::Ok, S::Error> {
    ledger_value(ledger).serialize(serializer)
}
