use std::collections::HashMap;

use proptest::prelude::*;

use super::*;

fn table(entries: usize, per_port: u32) -> Table {
    Table::new(TableConfig { entries, per_port, age: 100 })
}

#[test]
fn a_host_is_found_where_it_was_seen_last() {
    let mut table = table(1024, 1024);
    assert_eq!(table.find(1, 7, 0), None);
    assert_eq!(table.learn(1, 7, 3, 0), Learned::New);
    assert_eq!(table.find(1, 7, 0), Some(3));
    assert_eq!(table.find(2, 7, 0), None, "another VLAN's is another host");
    assert_eq!(table.learn(1, 7, 4, 1), Learned::Moved);
    assert_eq!((table.find(1, 7, 1), table.learned(3), table.learned(4)), (Some(4), 0, 1));
}

#[test]
fn who_says_nothing_for_long_is_forgotten() {
    let mut table = table(1024, 1024);
    // Across the wrap of time.
    let start = Tick::MAX - 50;
    table.learn(0, 7, 3, start);
    assert_eq!(table.find(0, 7, start.wrapping_add(100)), Some(3));
    assert_eq!(table.find(0, 7, start.wrapping_add(101)), None, "to send to it does not keep it");
    assert_eq!(table.learned(3), 1);
    table.sweep(start.wrapping_add(101), usize::MAX);
    assert_eq!(table.learned(3), 0);
}

#[test]
fn a_static_entry_holds_whatever_is_seen() {
    let mut table = table(1024, 1024);
    assert!(table.set_static(0, 7, 1));
    assert_eq!(table.learn(0, 7, 2, 0), Learned::Elsewhere);
    assert_eq!(table.learn(0, 7, 1, 0), Learned::Same);
    table.sweep(1_000_000, usize::MAX);
    assert_eq!((table.flush(None), table.find(0, 7, 1_000_000)), (0, Some(1)));
    assert!(table.set_static(0, 7, 2), "it can be set anew");
    assert_eq!(table.find(0, 7, 0), Some(2));
    assert!(table.remove(0, 7) && !table.remove(0, 7));
    table.set_static(0, 7, 2);
    assert_eq!((table.forget(2), table.find(0, 7, 0)), (1, None));
}

#[test]
fn static_entries_take_a_quarter_at_most() {
    let mut table = table(64, 64);
    let set = (0..1000).filter(|&mac| table.set_static(0, mac, 1)).count();
    assert!((8..=16).contains(&set), "{set}");
}

/// 64,000 addresses that nobody has, from one port, and every host of the others is still known.
#[test]
fn a_flood_of_addresses_costs_its_own_port_only() {
    let config = TableConfig::default();
    let mut table = Table::new(config);
    let statics: Vec<u64> = (0..100).collect();
    statics.iter().for_each(|&mac| assert!(table.set_static(0, mac, 9)));
    let hosts: Vec<(u64, PortNumber)> = (1000..4000).map(|mac| (mac, (mac % 3) as u16)).collect();
    for tick in 0..2 {
        hosts.iter().for_each(|&(mac, port)| {
            table.learn(0, mac, port, tick);
        });
    }
    for i in 0..64_000u64 {
        table.learn(0, 0x0200_0000_0000 | i.wrapping_mul(0x9e37_79b9), 5, 3);
        assert!(table.learned(5) <= config.per_port);
    }
    for &(mac, port) in &hosts {
        assert_eq!(table.find(0, mac, 3), Some(port));
    }
    statics.iter().for_each(|&mac| assert_eq!(table.find(0, mac, 3), Some(9)));
    // A host that comes later finds room beside the flood, on other ports in any case.
    for mac in 5000..6000 {
        assert_eq!(table.learn(0, mac, 2, 4), Learned::New);
    }
}

#[derive(Clone, Debug)]
enum Step {
    Learn(u16, u64, PortNumber),
    Find(u16, u64),
    Static(u16, u64, PortNumber),
    Remove(u16, u64),
    Flush(Option<PortNumber>),
    Forget(PortNumber),
    Wait(Tick),
    Sweep,
}

fn step() -> impl Strategy<Value = Step> {
    let (vlan, mac, port) = (0..3u16, 0..40u64, 0..4u16);
    prop_oneof![
        8 => (vlan.clone(), mac.clone(), port.clone()).prop_map(|(v, m, p)| Step::Learn(v, m, p)),
        4 => (vlan.clone(), mac.clone()).prop_map(|(v, m)| Step::Find(v, m)),
        1 => (vlan.clone(), mac.clone(), port.clone()).prop_map(|(v, m, p)| Step::Static(v, m, p)),
        1 => (vlan, mac).prop_map(|(v, m)| Step::Remove(v, m)),
        1 => proptest::option::of(port.clone()).prop_map(Step::Flush),
        1 => port.prop_map(Step::Forget),
        2 => (0..80u32).prop_map(Step::Wait),
        1 => Just(Step::Sweep),
    ]
}

/// The expected table, by VLAN and address: the port, when it was last seen, whether it is static.
type Model = HashMap<(u16, u64), (PortNumber, Tick, bool)>;

proptest! {
    /// With room for all the table says what a simple one says.
    #[test]
    fn with_room_it_is_a_map(steps in proptest::collection::vec(step(), 1..200), start: Tick) {
        let mut table = table(8192, 8192);
        let (mut model, mut now) = (Model::new(), start);
        let lives = |&(_, seen, fixed): &(PortNumber, Tick, bool), now: Tick| {
            fixed || now.wrapping_sub(seen) <= 100
        };
        for step in steps {
            match step {
                Step::Learn(vlan, mac, port) => {
                    table.learn(vlan, mac, port, now);
                    let fixed = model.get(&(vlan, mac)).is_some_and(|known| known.2);
                    if !fixed {
                        model.insert((vlan, mac), (port, now, false));
                    }
                }
                Step::Find(vlan, mac) => {
                    let known = model.get(&(vlan, mac)).filter(|known| lives(known, now));
                    prop_assert_eq!(table.find(vlan, mac, now), known.map(|known| known.0));
                }
                Step::Static(vlan, mac, port) => {
                    prop_assert!(table.set_static(vlan, mac, port));
                    model.insert((vlan, mac), (port, 0, true));
                }
                Step::Remove(vlan, mac) => {
                    table.remove(vlan, mac);
                    model.remove(&(vlan, mac));
                }
                Step::Flush(port) => {
                    table.flush(port);
                    model.retain(|_, known| known.2 || port.is_some_and(|port| port != known.0));
                }
                Step::Forget(port) => {
                    table.forget(port);
                    model.retain(|_, known| known.0 != port);
                }
                Step::Wait(ticks) => now = now.wrapping_add(ticks),
                Step::Sweep => table.sweep(now, usize::MAX),
            }
            model.retain(|_, known| lives(known, now));
        }
        table.sweep(now, usize::MAX);
        let mut there: Vec<_> =
            table.entries(0..table.buckets(), now).map(|e| (e.vlan, e.mac, e.port)).collect();
        let mut wanted: Vec<_> = model.iter().map(|(&(v, m), known)| (v, m, known.0)).collect();
        there.sort_unstable();
        wanted.sort_unstable();
        prop_assert_eq!(there, wanted);
        for port in 0..4 {
            let of_port = model.values().filter(|known| known.0 == port && !known.2).count();
            prop_assert_eq!(table.learned(port) as usize, of_port);
        }
    }

    /// Without room it may not know, but what it says is so, and limits hold.
    #[test]
    fn without_room_it_says_nothing_wrong(
        steps in proptest::collection::vec((0..1000u64, 0..4u16, 0..3u32), 1..500)
    ) {
        let mut table = table(64, 12);
        let (mut model, mut now) = (HashMap::new(), 0);
        let statics: Vec<u64> = (5000..5008).filter(|&mac| table.set_static(0, mac, 9)).collect();
        for (mac, port, wait) in steps {
            now += wait;
            if table.learn(0, mac, port, now) != Learned::NoRoom {
                model.insert(mac, (port, now));
            }
            if let Some(found) = table.find(0, mac, now) {
                prop_assert_eq!(found, model[&mac].0);
            }
            let learned: u32 = (0..4).map(|port| table.learned(port)).sum();
            prop_assert!(learned as usize + statics.len() <= table.capacity());
            for mac in &statics {
                prop_assert_eq!(table.find(0, *mac, now), Some(9));
            }
        }
    }
}
