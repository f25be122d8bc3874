//! Entries of sets, at run time.

use std::path::Path;

use serde_json::{Value, json};
use sluicegate::control::Client;

use super::{SETS, Scrubber, text};
use crate::support::*;

#[test]
fn an_added_network_drops_from_the_next_packet_on_until_it_is_deleted() {
    let Some(lab) = lab() else { return };
    let scrubber = Scrubber::start(&lab, SETS, &[]);
    scrubber.send(10, "198.51.100.7", "default", "default");
    let said = scrubber.ask(&["sets", "add", "bad", "198.51.100.0/25", "2001:db8::/32"]);
    assert_eq!(said, "2 networks added to set bad\n");
    scrubber.send(10, "198.51.100.7", "set", "bad");
    let listed = scrubber.ask(&["sets", "list", "bad"]);
    assert!(
        listed.lines().any(|it| it.starts_with("198.51.100.0/25 ") && it.ends_with(" added")),
        "{listed}"
    );
    assert!(listed.lines().any(|it| it == "203.0.113.0/24"), "{listed}");
    scrubber.ask(&["sets", "del", "bad", "198.51.100.0/25", "203.0.113.0/24"]);
    scrubber.send(10, "198.51.100.7", "default", "default");
    scrubber.send(10, "203.0.113.7", "default", "default");
    scrubber
        .refused(&["sets", "add", "worse", "192.0.2.1"], "no set 'worse'; available: good, bad");
    scrubber.refused(&["sets", "list", "worse"], "no set 'worse'; available: good, bad");
    scrubber.refused(&["sets", "del", "bad", "192.0.2.1"], "set bad has no entry 192.0.2.1/32");
    scrubber.refused(&["sets", "add", "bad", "192.0.2.1/24"], "bits behind its length");
    let many: Vec<_> = (0..2000).map(|it| format!("2001:db8::{it:x}")).collect();
    let many: Vec<_> =
        ["sets", "add", "bad"].into_iter().chain(many.iter().map(|it| &**it)).collect();
    scrubber.refused(&many, "; put the networks into a file: sluice scrub sets load SET FILE");
    assert_eq!(scrubber.stop().status, Some(0));
}

#[test]
fn an_entry_expires() {
    let Some(lab) = lab() else { return };
    let scrubber = Scrubber::start(&lab, SETS, &[]);
    let said = scrubber.ask(&["sets", "add", "bad", "198.51.100.7", "--for", "10m"]);
    assert_eq!(said, "1 network added to set bad for 10 min 0 s\n");
    let entry = scrubber.json(&["sets", "list", "bad"])["entries"][0].clone();
    assert!(entry["left_s"].as_f64().unwrap() <= 600.0, "{entry}");
    scrubber.send(10, "198.51.100.7", "set", "bad");
    // The new time replaces the old one.
    scrubber.ask(&["sets", "add", "bad", "198.51.100.7", "--for", "1s"]);
    eventually("it expires", || scrubber.json(&["sets", "list"])["sets"][1]["added"] == 0);
    scrubber.send(10, "198.51.100.7", "default", "default");
}

#[test]
fn a_hundred_thousand_networks_are_loaded_while_it_answers() {
    let Some(lab) = lab() else { return };
    let scrubber = Scrubber::start(&lab, SETS, &[]);
    let network = |number: u32| std::net::Ipv4Addr::from(0x0b00_0000 + number * 7);
    let lines: String = (0..100_000).map(|it| format!("{}  # a host\n", network(it))).collect();
    let file = scrubber.file("hosts.txt", &lines);
    let mut client = Client::connect(Path::new(&scrubber.socket)).unwrap();
    let mut ask = |request: Value| -> Value {
        serde_json::from_str(&client.ask(&request.to_string()).unwrap().0).unwrap()
    };
    let load = json!({"do": "sets", "action": "load", "set": "bad", "file": text(&file)});
    let number = ask(load)["change"].clone();
    // Statuses that were answered before a question for which the networks were still being loaded.
    let mut answers = 0;
    let answer = loop {
        scrubber.count("set", "bad");
        let answer = ask(json!({"do": "change", "number": number}));
        if answer.get("change").is_none() {
            break answer;
        }
        answers += 1;
    };
    assert_eq!(answer, json!({"set": "bad", "added": 100_000}));
    assert!(answers > 0);
    scrubber.send(10, &network(99_999).to_string(), "set", "bad");
    assert_eq!(scrubber.json(&["sets", "list"])["sets"][1]["networks"], 100_001);
    let list = scrubber.ask(&["sets", "list", "bad"]);
    assert!(list.ends_with("and 1 more\n"));
    let file = scrubber.file("few.txt", "198.51.100.7\n; none\n");
    assert_eq!(scrubber.ask(&["sets", "replace", "bad", text(&file)]), "set bad has 1 network\n");
    scrubber.send(10, &network(99_999).to_string(), "default", "default");
    let wrong = scrubber.file("wrong.txt", "198.51.100.7\n198.51.100\n");
    scrubber.refused(
        &["sets", "load", "bad", text(&wrong)],
        "wrong.txt, line 2, column 1: '198.51.100' is no network",
    );
}

#[test]
fn changes_of_several_clients_are_all_made() {
    let Some(lab) = lab() else { return };
    let scrubber = Scrubber::start(&lab, SETS, &[]);
    let add = |set: &str, number: usize| {
        let address = format!("198.51.100.{number}");
        Running::unawaited(&mut sluice(&scrubber.words(&["sets", "add", set, &address])))
    };
    let clients: Vec<_> =
        (0..20).map(|it| add(if it == 7 { "worse" } else { "bad" }, it)).collect();
    let statuses: Vec<_> = clients.into_iter().map(|it| it.end().status).collect();
    assert!((0..20).all(|it| statuses[it] == Some(if it == 7 { 2 } else { 0 })), "{statuses:?}");
    assert_eq!(scrubber.json(&["sets", "list"])["sets"][1]["added"], 19);
    scrubber.send(10, "198.51.100.19", "set", "bad");
}
