//! Names of ports as users write them.

use sluicegate_netmap::abi::PortExpression;
use sluicegate_netmap::abi::bodies::modes::{ALL_NIC, NIC_SW, ONE_NIC, ONE_SW, SW};
use sluicegate_netmap::abi::bodies::register_flags::{
    EXCLUSIVE, MONITOR_RX, MONITOR_TX, RX_RINGS_ONLY, TX_RINGS_ONLY, ZCOPY_MON,
};

fn parse(text: &str) -> PortExpression {
    text.parse().unwrap_or_else(|error| panic!("{text}: {error}"))
}

#[test]
fn a_name_says_which_rings_to_bind_and_how() {
    let cases = [
        ("netmap:eth0", ("eth0", ALL_NIC, 0, 0, 0)),
        ("netmap:eth0-3", ("eth0", ONE_NIC, 3, 0, 0)),
        ("netmap:eth0*", ("eth0", NIC_SW, 0, 0, 0)),
        ("netmap:eth0^", ("eth0", SW, 0, 0, 0)),
        ("netmap:eth0^/R", ("eth0", SW, 0, 0, RX_RINGS_ONLY)),
        ("netmap:ix1^3/T", ("ix1", ONE_SW, 3, 0, TX_RINGS_ONLY)),
        ("netmap:eth0-4094/xT", ("eth0", ONE_NIC, 4094, 0, EXCLUSIVE | TX_RINGS_ONLY)),
        ("netmap:eth0/ztr", ("eth0", ALL_NIC, 0, 0, ZCOPY_MON | MONITOR_TX | MONITOR_RX)),
        ("netmap:eth0@2", ("eth0", ALL_NIC, 0, 2, 0)),
        ("netmap:eth0@2/R@2", ("eth0", ALL_NIC, 0, 2, RX_RINGS_ONLY)),
        ("netmap:zeek}0/x", ("zeek}0", ALL_NIC, 0, 0, EXCLUSIVE)),
        ("netmap:eth0{in-7/xT@3", ("eth0{in", ONE_NIC, 7, 3, EXCLUSIVE | TX_RINGS_ONLY)),
        ("vale0:1", ("vale0:1", ALL_NIC, 0, 0, 0)),
        ("vale:1-4", ("vale:1", ONE_NIC, 4, 0, 0)),
        ("valeA_b:1{0", ("valeA_b:1{0", ALL_NIC, 0, 0, 0)),
    ];
    for (text, expected) in cases {
        let PortExpression { port, register, share } = parse(text);
        let found =
            (port.as_str(), register.mode, register.ringid, register.mem_id, register.flags);
        assert_eq!(found, expected, "{text}");
        assert_eq!(share, None);
    }
}

#[test]
fn options_set_rings_slots_and_the_region() {
    let register =
        parse("netmap:eth0-0/R@conf:rx-rings=3,rings=2,host-rings=4,host-tx-rings=5").register;
    assert_eq!((register.tx_rings, register.rx_rings), (2, 3), "one direction overrides both");
    assert_eq!((register.host_tx_rings, register.host_rx_rings), (5, 4));
    let register = parse("vale0:1@conf:slots=512,tx_slots=70000").register;
    assert_eq!((register.tx_slots, register.rx_slots), (70_000, 512));
    for text in
        ["netmap:eth0@share=netmap:eth1", "netmap:eth0@share:port=netmap:eth1^@conf:rings=1"]
    {
        assert_eq!(parse(text).share.expect(text).as_str(), "eth1");
    }
}

#[test]
fn an_invalid_name_is_an_error_that_says_why() {
    let cases = [
        ("", "a port is netmap:NAME"),
        ("eth0", "a port is netmap:NAME"),
        ("netmapX:eth0", "a port is netmap:NAME"),
        ("vale-0:1", "a port is netmap:NAME"),
        ("netmap:", "a port is netmap:NAME"),
        ("netmap:^", "a port is netmap:NAME"),
        ("vale0:", "a port is netmap:NAME"),
        ("vale0:/x", "a port is netmap:NAME"),
        ("netmap:eth0{", "'' is not a pipe"),
        ("netmap:a{1}2", "'1}2' is not a pipe"),
        ("netmap:eth0-", "ring: '' is not a number"),
        ("netmap:eth0-4095", "the last possible one is 4094"),
        ("netmap:eth0-70000", "'70000' is not a number in range"),
        ("netmap:eth0*x", "'x' is not a modifier"),
        ("netmap:eth0/", "no flag follows"),
        ("netmap:eth0/q", "'q' is not a flag"),
        ("netmap:eth0/x/R", "'/' is not a flag"),
        ("netmap:eth0@", "'@' is not an option"),
        ("netmap:eth0@0", "from 1 on"),
        ("netmap:eth0@2/R@3", "one region"),
        ("netmap:eth0@conf:rings", "has no value"),
        ("netmap:eth0@conf:rings=x", "'x' is not a number"),
        ("netmap:eth0@conf:color=1", "'color' is not rings"),
        ("netmap:eth0@extmem=/dev/hugepages/a", "@extmem is not supported"),
        ("netmap:eth0@share=eth1", "a port is netmap:NAME"),
    ];
    for (text, reason) in cases {
        let error = text.parse::<PortExpression>().expect_err(text).to_string();
        assert!(error.contains(reason), "{text}: {error}");
    }
    assert!(format!("netmap:{}", "a".repeat(63)).parse::<PortExpression>().is_ok());
    assert!(format!("netmap:{}", "a".repeat(64)).parse::<PortExpression>().is_err());
}
