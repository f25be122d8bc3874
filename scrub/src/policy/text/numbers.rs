//! Sets of numbers as ranges: values, names, `"8-9"`, `"8-"`, `"-9"`, and exclusions by `!`.

use sluicegate_base::text_error::Fault;
use toml::de::DeValue;

use super::names::{Names, available, find};
use super::table::{Value, each, integer, not, place};
use crate::policy::Range;

/// Ranges in order, with a gap between each two.
pub(super) type Ranges = Vec<Range<u32>>;

/// Returns the number of a name, or the problem.
pub(super) type ByName<'a> = &'a dyn Fn(&str) -> Result<u32, String>;

/// Returns the number of a name of `what`.
pub(super) fn named(names: Names, what: &str, name: &str) -> Result<u32, String> {
    find(names, name).ok_or_else(|| {
        let known = available(names.iter().map(|(name, _)| *name), name);
        format!("there is no {what} '{name}'; {known}, or a number")
    })
}

/// Returns ranges with the same numbers, in order and with gaps.
pub(super) fn joined(mut ranges: Ranges) -> Ranges {
    ranges.sort_unstable();
    ranges.dedup_by(|next, range| {
        let joins = next.first <= range.last.saturating_add(1);
        if joins {
            range.last = range.last.max(next.last);
        }
        joins
    });
    ranges
}

/// Returns the numbers up to `max` that are not in the ranges.
pub(super) fn complement(ranges: &[Range<u32>], max: u32) -> Ranges {
    let mut rest = Vec::new();
    let mut next = 0;
    for range in ranges {
        if range.first > next {
            rest.push(Range { first: next, last: range.first - 1 });
        }
        next = range.last.saturating_add(1);
    }
    if next <= max {
        rest.push(Range { first: next, last: max });
    }
    rest
}

/// Returns the numbers that are in both.
pub(super) fn common(one: &[Range<u32>], other: &[Range<u32>]) -> Ranges {
    let pairs = one.iter().flat_map(|a| other.iter().map(move |b| (a, b)));
    let overlaps =
        pairs.map(|(a, b)| Range { first: a.first.max(b.first), last: a.last.min(b.last) });
    joined(overlaps.filter(|range| range.first <= range.last).collect())
}

/// Converts ranges of numbers that fit.
pub(super) fn narrow<T: TryFrom<u32>>(ranges: &[Range<u32>]) -> Vec<Range<T>> {
    let narrow = |number| T::try_from(number).ok();
    let range = |it: &Range<u32>| Some(Range { first: narrow(it.first)?, last: narrow(it.last)? });
    ranges.iter().filter_map(range).collect()
}

/// Returns each number.
pub(super) fn values(ranges: &[Range<u32>]) -> Vec<u8> {
    ranges.iter().flat_map(|it| it.first..=it.last).filter_map(|it| it.try_into().ok()).collect()
}

/// Reads numbers up to `max`: a value or a list of them, or of exclusions.
pub(super) fn read(
    value: &Value,
    object: &str,
    max: u32,
    by_name: ByName,
) -> Result<Ranges, Fault> {
    let (mut ranges, mut excluded) = (Vec::new(), None);
    for value in each(value, object)? {
        let (range, negated) = read_one(value, object, max, by_name)?;
        if excluded.replace(negated).is_some_and(|before| before != negated) {
            let problem = "the list has values and exclusions (!): write only one of both";
            return Err(Fault::new(&place(value), object, problem));
        }
        ranges.push(range);
    }
    let ranges = joined(ranges);
    if excluded != Some(true) {
        return Ok(ranges);
    }
    let rest = complement(&ranges, max);
    if rest.is_empty() {
        return Err(Fault::new(&place(value), object, "no packet matches: it excludes all values"));
    }
    Ok(rest)
}

/// Reads a range, and if it is excluded.
fn read_one(
    value: &Value,
    object: &str,
    max: u32,
    by_name: ByName,
) -> Result<(Range<u32>, bool), Fault> {
    let right = format!("a number from 0 to {max}, or a range like \"8-9\"");
    let wrong = |problem: String| Fault::new(&place(value), object, problem);
    let fits = |number: Option<u32>, text: &str| {
        let fitting = number.filter(|it| *it <= max);
        fitting.ok_or_else(|| wrong(format!("{text} is above the maximum: write {right}")))
    };
    let text = match value.get_ref() {
        DeValue::String(text) => text.trim(),
        DeValue::Integer(number) => {
            let text = number.as_str();
            if text.starts_with('-') {
                return Err(wrong(format!("{text} is negative: write {right}")));
            }
            let number = integer(value).and_then(|number| u32::try_from(number).ok());
            let number = fits(number, text)?;
            return Ok((Range { first: number, last: number }, false));
        }
        _ => return Err(not(value, object, &right)),
    };
    let (text, negated) = match text.strip_prefix('!') {
        Some(rest) => (rest.trim(), true),
        None => (text, false),
    };
    if !text.starts_with(|first: char| first == '-' || first.is_ascii_digit()) {
        let number = by_name(text).map_err(wrong)?;
        return Ok((Range { first: number, last: number }, negated));
    }
    let (first, last) = text.split_once('-').unwrap_or((text, text));
    let (first, last) = (first.trim(), last.trim());
    let digits = |text: &str| text.bytes().all(|digit| digit.is_ascii_digit());
    if !digits(first) || !digits(last) || (first.is_empty() && last.is_empty()) {
        return Err(not(value, object, &right));
    }
    let end =
        |text: &str, open| if text.is_empty() { Ok(open) } else { fits(text.parse().ok(), text) };
    let range = Range { first: end(first, 0)?, last: end(last, max)? };
    if range.first > range.last {
        let problem = format!("the range is empty: write \"{}-{}\"", range.last, range.first);
        return Err(wrong(problem));
    }
    Ok((range, negated))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn ranges() -> impl Strategy<Value = Ranges> {
        let range = (0_u32..64, 0_u32..64);
        let range = range.prop_map(|(a, b)| Range { first: a.min(b), last: a.max(b) });
        proptest::collection::vec(range, 0..6).prop_map(joined)
    }

    fn has(ranges: &[Range<u32>], number: u32) -> bool {
        ranges.iter().any(|it| (it.first..=it.last).contains(&number))
    }

    proptest! {
        #[test]
        fn operations_agree_with_membership(one in ranges(), other in ranges()) {
            let rest = complement(&one, 63);
            let both = common(&one, &other);
            let union = joined([one.clone(), other.clone()].concat());
            for number in 0..64 {
                let (a, b) = (has(&one, number), has(&other, number));
                prop_assert_eq!(has(&rest, number), !a);
                prop_assert_eq!(has(&both, number), a && b);
                prop_assert_eq!(has(&union, number), a || b);
            }
            for ranges in [rest, both, union] {
                prop_assert!(ranges.windows(2).all(|it| it[0].last + 1 < it[1].first));
            }
        }
    }
}
