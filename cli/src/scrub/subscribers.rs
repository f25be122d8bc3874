//! Clients that read samples of a running scrubber.

use std::collections::{HashMap, VecDeque};
use std::num::NonZeroU32;

use nix::time::{ClockId, clock_gettime};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use sluicegate::ring::now_ns;
use sluicegate_scrub::cause::Cause;
use sluicegate_scrub::counters;
use sluicegate_scrub::policy::Verdict;
use sluicegate_scrub::program::Mode;
use sluicegate_scrub::scrubber::{NamedCause, NewSamples, Sample, Scrubber};

/// One of this number of packets is sampled while no client reads, for the check of new policies.
const RECENT_RATE: u32 = 10_000;
/// Samples that wait for a client.
const MAX_WAITING: usize = 4096;

/// The samples that a client reads.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
#[serde(deny_unknown_fields)]
pub struct SampleChoice {
    /// Samples one of this number of dropped packets.
    pub dropped: Option<NonZeroU32>,
    /// Samples one of this number of passed packets.
    pub passed: Option<NonZeroU32>,
    /// Only packets that this rule matched.
    pub rule: Option<String>,
}

impl SampleChoice {
    /// Returns true for a sample that the client reads. A rule samples whatever the verdict.
    fn includes(&self, sample: &Sample, rule: Option<(&str, u32)>) -> bool {
        let rate = if sample.dropped { self.dropped } else { self.passed };
        let is_by_rule = rule.is_some_and(|(_, rate)| rate > 0);
        let is_rule = self.rule.is_none() || self.rule.as_deref() == rule.map(|it| it.0);
        is_rule && (rate.is_some() || is_by_rule)
    }
}

#[derive(Debug)]
struct Subscriber {
    choice: SampleChoice,
    waiting: VecDeque<Value>,
    lost: u64,
}

/// The clients that read samples.
#[derive(Debug, Default)]
pub struct Subscribers(HashMap<u64, Subscriber>);

impl Subscribers {
    /// Sets the rates at which the program samples: the highest that a client wants.
    fn set_rates(&self, scrubber: &mut Scrubber) {
        let rate = |of: fn(&SampleChoice) -> Option<NonZeroU32>| {
            let wanted = self.0.values().filter_map(|it| of(&it.choice)).min();
            wanted.map_or(RECENT_RATE, |it| it.get().min(RECENT_RATE))
        };
        let (sample_dropped, sample_passed) = (rate(|it| it.dropped), rate(|it| it.passed));
        scrubber.set_mode(Mode { sample_dropped, sample_passed, ..scrubber.mode() });
    }

    /// Starts to sample.
    pub fn begin(scrubber: &mut Scrubber) -> Self {
        let none = Self::default();
        none.set_rates(scrubber);
        none
    }

    /// Returns a client's samples since its last request. The first one starts it.
    pub fn take(&mut self, client: u64, choice: SampleChoice, scrubber: &mut Scrubber) -> Value {
        if self.0.get(&client).is_none_or(|it| it.choice != choice) {
            self.0.insert(client, Subscriber { choice, waiting: VecDeque::new(), lost: 0 });
            self.set_rates(scrubber);
        }
        let Some(it) = self.0.get_mut(&client) else { return Value::Null };
        let samples: Vec<_> = it.waiting.drain(..).collect();
        json!({"samples": samples, "lost": std::mem::take(&mut it.lost)})
    }

    /// Ends a client's samples.
    pub fn remove(&mut self, client: u64, scrubber: &mut Scrubber) {
        self.0.remove(&client);
        self.set_rates(scrubber);
    }

    /// Reads the program's samples.
    pub fn read(&mut self, scrubber: &mut Scrubber) {
        let NewSamples { samples, lost } = scrubber.take_samples();
        self.0.values_mut().for_each(|it| it.lost += lost);
        if samples.is_empty() || self.0.is_empty() {
            return;
        }
        let (names, rules) = (scrubber.names(), &scrubber.policy().rules);
        // The time of day at time 0 of the samples' clock.
        let now = clock_gettime(ClockId::CLOCK_MONOTONIC);
        let now = now.map_or(0, |it| it.tv_sec() as u64 * 1_000_000_000 + it.tv_nsec() as u64);
        let epoch = now_ns() - now;
        for sample in samples {
            let rule = match counters::cause(sample.rule) {
                Some(Cause::Rule(at)) => rules.get(at),
                _ => None,
            };
            let rule = rule.map(|it| (it.name.as_str(), it.sample));
            let mut json = None;
            for it in self.0.values_mut().filter(|it| it.choice.includes(&sample, rule)) {
                if it.waiting.len() == MAX_WAITING {
                    it.lost += 1;
                    continue;
                }
                let json = json.get_or_insert_with(|| {
                    to_json(&sample, names(sample.counter), rule.map(|it| it.0), epoch)
                });
                it.waiting.push_back(json.clone());
            }
        }
    }
}

fn to_json(sample: &Sample, cause: Option<NamedCause>, rule: Option<&str>, epoch: u64) -> Value {
    let bytes: String = sample.bytes.iter().map(|it| format!("{it:02x}")).collect();
    // A challenge neither drops its packet nor passes it.
    let verdict = cause.as_ref().and_then(|it| it.verdict).unwrap_or(match sample.dropped {
        true => Verdict::Drop,
        false => Verdict::Pass,
    });
    let (stage, name) = match cause {
        Some(it) => (it.stage.name(), it.name),
        // A sample of an earlier policy.
        None => ("unknown", String::new()),
    };
    let mut value = json!({
        "time_ns": epoch + sample.time_ns,
        "verdict": verdict.name(),
        "stage": stage,
        "name": name,
        "frame_bytes": sample.frame_bytes,
        "packet": bytes,
    });
    if let Some(rule) = rule {
        value["rule"] = rule.into();
    }
    value
}

#[cfg(test)]
mod tests {
    use sluicegate_scrub::scrubber::StageName;

    use super::*;

    #[test]
    fn the_cause_has_the_verdict() {
        let sample = Sample {
            time_ns: 0,
            frame_bytes: 0,
            counter: 1,
            rule: 0,
            dropped: true,
            bytes: Vec::new(),
        };
        let verdict = |cause| to_json(&sample, cause, None, 0)["verdict"].clone();
        let cause = NamedCause {
            stage: StageName::Default,
            name: String::new(),
            verdict: Some(Verdict::Answer),
        };
        assert_eq!(verdict(Some(cause)), "answer");
        assert_eq!(verdict(None), "drop");
    }
}
