//! Prefixes, and the memberships that each inherits from those around it.

use super::classes::{Class, Classes, Membership, TooManyClasses};
use crate::prefix::Prefix;

/// Returns the class of each prefix, which includes the memberships of all prefixes around it. Each prefix follows those
/// around it.
pub(super) fn resolve(
    mut prefixes: Vec<(Prefix, Membership)>,
    classes: &mut Classes,
) -> Result<Vec<(Prefix, Class)>, TooManyClasses> {
    prefixes.sort_by_key(|(prefix, _)| *prefix);
    // Of equal ones, the first protected network counts.
    prefixes.dedup_by(|(prefix, membership), (kept, of_kept)| {
        let equal = prefix == kept;
        if equal {
            *of_kept = membership.and_longer(*of_kept);
        }
        equal
    });
    let mut around = Vec::<(Prefix, Class)>::new();
    let mut resolved = Vec::with_capacity(prefixes.len());
    for (prefix, membership) in prefixes {
        while around.last().is_some_and(|(outer, _)| !outer.contains(&prefix)) {
            around.pop();
        }
        let outer = around.last().map_or(Class::NONE, |(_, class)| *class);
        let class = classes.nested(outer, membership)?;
        around.push((prefix, class));
        resolved.push((prefix, class));
    }
    Ok(resolved)
}

#[cfg(test)]
mod tests {
    use ipnet::IpNet;

    use super::*;

    #[test]
    fn a_prefix_inherits_from_all_around_it() {
        let of = |text: &str, sets, network| {
            (Prefix::from(text.parse::<IpNet>().unwrap()), Membership { sets, network })
        };
        let prefixes = vec![
            of("198.18.7.0/24", 4, 0),
            of("198.18.0.0/15", 1, 7),
            of("198.18.7.9/32", 8, 3),
            of("198.18.7.0/24", 16, 2),
            of("198.18.7.0/24", 0, 1),
            of("198.19.0.0/16", 2, 0),
        ];
        let mut classes = Classes::default();
        let resolved = resolve(prefixes, &mut classes).unwrap();
        let members: Vec<_> =
            resolved.iter().map(|(_, class)| classes.membership(*class)).collect();
        let expected = [(1, 7), (21, 2), (29, 3), (3, 7)];
        assert_eq!(members, expected.map(|(sets, network)| Membership { sets, network }));
    }
}
