//! Trials by programs: packets with stamps enter a device by one interface and leave it by another.
//!
//! `sluice generate --stamp` sends them, and `sluice count --analyze` counts only packets with its stamps,
//! not those that a device or a host sends on its own. Counting starts before sending, and continues until no
//! more packets arrive.

use std::time::Duration;

use serde_json::Value;
use sluicegate::link::Mac;

use super::trial::{Offer, Trial, TrialOutcome, Until};
use crate::observer::{BenchObserver, Failure};
use crate::process::{ProcessOutput, Program, Running};
use crate::testbed::{DISCARD, Testbed};

/// Longest delay that a late sender makes up for, at full speed: a burst that a device with a buffer
/// accepts. The sender skips packets that are later, so that its delay never causes loss in a device.
const MAX_LAG: &str = "1ms";
/// Maximum of attempts at a trial in which nothing is sent.
const MAX_TRIES: u32 = 5;

/// Two interfaces that the device connects: packets enter by the left and leave by the right.
pub struct Pair {
    /// The sides.
    pub testbed: Testbed,
    /// The destination MAC of packets: the device's own if it routes.
    pub to: Mac,
}

/// Trials on a device between pairs of interfaces, all at once.
pub struct DeviceTrial<'a> {
    /// The pairs, which share the packets evenly.
    pub pairs: &'a [Pair],
    /// The device, if it is a program of this bench.
    pub device: Option<Running>,
    /// The time for packets to arrive after the end of sending (RFC 2544, 23: two seconds).
    pub drain: Duration,
    /// Observer that can stop the trial.
    pub watch: &'a dyn BenchObserver,
    /// Called before each trial.
    pub begins: &'a dyn Fn(&Offer),
}

impl Trial for DeviceTrial<'_> {
    fn offer(&mut self, offer: &Offer) -> Result<TrialOutcome, Failure> {
        // On a busy machine a short time may be over before the first packet, which is no valid trial.
        for _ in 0..MAX_TRIES {
            let outcome = self.once(offer)?;
            if outcome.sent > 0 {
                return Ok(outcome);
            }
        }
        Err(Failure::of(
            "the sender has sent nothing: check that the interface is up, or allow more time (--seconds)",
        ))
    }
}

impl DeviceTrial<'_> {
    fn once(&mut self, offer: &Offer) -> Result<TrialOutcome, Failure> {
        (self.begins)(offer);
        let offer = &share(offer, self.pairs.len());
        let start_counter = |(index, pair): (usize, &Pair)| {
            let mut counter = pair.testbed.counter().and(["--analyze"]);
            if self.pairs.len() > 1 {
                // A device that floods sends a pair's packets to the others, too.
                counter = counter.and(["-f", &format!("udp dst port {}", port_of(index))]);
            }
            pair.testbed.start_ready(&counter, self.watch)
        };
        let counters = self.pairs.iter().enumerate().map(start_counter);
        let counters: Vec<Running> = counters.collect::<Result<_, _>>()?;
        let start_sender =
            |(index, pair): (usize, &Pair)| pair.testbed.start(&pair.sender(index, offer));
        let senders = self.pairs.iter().enumerate().map(start_sender);
        let mut senders: Vec<Running> = senders.collect::<Result<_, _>>()?;
        for sender in &mut senders {
            sender.over(longest(offer), self.watch)?;
        }
        self.watch.pause(self.drain)?;
        // A device whose process exited loses all packets; that is no result.
        self.device.as_mut().map_or(Ok(()), Running::still_runs)?;
        let mut all: Option<TrialOutcome> = None;
        for (counter, sender) in counters.into_iter().zip(senders) {
            let (counted, sent) = (counter.end()?, sender.output());
            let one =
                outcome(offer, &sent, &counted).ok_or_else(|| match sent.number("/accepted") {
                    None => Failure::of(format!("the sender: {}", sender.complaint())),
                    Some(_) => Failure::of(format!("the receiver: {}", counted.err.trim())),
                })?;
            if one.sent == 0 {
                // No valid trial, whatever the other pairs sent.
                return Ok(one);
            }
            all = Some(all.map_or(one, |all| all.beside(one)));
        }
        all.ok_or_else(|| Failure::of("no interfaces to measure"))
    }
}

/// Returns the part of an offer for each of several pairs.
fn share(offer: &Offer, pairs: usize) -> Offer {
    let pairs = pairs.max(1) as u64;
    let until = match offer.until {
        Until::Packets(packets) => Until::Packets(packets.div_ceil(pairs)),
        time => time,
    };
    Offer { rate: offer.rate.map(|rate| rate / pairs as f64), until, ..*offer }
}

/// The UDP port that a pair's packets go to.
fn port_of(index: usize) -> usize {
    usize::from(DISCARD) + index
}

impl Pair {
    /// The program that sends, on a CPU of its own where there are enough.
    fn sender(&self, index: usize, offer: &Offer) -> Program {
        let cpus = self.testbed.cpus.senders(u32::MAX);
        let cpu = &[cpus[index % cpus.len()]];
        let program =
            self.testbed.sender_to(cpu, offer.bytes, &self.to.to_string(), port_of(index));
        let program = program.and(["--stamp"]);
        let program = match offer.rate {
            Some(rate) => program.and(["--rate", &format!("{rate}pps"), "--max-lag", MAX_LAG]),
            None => program,
        };
        match (offer.until, offer.rate) {
            (Until::Packets(packets), _) => program.and(["--count", &packets.to_string()]),
            // A rate and a time give a number of packets.
            (Until::Time(time), Some(rate)) => {
                let packets = (rate * time.as_secs_f64()).round().max(1.0);
                program.and(["--count", &format!("{packets:.0}")])
            }
            (Until::Time(time), None) => {
                program.and(["--duration", &format!("{}ms", time.as_millis())])
            }
        }
    }
}

/// The longest time of sending.
fn longest(offer: &Offer) -> Duration {
    match offer.until {
        // The count and the rate set the time; a sender that falls behind takes longer.
        Until::Time(time) => time * 4,
        // Every sender is faster than this.
        Until::Packets(packets) => Duration::from_secs(1 + packets / 10_000),
    }
}

/// Computes a trial's outcome from both commands' JSON.
fn outcome(offer: &Offer, sent: &ProcessOutput, counted: &ProcessOutput) -> Option<TrialOutcome> {
    let [attempted, elapsed_s] = [sent.number("/attempted")?, sent.number("/elapsed_s")?];
    // A sender that skipped no packet kept the rate. This is more exact than its rate by the clock, which is
    // read before the first packet and after the last.
    let kept = sent.number("/pace/restarts") == Some(0.0);
    let counted: Value = counted.result()?;
    let streams = counted.pointer("/analysis/streams")?.as_array()?;
    let latency = streams.first().map(|stream| stream["latency"].clone());
    Some(TrialOutcome {
        sent: sent.number("/accepted")? as u64,
        received: streams.iter().filter_map(|stream| stream["received"].as_u64()).sum(),
        seconds: offer.rate.filter(|_| kept).map_or(elapsed_s, |rate| attempted / rate),
        latency: latency.and_then(|it| serde_json::from_value(it).ok()),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const OFFER: Offer = Offer { bytes: 60, rate: None, until: Until::Packets(120) };

    fn said(out: &str) -> ProcessOutput {
        ProcessOutput { out: out.into(), err: String::new() }
    }

    #[test]
    fn an_outcome_follows_from_the_output_of_both_sides() {
        let sent = |restarts| {
            said(&format!(r#"{{"attempted":120,"accepted":110,"elapsed_s":0.5{restarts}}}"#))
        };
        let counted = said(
            r#"{"time_s":1}
{"analysis":{"streams":[{"received":100,"latency":{"samples":9,"p50_ns":1,"p90_ns":2,
"p99_ns":3,"p99_9_ns":4,"max_ns":5}}]}}"#
                .replace(",\n", ",")
                .as_str(),
        );
        for (sentence, rate, restarts, offered_pps) in [
            ("at full speed by the clock", None, "", 220.0),
            ("a rate that was kept", Some(300.0), r#","pace":{"restarts":0}"#, 275.0),
            ("one that was not, by the clock", Some(300.0), r#","pace":{"restarts":1}"#, 220.0),
        ] {
            let outcome = outcome(&Offer { rate, ..OFFER }, &sent(restarts), &counted).unwrap();
            assert_eq!((outcome.sent, outcome.received), (110, 100), "{sentence}");
            assert_eq!(outcome.offered_pps(), offered_pps, "{sentence}");
            assert_eq!(outcome.latency.unwrap().p99_9_ns, 4, "{sentence}");
        }
    }

    #[test]
    fn a_loss_of_all_packets_is_an_outcome() {
        let counted = said(r#"{"analysis":{"streams":[]}}"#);
        let sent = said(r#"{"attempted":120,"accepted":110,"elapsed_s":0.5}"#);
        let outcome = outcome(&OFFER, &sent, &counted).unwrap();
        assert_eq!((outcome.lost(), outcome.latency), (1.0, None));
    }

    #[test]
    fn without_output_there_is_no_outcome() {
        assert_eq!(outcome(&OFFER, &said(""), &said("{}")), None);
    }
}
