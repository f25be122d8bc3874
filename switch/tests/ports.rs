//! Adding and removing ports of a switch, with sources and sinks that need no network.

use std::path::Path;
use std::time::{Duration, Instant};

use sluicegate::Result;
use sluicegate::error::Error;
use sluicegate::monitor::{WatchRequest, Writer};
use sluicegate::port::{Directions, OpenOptions};
use sluicegate_switch::vlan::Vlans;
use sluicegate_switch::{LossCause, MemberConfig, OpenedPort, Rules, Switch, SwitchConfig};

/// Creates a switch with an endless source of packets from one address.
fn with_source(rules: Rules) -> Switch {
    let mut switch = Switch::new(SwitchConfig { rules, ..SwitchConfig::default() });
    add(&mut switch, "source", Directions::Receive);
    switch
}

fn add(switch: &mut Switch, name: &str, usage: Directions) {
    add_with(switch, name, usage, MemberConfig::default());
}

fn add_with(switch: &mut Switch, name: &str, usage: Directions, config: MemberConfig) {
    let port = "null:".parse().unwrap();
    let opened = OpenedPort::open(&port, Some(usage), &OpenOptions::default()).unwrap();
    switch.add(name, 0, opened, config).unwrap();
}

/// Adds a capture file of broadcast frames, with these bytes after their addresses.
fn add_broadcasts(switch: &mut Switch, folder: &Path, frames: &[&[u8]], config: MemberConfig) {
    let words = |words: [u32; 6]| words.map(u32::to_le_bytes).concat();
    let mut file = words([0xa1b2_c3d4, 0x0004_0002, 0, 0, 262_144, 1]);
    for behind in frames {
        let mut frame = [0u8; 60];
        frame[..12].copy_from_slice(&[255, 255, 255, 255, 255, 255, 2, 0, 0, 0, 0, 1]);
        frame[12..12 + behind.len()].copy_from_slice(behind);
        file.extend(words([1, 0, 60, 60, 0, 0]).iter().take(16).chain(&frame));
    }
    let path = folder.join("broadcasts.pcap");
    std::fs::write(&path, file).unwrap();
    let port = format!("pcap:{}", path.display()).parse().unwrap();
    let opened =
        OpenedPort::open(&port, Some(Directions::Receive), &OpenOptions::default()).unwrap();
    switch.add("file", 0, opened, config).unwrap();
}

/// Adds a `memif:` server without a client.
fn add_stuck(switch: &mut Switch, name: &str, folder: &Path) {
    let port = format!("memif:{}?role=server", folder.join(name).display()).parse().unwrap();
    let opened = OpenedPort::open(&port, Some(Directions::Send), &OpenOptions::default()).unwrap();
    switch.add(name, 0, opened, MemberConfig::default()).unwrap();
}

fn entries(switch: &Switch) -> usize {
    switch.entries(0, usize::MAX).0.len()
}

fn refused(result: Result<()>) -> String {
    match result {
        Err(Error::Usage(text)) => text,
        other => panic!("not refused: {other:?}"),
    }
}

#[test]
fn a_removed_port_takes_its_hosts_out_of_the_table() {
    let mut switch = with_source(Rules::default());
    let first = switch.run_once();
    assert!(first > 0);
    assert_eq!(entries(&switch), 1);
    switch.remove("source").unwrap();
    assert!(switch.run_once() > 0, "what is on its way still comes");
    while switch.run_once() > 0 {}
    switch.drop_removed();
    assert_eq!(switch.removed().len(), 1);
    add(&mut switch, "sink", Directions::Send);
    assert_eq!(entries(&switch), 0, "it has the number, and not the hosts");
}

#[test]
fn a_port_leaves_though_others_always_have_something() {
    let mut switch = with_source(Rules::default());
    add(&mut switch, "other", Directions::Receive);
    switch.remove("other").unwrap();
    let end = Instant::now() + Duration::from_secs(30);
    while switch.removed().is_empty() {
        assert!(switch.run_once() > 0, "the source never runs dry");
        assert!(Instant::now() < end, "it is still there");
    }
    let removed = &switch.removed()[0];
    assert_eq!(removed.name, "other");
    assert_eq!(removed.stats.received, removed.counts.packets, "all that was in it has come out");
}

#[test]
fn a_static_entry_is_of_a_vlan_where_the_switch_knows_vlans() {
    let mut plain = with_source(Rules::default());
    plain.set_static(0, 1, "source").unwrap();
    assert!(refused(plain.set_static(10, 1, "source")).contains("has no VLANs"));
    let mut switch = with_source(Rules { vlans: true, ..Rules::default() });
    let tagged = "20-29".parse().unwrap();
    let config =
        MemberConfig { vlans: Vlans { tagged, ..Vlans::access(10) }, ..MemberConfig::default() };
    add_with(&mut switch, "trunk", Directions::Receive, config);
    for vlan in [10, 20, 29] {
        switch.set_static(vlan, 1, "trunk").unwrap();
    }
    for (vlan, port, reason) in [
        (0, "trunk", "from 1 to 4094"),
        (4095, "trunk", "from 1 to 4094"),
        (30, "trunk", "trunk is not in VLAN 30; its VLANs: 10,20-29;"),
        (10, "source", "source is not in VLAN 10; its VLANs: none;"),
    ] {
        assert!(refused(switch.set_static(vlan, 1, port)).contains(reason), "{vlan} {port}");
    }
    assert_eq!(entries(&switch), 3);
}

#[test]
fn a_monitor_has_one_ring() {
    let mut switch = with_source(Rules::default());
    let watch =
        WatchRequest { port: "source".into(), snaplen: 64, cells: 8, filter: String::new() };
    let writer = || Writer::new(&watch).unwrap().0;
    switch.watch("source", 1, writer()).unwrap();
    assert!(refused(switch.watch("source", 1, writer())).contains("another for each port"));
    switch.watch("source", 2, writer()).unwrap();
    switch.unwatch(1);
    switch.watch("source", 1, writer()).unwrap();
}

#[test]
fn unsent_packets_at_the_end_are_counted() {
    let folder = tempfile::tempdir().unwrap();
    let mut switch = Switch::new(SwitchConfig::default());
    add_broadcasts(&mut switch, folder.path(), &[&[8, 0][..]; 2000], MemberConfig::default());
    let stuck = ["a", "b", "c"];
    stuck.iter().for_each(|name| add_stuck(&mut switch, name, folder.path()));
    while switch.run_once() > 0 {}
    let (states, _) = switch.finish();
    for name in stuck {
        let state = states.iter().find(|state| state.name == name).unwrap();
        let (counts, stats) = (&state.counts, &state.stats);
        assert!(counts.copied > 0 && stats.sent == 0, "{name}: {state:?}");
        assert_eq!(stats.unsent, counts.copied, "{name}");
        assert_eq!(counts.given, counts.copied + counts.full, "{name}");
    }
}

#[test]
fn no_tag_within_a_tag_leads_into_another_vlan() {
    let trunk = Vlans { untagged: Some(10), tagged: "20".parse().unwrap() };
    for (port, sentence) in [(Vlans::access(10), "an access port"), (trunk.clone(), "a trunk")] {
        let folder = tempfile::tempdir().unwrap();
        let rules = Rules { vlans: true, ..Rules::default() };
        let mut switch = Switch::new(SwitchConfig { rules, ..SwitchConfig::default() });
        let refused: [&[u8]; 3] = [
            &[0x81, 0, 0, 10, 0x81, 0, 0, 20, 8, 0],
            &[0x81, 0, 0, 10, 0x88, 0xa8, 0, 20, 8, 0],
            // A priority tag, in the port's own VLAN.
            &[0x81, 0, 0xe0, 0, 0x81, 0, 0, 20, 8, 0],
        ];
        let taken: [&[u8]; 2] = [&[0x81, 0, 0, 10, 8, 0], &[8, 0]];
        let frames = [&refused[..], &taken].concat();
        let config = |vlans| MemberConfig { vlans, ..MemberConfig::default() };
        add_broadcasts(&mut switch, folder.path(), &frames, config(port));
        let opened = OpenedPort::open(
            &"null:".parse().unwrap(),
            Some(Directions::Send),
            &OpenOptions::default(),
        );
        switch.add("trunk", 0, opened.unwrap(), config(trunk.clone())).unwrap();
        while switch.run_once() > 0 {}
        let states = switch.states();
        let counts = |name| states.iter().find(|state| state.name == name).unwrap().counts;
        let dropped = counts("file").dropped[LossCause::Vlan as usize];
        assert_eq!((dropped, counts("trunk").given), (3, 2), "{sentence}");
    }
}

#[test]
fn a_stuck_port_loses_no_packets_of_others() {
    let folder = tempfile::tempdir().unwrap();
    let mut switch = Switch::new(SwitchConfig::default());
    add_broadcasts(&mut switch, folder.path(), &[&[8, 0][..]; 5000], MemberConfig::default());
    add_stuck(&mut switch, "stuck", folder.path());
    // The port has room for less than a batch, and accepts synced packets at once.
    let name = "null:?slots=200".parse().unwrap();
    let sink = OpenedPort::open(&name, Some(Directions::Send), &OpenOptions::default()).unwrap();
    switch.add("sink", 0, sink, MemberConfig::default()).unwrap();
    while switch.run_once() > 0 {}
    let (states, _) = switch.finish();
    let state = |name| states.iter().find(|state| state.name == name).unwrap();
    assert!(state("stuck").counts.full > 0);
    assert_eq!((state("sink").stats.sent, state("sink").counts.full), (5000, 0));
}
