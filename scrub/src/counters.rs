//! Counters of the XDP program: one for each cause, and one for each rule (`enum scrub_counter`).

use crate::cause::{Cause, Defect};
use crate::policy::{MAX_LIMITS, MAX_RULES, MAX_SETS, Verdict};

/// Room for defects and other fixed causes.
const FIXED: u16 = 32;
/// The first counters of lists.
const SETS: u16 = FIXED;
const CLASSES: u16 = SETS + MAX_SETS as u16;
const LIMITS: u16 = CLASSES + 32;
const RULES: u16 = LIMITS + MAX_LIMITS as u16;
/// The number of counters of one policy on one CPU.
pub const COUNTERS: u16 = RULES + MAX_RULES as u16;

const NOT_IP: u16 = Defect::ALL.len() as u16;
const NEIGHBOR: u16 = NOT_IP + 1;
const UNPROTECTED: u16 = NOT_IP + 2;
const FRAGMENT: u16 = NOT_IP + 3;
const DEFAULT_PASS: u16 = NOT_IP + 4;
const DEFAULT_DROP: u16 = NOT_IP + 5;
const CHALLENGE: u16 = NOT_IP + 6;
const FIRST_SYN: u16 = NOT_IP + 7;
const CHALLENGE_ANSWERED: u16 = NOT_IP + 8;
const UNKNOWN_FLOW: u16 = NOT_IP + 9;
const FIRST_PASSED: u16 = NOT_IP + 10;
const FIRST_DROPPED: u16 = NOT_IP + 11;
const CONTRADICTED: u16 = NOT_IP + 12;
const CHALLENGE_A2S: u16 = NOT_IP + 13;
const CHALLENGE_DNS: u16 = NOT_IP + 14;
const CACHED_A2S: u16 = NOT_IP + 15;
const RETURN_EXPIRED: u16 = FIXED - 2;
const RETURN_TOO_LONG: u16 = FIXED - 1;

/// Returns the counter of a limit's number.
pub fn limit(number: usize) -> u16 {
    LIMITS + number as u16
}

/// Returns the counter of a rule's place.
pub fn rule(at: usize) -> u16 {
    RULES + at as u16
}

/// Returns the counter of a cause. Those of the default and of later fragments depend on the verdict.
pub fn of(cause: Cause, verdict: Verdict) -> u16 {
    match cause {
        Cause::Malformed(defect) => defect as u16,
        Cause::NotIp => NOT_IP,
        Cause::Neighbor => NEIGHBOR,
        Cause::Unprotected => UNPROTECTED,
        Cause::Fragment => FRAGMENT,
        Cause::Challenge => CHALLENGE,
        Cause::FirstSyn => FIRST_SYN,
        Cause::ChallengeAnswered => CHALLENGE_ANSWERED,
        Cause::UnknownFlow => UNKNOWN_FLOW,
        Cause::FirstFragment if verdict == Verdict::Pass => FIRST_PASSED,
        Cause::FirstFragment => FIRST_DROPPED,
        Cause::ContradictoryFragment => CONTRADICTED,
        Cause::ChallengeA2s => CHALLENGE_A2S,
        Cause::ChallengeDns => CHALLENGE_DNS,
        Cause::CachedA2s => CACHED_A2S,
        Cause::Default if verdict == Verdict::Pass => DEFAULT_PASS,
        Cause::Default => DEFAULT_DROP,
        Cause::ReturnExpired => RETURN_EXPIRED,
        Cause::ReturnTooLong => RETURN_TOO_LONG,
        Cause::Set(at) => SETS + at as u16,
        Cause::Amplification(at) => CLASSES + at as u16,
        Cause::Limit(number) => limit(number),
        Cause::Rule(at) => rule(at),
    }
}

/// Returns the cause that a counter counts. None for numbers that no counter has.
pub fn cause(counter: u16) -> Option<Cause> {
    Some(match counter {
        0..NOT_IP => Cause::Malformed(Defect::ALL[usize::from(counter)]),
        NOT_IP => Cause::NotIp,
        NEIGHBOR => Cause::Neighbor,
        UNPROTECTED => Cause::Unprotected,
        FRAGMENT => Cause::Fragment,
        DEFAULT_PASS | DEFAULT_DROP => Cause::Default,
        CHALLENGE => Cause::Challenge,
        FIRST_SYN => Cause::FirstSyn,
        CHALLENGE_ANSWERED => Cause::ChallengeAnswered,
        UNKNOWN_FLOW => Cause::UnknownFlow,
        FIRST_PASSED | FIRST_DROPPED => Cause::FirstFragment,
        CONTRADICTED => Cause::ContradictoryFragment,
        CHALLENGE_A2S => Cause::ChallengeA2s,
        CHALLENGE_DNS => Cause::ChallengeDns,
        CACHED_A2S => Cause::CachedA2s,
        RETURN_EXPIRED => Cause::ReturnExpired,
        RETURN_TOO_LONG => Cause::ReturnTooLong,
        SETS..CLASSES => Cause::Set((counter - SETS).into()),
        CLASSES..LIMITS => Cause::Amplification((counter - CLASSES).into()),
        LIMITS..RULES => Cause::Limit((counter - LIMITS).into()),
        RULES..COUNTERS => Cause::Rule((counter - RULES).into()),
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_counter_has_its_cause() {
        let mut known = 0;
        for counter in 0..COUNTERS {
            let Some(cause) = cause(counter) else { continue };
            let verdicts = [Verdict::Pass, Verdict::Drop].map(|it| of(cause, it));
            assert!(verdicts.contains(&counter), "{cause:?}");
            known += 1;
        }
        assert_eq!(known, 26 + 64 + 32 + 1024 + 16_384);
        assert_eq!(COUNTERS, 17_536, "as in bpf/scrub.h");
        assert_eq!(cause(COUNTERS), None);
    }
}
