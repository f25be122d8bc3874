//! Actions of rules, profiles and amplification classes in an image.

use std::ops::Range;

use super::limits::Numbers;
use crate::counters;
use crate::image::{Image, LINE_BYTES};
use crate::policy::{
    AMPLIFICATION, AmplificationClass, Challenge, ClassAction, Handover, Policy, Profile,
    RuleAction, TcpProtection, UdpQuery, Verdict,
};

/// `enum scrub_rule_action`.
const CONTINUE: u8 = 0;
const PASS: u8 = 1;
const DROP: u8 = 2;
const CHALLENGE_A2S: u8 = 3;
const CHALLENGE_DNS: u8 = 4;
/// No DSCP.
const NO_MARK: u8 = 0xff;
/// The start of a list without limits, of a class that is dropped.
const CLASS_DROP: u16 = 0xffff;

/// Encodes `struct scrub_limit_list`.
fn limit_list(numbers: &Range<u16>) -> [u8; 4] {
    let [a, b] = numbers.start.to_ne_bytes();
    let [c, d] = (numbers.len() as u16).to_ne_bytes();
    [a, b, c, d]
}

/// Appends `struct scrub_action` of each rule. Returns the first line.
pub(super) fn append_actions(image: &mut Image, policy: &Policy, numbers: &Numbers) -> u32 {
    let rules = policy.rules.iter().zip(&numbers.rules).enumerate();
    image.append(rules.map(|(at, (rule, numbers))| {
        let mut bytes = [0; 16];
        bytes[..4].copy_from_slice(&limit_list(numbers));
        bytes[4..8].copy_from_slice(&rule.sample.to_ne_bytes());
        bytes[8..10].copy_from_slice(&counters::rule(at).to_ne_bytes());
        bytes[10] = match rule.action {
            RuleAction::Continue | RuleAction::Limit(_) => CONTINUE,
            RuleAction::Pass => PASS,
            RuleAction::Drop => DROP,
            RuleAction::Challenge(challenge) => {
                // A challenge has no limits.
                let cache_ms = challenge.cache.map_or(0, |it| it.as_millis() as u32);
                bytes[..4].copy_from_slice(&cache_ms.to_ne_bytes());
                bytes[12..].copy_from_slice(&challenge.above.unwrap_or(0).to_ne_bytes());
                match challenge.query {
                    UdpQuery::A2s => CHALLENGE_A2S,
                    UdpQuery::Dns => CHALLENGE_DNS,
                }
            }
        };
        bytes[11] = rule.mark.unwrap_or(NO_MARK);
        bytes
    }))
}

/// Appends each profile: `struct scrub_profile`, and a line of `struct scrub_limit_list` for each 16 classes. Returns
/// the first line.
pub(super) fn append(image: &mut Image, profiles: &[Profile], numbers: &Numbers) -> u32 {
    let no_limits = (vec![0..0; AMPLIFICATION.len()], 0..0);
    let numbers = numbers.profiles.iter().chain(std::iter::repeat(&no_limits));
    image.append(profiles.iter().zip(numbers).flat_map(|(profile, (classes, limits))| {
        let mut lines = [[0; LINE_BYTES]; 3];
        lines[0][..4].copy_from_slice(&limit_list(limits));
        lines[0][4] = profile.fragments as u8;
        lines[0][5] = u8::from(profile.default == Verdict::Drop);
        lines[0][8..40].copy_from_slice(&tcp(&profile.tcp));
        for (at, (action, numbers)) in profile.amplification.iter().zip(classes).enumerate() {
            let list = match action {
                ClassAction::Drop => limit_list(&(CLASS_DROP..CLASS_DROP)),
                ClassAction::Continue | ClassAction::Limit(_) => limit_list(numbers),
            };
            lines[1 + at / 16][at % 16 * 4..][..4].copy_from_slice(&list);
        }
        lines
    }))
}

/// Encodes `struct scrub_tcp`.
fn tcp(tcp: &TcpProtection) -> [u8; 32] {
    let mut bytes = [0; 32];
    bytes[0] = match tcp.challenge {
        Challenge::Off => 0,
        Challenge::Auto => 1,
        Challenge::Always => 2,
    };
    bytes[1] = tcp.state.into();
    bytes[2] = match tcp.handover {
        Handover::Off => 0,
        Handover::Auto => 1,
        Handover::On => 2,
    };
    let [first, second] = tcp.thresholds();
    let rates = [first.above, second.above, first.below, second.below];
    for (to, rate) in bytes[4..20].chunks_exact_mut(4).zip(rates) {
        to.copy_from_slice(&rate.to_ne_bytes());
    }
    bytes[24..].copy_from_slice(&(tcp.verified_for.as_nanos() as u64).to_ne_bytes());
    bytes
}

/// Appends a class number for each source port, from 1, and `struct scrub_amplification` of each class. Returns the
/// first lines.
pub(super) fn append_classes(image: &mut Image) -> (u32, u32) {
    let mut ports = vec![0; 1 << 16];
    for (class, number) in AMPLIFICATION.iter().zip(1..) {
        ports[usize::from(class.port)] = number;
    }
    let ports = image.append(ports.into_iter().map(|it: u8| [it]));
    (ports, image.append(AMPLIFICATION.iter().map(encode)))
}

fn encode(class: &AmplificationClass) -> [u8; 8] {
    let [a, b] = class.min_payload.to_ne_bytes();
    let byte = class.byte.map_or([0; 4], |it| [1, it.offset, it.mask, it.value]);
    [a, b, byte[0], byte[1], byte[2], byte[3], 0, 0]
}
