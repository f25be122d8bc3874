use std::time::Duration;

use super::*;
use crate::policy::AddressCondition;

const POLICY: &str = "[set.good]\naction = 'pass'\nnetworks = ['192.0.2.0/24']\n\
                      [set.bad]\naction = 'drop'\nnetworks = ['198.51.100.1']\n\
                      [[rule]]\nname = 'telnet'\nmatch = 'tcp dst port 23'\naction = 'drop'\n";

fn net(text: &str) -> IpNet {
    crate::policy::parse_network(text).unwrap()
}

fn edited() -> EditedPolicy {
    EditedPolicy::new(Policy::parse(POLICY).unwrap())
}

fn names(edited: &EditedPolicy) -> Vec<String> {
    edited.policy().rules.into_iter().map(|it| it.name).collect()
}

#[test]
fn entries_are_added_until_their_end() {
    let (mut edited, now) = (edited(), Instant::now());
    let minute = |count: u64| now + Duration::from_secs(60 * count);
    edited.add("bad", &[net("203.0.113.1"), net("203.0.113.2")], Some(minute(2))).unwrap();
    edited.add("bad", &[net("203.0.113.2")], None).unwrap();
    edited.add("good", &[net("2001:db8::/32")], Some(minute(1))).unwrap();
    assert_eq!(edited.next_end(), Some(minute(1)));
    assert_eq!(edited.policy().sets[1].networks.len(), 3);
    edited.expire(minute(1));
    assert_eq!(edited.policy().sets[0].networks, [net("192.0.2.0/24")]);
    edited.expire(minute(2));
    assert_eq!(edited.policy().sets[1].networks, ["198.51.100.1", "203.0.113.2"].map(net));
    assert_eq!(edited.next_end(), None);
}

#[test]
fn entries_are_deleted_all_or_none() {
    let mut edited = edited();
    edited.add("bad", &[net("203.0.113.1")], None).unwrap();
    let both = ["203.0.113.1", "198.51.100.1"].map(net);
    let error = edited.delete("bad", &[both[0], net("203.0.113.9")]).unwrap_err().to_string();
    assert!(error.contains("set bad has no entry 203.0.113.9/32"), "{error}");
    edited.delete("bad", &both).unwrap();
    assert_eq!(edited.policy().sets[1].networks, []);
    let error = edited.delete("none", &both).unwrap_err().to_string();
    assert_eq!(error, "no set 'none'; available: good, bad");
    edited.add("bad", &both, None).unwrap();
    edited.replace_entries("bad", vec![net("::1")]).unwrap();
    assert_eq!(edited.policy().sets[1].networks, [net("::1")]);
}

#[test]
fn rules_are_added_at_both_ends() {
    let (mut edited, now) = (edited(), Instant::now());
    let mut add = |name: &str, first, until| {
        edited.add_rule(
            &format!("{{ name = '{name}', match = 'udp', action = 'drop' }}"),
            first,
            until,
        )
    };
    add("last", false, None).unwrap();
    add("first", true, Some(now)).unwrap();
    let error = add("telnet", true, None).unwrap_err().to_string();
    assert!(error.contains("the policy has a rule 'telnet'"), "{error}");
    assert_eq!(names(&edited), ["first", "telnet", "last"]);
    edited.delete_rule("telnet").unwrap();
    assert!(edited.delete_rule("telnet").is_err());
    edited.expire(now);
    assert_eq!(names(&edited), ["last"]);
}

#[test]
fn additions_outlive_the_policy() {
    let mut edited = edited();
    edited.add("bad", &[net("203.0.113.1")], None).unwrap();
    edited.add("good", &[net("203.0.113.2")], None).unwrap();
    edited
        .add_rule("name = 'of bad'\nmatch = { src_set = 'bad' }\naction = 'drop'", true, None)
        .unwrap();
    edited
        .add_rule("name = 'of good'\nmatch = { src_set = 'good' }\naction = 'pass'", true, None)
        .unwrap();
    let other = "[set.new]\nnetworks = ['::1']\n[set.bad]\nnetworks = ['::2']\n";
    let removed = edited.replace(Policy::parse(other).unwrap()).texts();
    assert_eq!(removed[0], "1 added network of set good, which the policy lacks");
    assert!(removed[1].starts_with("the added rule of good: "), "{removed:?}");
    let policy = edited.policy();
    assert_eq!(policy.sets[1].networks, ["::2", "203.0.113.1"].map(net));
    assert_eq!(policy.rules[0].conditions.src, [AddressCondition::Set(1)]);
}

#[test]
fn what_has_ended_is_not_reported() {
    let (mut edited, now) = (edited(), Instant::now());
    edited.add("bad", &[net("203.0.113.1")], Some(now)).unwrap();
    edited.expire(now);
    assert_eq!(edited.replace(Policy::default()).texts(), [""; 0]);
}

#[test]
fn a_return_adds_again_what_was_removed() {
    let (mut edited, now) = (edited(), Instant::now());
    let later = Some(now + Duration::from_secs(60));
    edited.add("good", &[net("203.0.113.1"), net("203.0.113.2")], later).unwrap();
    edited.add("good", &[net("203.0.113.3")], Some(now)).unwrap();
    edited.add("bad", &[net("203.0.113.4")], None).unwrap();
    let mut rule = |name: &str, set, first, until| {
        let text = format!("name = '{name}'\nmatch = {{ src_set = '{set}' }}\naction = 'pass'");
        edited.add_rule(&text, first, until).unwrap()
    };
    for (name, set) in [("a", "good"), ("b", "bad"), ("c", "good")] {
        rule(name, set, true, None);
        rule(&format!("{name}{name}"), set, false, None);
    }
    rule("ended", "good", false, Some(now));
    let earlier = edited.clone();
    let bad = "[set.bad]\naction = 'drop'\nnetworks = []\n";
    let mut removed = edited.replace(Policy::parse(bad).unwrap());
    assert_eq!(names(&edited), ["b", "bb"]);
    // Changes between two policies, of which none is confirmed.
    edited.delete("bad", &[net("203.0.113.4")]).unwrap();
    edited.add_rule("{ name = 'new', match = 'udp', action = 'drop' }", true, None).unwrap();
    let other = format!("{bad}[set.good]\nnetworks = []\n[set.new]\nnetworks = []\n");
    removed.extend(edited.replace(Policy::parse(&other).unwrap()));
    edited.add("good", &[net("203.0.113.2")], None).unwrap();
    edited.add("new", &[net("203.0.113.5")], None).unwrap();
    let unfit = edited.return_to(&earlier, &removed, now).texts();
    assert_eq!(unfit, ["1 added network of set new, which the policy lacks"]);
    assert_eq!(names(&edited), ["new", "c", "b", "a", "telnet", "aa", "bb", "cc"]);
    let added: Vec<_> = edited.added("good").map(|(it, until)| (*it, *until)).collect();
    assert_eq!(added, [(net("203.0.113.1"), later), (net("203.0.113.2"), None)]);
    assert_eq!(edited.added("bad").len(), 0, "it was deleted since");
}

#[test]
fn a_session_is_a_set_of_its_own() {
    let mut edited = edited();
    edited.set_session(Some([192, 0, 2, 7].into()));
    let set = edited.policy().sets.pop().unwrap();
    assert_eq!((set.name.as_str(), set.action), (SESSION, SetAction::Pass));
    assert_eq!(set.networks, [net("192.0.2.7")]);
    edited.set_session(None);
    assert_eq!(edited.policy().sets.len(), 2);
}
