//! Every specification, valid or not, is rejected with a reason or makes packets.

use sluicegate_traffic::plan::FrameBuilder;
use sluicegate_traffic::show::show;
use sluicegate_traffic::spec::{Defaults, Spec};

use crate::generate::Random;

/// The number of specifications; a few hundred of them are valid.
const TRIED: u64 = 5_000;

/// Layers that may follow each other.
const STACKS: &[&[&str]] = &[
    &["ether", "arp"],
    &["ether", "vlan", "vlan", "ipv4", "udp"],
    &["ether", "mpls", "ipv6", "tcp"],
    &["ether", "ipv6", "hop-by-hop", "routing", "fragment", "destination", "icmpv6"],
    &["ether", "ipv4", "gre", "ipv6", "udp", "stamp"],
    &["ether", "ipv6", "udp", "vxlan", "ether", "ipv4", "icmp"],
    &["raw", "ipv4", "tcp", "raw"],
    &["ether", "payload", "ether"],
];

/// A layer and a field of it.
const FIELDS: &[(&str, &str)] = &[
    ("ether", "src"),
    ("ether", "dst"),
    ("ether", "type"),
    ("vlan", "id"),
    ("vlan", "pcp"),
    ("vlan", "tpid"),
    ("mpls", "label"),
    ("mpls", "bottom"),
    ("arp", "op"),
    ("arp", "sha"),
    ("arp", "spa"),
    ("ipv4", "ihl"),
    ("ipv4", "version"),
    ("ipv4", "tos"),
    ("ipv4", "dscp"),
    ("ipv4", "length"),
    ("ipv4", "flags"),
    ("ipv4", "frag"),
    ("ipv4", "protocol"),
    ("ipv4", "checksum"),
    ("ipv4", "src"),
    ("ipv4", "options"),
    ("ipv6", "flow-label"),
    ("ipv6", "ecn"),
    ("ipv6", "length"),
    ("ipv6", "next-header"),
    ("ipv6", "src"),
    ("ipv6", "dst"),
    ("hop-by-hop", "options"),
    ("hop-by-hop", "length"),
    ("routing", "data"),
    ("routing", "segments-left"),
    ("fragment", "frag"),
    ("fragment", "mf"),
    ("destination", "options"),
    ("udp", "sport"),
    ("udp", "length"),
    ("udp", "checksum"),
    ("tcp", "flags"),
    ("tcp", "offset"),
    ("tcp", "seq"),
    ("tcp", "checksum"),
    ("tcp", "options"),
    ("icmp", "type"),
    ("icmp", "rest"),
    ("icmpv6", "seq"),
    ("gre", "key"),
    ("gre", "checksum"),
    ("gre", "has-seq"),
    ("vxlan", "vni"),
    ("raw", "hex"),
    ("payload", "hex"),
    ("payload", "text"),
    ("payload", "pattern"),
    ("payload", "random"),
    ("payload", "file"),
    ("payload", "length"),
    // This field does not exist.
    ("udp", "port"),
];

/// Settings for these fields.
const VALUES: &[&str] = &[
    "0",
    "1",
    "-1",
    "4095",
    "65535",
    "65536",
    "4294967295",
    "340282366920938463463374607431768211455",
    "1.5",
    "true",
    "[]",
    "[1, 2]",
    "['1', 2]",
    "[[1]]",
    "{}",
    "1979-05-27",
    "''",
    "'x'",
    "'é'",
    "'0xff'",
    "'1,2,3'",
    "'any:1,2'",
    "'1-9'",
    "'9-1'",
    "'1..9'",
    "'9..1/3'",
    "'flow:0-65535'",
    "'0-4294967295'",
    "'198.18.0.0/16'",
    "'flow:198.18.0.1..198.18.0.9/2'",
    "'0.0.0.0/0'",
    "'198.18.0.1-198.18.0.7'",
    "'2001:db8::/33'",
    "'::/0'",
    "'any:::1,1::'",
    "'::1..::9'",
    "'::1-::ffff:ffff:ffff:fffe'",
    "'02:00:00:00:00:00/8'",
    "'02:00:00:00:00:01,06:00:00:00:00:00'",
    "'02:00:00:00:00:00..02:00:ff:ff:ff:ff'",
    "'bad'",
    "'right'",
    "'syn+ack'",
    "'SA'",
    "'mf'",
    "'00 ff 10'",
    "'0102030405060708090a0b0c0d0e0f'",
    "['mss=1-9', 'nop', 'timestamps=1 2']",
    "'/dev/null'",
];

const SIZES: &[&str] = &[
    "",
    "",
    "pad = false",
    "size = 60",
    "size = 65535",
    "size = [300, 301]",
    "size = '300-1514'",
    "size = '300-65535'",
    "size = '300..1514/7'",
    "size = 'imix'",
    "size = 'imix:300=3,9000=5'",
];

fn pick<T: Copy>(random: &mut Random, list: &[T]) -> T {
    list[random.below(list.len() as u64) as usize]
}

fn write(random: &mut Random) -> String {
    let mut text = String::new();
    for _ in 0..=random.below(2) {
        text += &format!("[[stream]]\n{}\nlayers = [\n", pick(random, SIZES));
        let mut layers = pick(random, STACKS).to_vec();
        layers.push("payload");
        if random.below(20) == 0 {
            // A layer that may not belong there.
            let at = random.below(layers.len() as u64) as usize;
            let other = pick(random, STACKS);
            layers[at] = pick(random, other);
        }
        for layer in layers {
            let fields: Vec<_> = FIELDS.iter().filter(|row| row.0 == layer).collect();
            let said = if fields.is_empty() { 0 } else { random.below(3).saturating_sub(1) };
            let fields = (0..said).map(|_| {
                let (_, field) = pick(random, &fields);
                format!("{field} = {}", pick(random, VALUES))
            });
            let fields: Vec<_> = fields.collect();
            text += &format!("  {{ {layer} = {{ {} }} }},\n", fields.join(", "));
        }
        text += "]\n";
    }
    text
}

#[test]
fn any_specification_is_refused_or_sent() {
    let mut random = Random::new(1);
    let mut room = vec![0; 65_535];
    let mut sent = 0;
    for _ in 0..TRIED {
        let text = write(&mut random);
        let planned = Spec::parse(&text).and_then(|spec| {
            let plan = spec.plan(&Defaults::default())?;
            Ok((spec, plan))
        });
        let (spec, plan) = match planned {
            Ok(planned) => planned,
            Err(error) => {
                assert!(error.to_string().len() > 20, "{error}\n{text}");
                continue;
            }
        };
        sent += 1;
        let workers = 1 + random.below(3) as u32;
        let mut frames = FrameBuilder::new(&plan, workers - 1, workers, || 1);
        for _ in 0..4 {
            assert!(frames.next_into(&mut room).is_some_and(|bytes| bytes > 0), "{text}");
        }
        let mut shown = String::new();
        show(&spec, &plan, 2, |_| String::new(), &mut shown).unwrap();
        assert!(shown.contains("packet 2: stream "), "{text}");
    }
    assert!(sent > 300, "{sent} of {TRIED} make packets");
}
