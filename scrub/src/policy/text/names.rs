//! Names of protocols and values, and of a policy's parts.

/// Maximum length of a name, in characters.
const MAX_NAME: usize = 64;

/// Names with numbers.
pub(super) type Names = &'static [(&'static str, u32)];

/// IP protocols; of several names for a number, the first is the usual one.
pub(super) const PROTOCOLS: Names = &[
    ("icmp", 1),
    ("igmp", 2),
    ("ipip", 4),
    ("tcp", 6),
    ("udp", 17),
    ("dccp", 33),
    ("ipv6", 41),
    ("gre", 47),
    ("esp", 50),
    ("ah", 51),
    ("icmpv6", 58),
    ("icmp6", 58),
    ("ospf", 89),
    ("pim", 103),
    ("vrrp", 112),
    ("l2tp", 115),
    ("sctp", 132),
    ("udplite", 136),
];

/// IP versions.
pub(super) const VERSIONS: Names = &[("ipv4", 4), ("ipv6", 6)];

/// Classes of DSCP (RFC 2474, 2597, 3246, 5865, 8622).
pub(super) const DSCP: Names = &[
    ("cs0", 0),
    ("cs1", 8),
    ("cs2", 16),
    ("cs3", 24),
    ("cs4", 32),
    ("cs5", 40),
    ("cs6", 48),
    ("cs7", 56),
    ("af11", 10),
    ("af12", 12),
    ("af13", 14),
    ("af21", 18),
    ("af22", 20),
    ("af23", 22),
    ("af31", 26),
    ("af32", 28),
    ("af33", 30),
    ("af41", 34),
    ("af42", 36),
    ("af43", 38),
    ("ef", 46),
    ("va", 44),
    ("le", 1),
];

/// TCP flags, by their bits.
pub(super) const TCP_FLAGS: Names = &[
    ("fin", 1),
    ("syn", 2),
    ("rst", 4),
    ("psh", 8),
    ("ack", 16),
    ("urg", 32),
    ("ece", 64),
    ("cwr", 128),
];

/// Types of ICMP.
pub(super) const ICMP_TYPES: Names = &[
    ("echo-reply", 0),
    ("unreachable", 3),
    ("source-quench", 4),
    ("redirect", 5),
    ("echo-request", 8),
    ("router-advertisement", 9),
    ("router-solicitation", 10),
    ("time-exceeded", 11),
    ("parameter-problem", 12),
    ("timestamp-request", 13),
    ("timestamp-reply", 14),
];

/// Types of ICMPv6.
pub(super) const ICMPV6_TYPES: Names = &[
    ("unreachable", 1),
    ("packet-too-big", 2),
    ("time-exceeded", 3),
    ("parameter-problem", 4),
    ("echo-request", 128),
    ("echo-reply", 129),
    ("router-solicitation", 133),
    ("router-advertisement", 134),
    ("neighbor-solicitation", 135),
    ("neighbor-advertisement", 136),
    ("redirect", 137),
];

/// Returns a name's number.
pub(super) fn find(names: Names, name: &str) -> Option<u32> {
    names.iter().find(|(known, _)| known.eq_ignore_ascii_case(name)).map(|(_, number)| *number)
}

/// Describes the names that exist, of many those nearest to `name`.
pub(super) fn available<'a>(known: impl IntoIterator<Item = &'a str>, name: &str) -> String {
    const MAX_LISTED: usize = 24;
    let mut known: Vec<_> = known.into_iter().collect();
    if known.is_empty() {
        return "there is none".into();
    }
    if known.len() <= MAX_LISTED {
        return format!("available: {}", known.join(", "));
    }
    known.sort_by_cached_key(|it| distance(it, name));
    format!("nearest of {}: {}", known.len(), known[..5].join(", "))
}

/// Returns the number of insertions, removals and replacements between two names.
fn distance(one: &str, other: &str) -> usize {
    let mut row: Vec<usize> = (0..=other.chars().count()).collect();
    for (above, letter) in one.chars().enumerate() {
        let mut diagonal = above;
        row[0] = above + 1;
        for (at, other) in other.chars().enumerate() {
            let replaced = diagonal + usize::from(letter != other);
            diagonal = row[at + 1];
            row[at + 1] = replaced.min(diagonal + 1).min(row[at] + 1);
        }
    }
    row[row.len() - 1]
}

/// Checks the name of a part of the policy.
pub(super) fn check(name: &str) -> Result<(), String> {
    let printable = |c: char| !c.is_control() && (c == ' ' || !c.is_whitespace());
    if name.is_empty() || name.chars().count() > MAX_NAME || !name.chars().all(printable) {
        return Err(format!("a name has 1 to {MAX_NAME} printable characters"));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn distances_are_edits() {
        for (one, other, edits) in
            [("", "", 0), ("web", "web", 0), ("web", "wb", 1), ("", "ab", 2), ("dns", "ntp", 3)]
        {
            assert_eq!(
                (distance(one, other), distance(other, one)),
                (edits, edits),
                "{one} {other}"
            );
        }
    }

    #[test]
    fn of_many_names_the_nearest_are_listed() {
        let names: Vec<_> = (0..40).map(|it| format!("web{it}")).collect();
        let text = available(names.iter().map(String::as_str), "wb17");
        assert!(text.starts_with("nearest of 40: web17, "), "{text}");
        assert_eq!(available([], "x"), "there is none");
    }
}
