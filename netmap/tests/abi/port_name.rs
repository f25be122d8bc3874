//! Names of ports in requests.

use nix::errno::Errno;
use sluicegate_netmap::abi::{PipeRole, PortKind, PortName};

#[test]
fn a_name_is_an_interface_a_switch_s_port_or_a_pipe() {
    let pipe = |parent: &str, role, id| Ok(PortKind::Pipe { parent: parent.into(), role, id });
    let vale = |switch, port| Ok(PortKind::Vale { switch, port });
    let invalid = || Err(Errno::EINVAL);
    let cases = [
        ("", Ok(PortKind::Interface(""))),
        ("eth0.7", Ok(PortKind::Interface("eth0.7"))),
        ("vale0:1", vale("vale0", "1")),
        ("vale:eth0", vale("vale", "eth0")),
        ("vale_X:", vale("vale_X", "")),
        ("vale0:a:b", vale("vale0", "a:b")),
        ("vale0", invalid()),
        ("vale-0:1", invalid()),
        ("vale567890123456:1", invalid()),
        ("vale0:1234567890123456", invalid()),
        ("vale56789012345:123456789012345", vale("vale56789012345", "123456789012345")),
        ("eth0{1", pipe("eth0", PipeRole::Master, "1")),
        ("eth0}x", pipe("eth0", PipeRole::Slave, "x")),
        ("vale0:1{2", pipe("vale0:1", PipeRole::Master, "2")),
        ("a{1{2", pipe("a{1", PipeRole::Master, "2")),
        ("a}1{2", pipe("a}1", PipeRole::Master, "2")),
        ("a{1}2", pipe("a", PipeRole::Master, "1}2")),
        ("eth0{", invalid()),
        ("{1", invalid()),
        ("}1", invalid()),
    ];
    for (name, expected) in cases {
        assert_eq!(PortName::from(name).kind(), expected, "{name}");
    }
}
