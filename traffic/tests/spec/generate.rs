//! Generates random specifications, with the values that their packets may have in each field.

use sluicegate_traffic::plan::{RandomKey, hash};

use crate::headers::FIELDS;

/// Reproducible random numbers.
pub struct Random {
    key: RandomKey,
    count: u64,
}

impl Random {
    pub fn new(seed: u64) -> Self {
        Self { key: RandomKey(seed), count: 0 }
    }

    pub fn next(&mut self) -> u64 {
        self.count += 1;
        hash(self.key, self.count)
    }

    pub fn below(&mut self, count: u64) -> u64 {
        self.next() % count
    }

    /// Returns true once in `count` times.
    fn one_in(&mut self, count: u64) -> bool {
        self.below(count) == 0
    }
}

/// The values that packets may have in a field.
#[derive(Debug)]
pub struct Allowed {
    pub layer: usize,
    pub field: &'static str,
    pub flow: bool,
    pub set: Set,
}

#[derive(Debug)]
pub enum Set {
    One(u128),
    InTurn(Vec<u128>),
    AnyOf(Vec<u128>),
    Between(u128, u128),
}

/// A stream, and the allowed values of its packets.
#[derive(Debug)]
pub struct Made {
    pub text: String,
    /// The layers with a header.
    pub layers: Vec<&'static str>,
    pub allowed: Vec<Allowed>,
    pub flows: u32,
    /// The minimum and maximum size of frames.
    pub sizes: (usize, usize),
    /// True if a part of it is random.
    pub random: bool,
}

/// Generates a random stream.
pub fn stream(random: &mut Random) -> Made {
    let layers = stack(random);
    let mut allowed = Vec::new();
    let mut parts = Vec::new();
    let mut headers = 0;
    for (number, layer) in layers.iter().enumerate() {
        let mut fields = fields(random, layer, number, layers.get(number + 1), &mut allowed);
        headers += length(layer) + more(random, layer, &mut fields);
        let quoted = if layer.contains('-') { format!("\"{layer}\"") } else { layer.to_string() };
        parts.push(format!("{{ {quoted} = {{ {} }} }}", fields.join(", ")));
    }
    let payload = payload(random);
    parts.extend(payload.clone());
    let (size, sizes) = size(random, headers);
    let flows = [1, 1, 3, 64, 1000][random.below(5) as usize];
    let text =
        format!("[[stream]]\nflows = {flows}\n{size}layers = [\n  {}\n]\n", parts.join(",\n  "));
    let by_chance = |allowed: &Allowed| match &allowed.set {
        Set::Between(..) | Set::AnyOf(_) => !allowed.flow,
        _ => false,
    };
    let random = allowed.iter().any(by_chance);
    Made { text, layers, allowed, flows, sizes, random }
}

/// Generates layers in a valid order.
fn stack(random: &mut Random) -> Vec<&'static str> {
    let mut layers = vec!["ether"];
    link(random, &mut layers);
    for depth in 0.. {
        let inner = depth < 2 && random.one_in(3);
        let v6 = random.one_in(2);
        layers.push(if v6 { "ipv6" } else { "ipv4" });
        if v6 {
            for (extension, rarity) in
                [("hop-by-hop", 5), ("destination", 6), ("routing", 6), ("fragment", 8)]
            {
                if random.one_in(rarity) {
                    layers.push(extension);
                }
            }
        }
        if !inner {
            let icmp = if v6 { "icmpv6" } else { "icmp" };
            match random.below(8) {
                0..3 => layers.push("udp"),
                3..6 => layers.push("tcp"),
                6 => layers.push(icmp),
                _ => {}
            }
            break;
        }
        match random.below(3) {
            0 => layers.extend(["udp", "vxlan", "ether"]),
            1 => layers.extend(["gre", "ether"]),
            _ => layers.push("gre"),
        }
        if layers.ends_with(&["ether"]) && random.one_in(4) {
            layers.push("vlan");
        }
    }
    let last = layers[layers.len() - 1];
    if random.one_in(12) {
        return vec!["ether", "vlan", "arp"];
    }
    if random.one_in(3) && !last.starts_with("icmp") {
        layers.push("stamp");
    }
    layers
}

fn link(random: &mut Random, layers: &mut Vec<&'static str>) {
    let tags = random.below(5).saturating_sub(2);
    layers.extend((0..tags).map(|_| "vlan"));
    if random.one_in(6) {
        layers.extend((0..=random.below(2)).map(|_| "mpls"));
    }
}

/// Returns the length of a header without options.
fn length(layer: &str) -> usize {
    match layer {
        "ether" => 14,
        "vlan" | "mpls" | "gre" => 4,
        "arp" => 28,
        "ipv4" | "tcp" => 20,
        "ipv6" => 40,
        "stamp" => 16,
        _ => 8,
    }
}

/// Sets some of a layer's fields at random.
fn fields(
    random: &mut Random,
    layer: &'static str,
    number: usize,
    next: Option<&&str>,
    allowed: &mut Vec<Allowed>,
) -> Vec<String> {
    let mut said = Vec::new();
    // Two fields of the same bits exclude each other.
    let other_way = random.one_in(2);
    for &(_, field, _, bits) in FIELDS.iter().filter(|row| row.0 == layer) {
        let excluded = match field {
            "tos" | "traffic-class" | "rest" => other_way,
            "dscp" | "ecn" => !other_way,
            "id" | "seq" if layer.starts_with("icmp") => !other_way,
            // Other tests check fragments; a tunnel's port identifies its protocol.
            "frag" | "mf" => true,
            "dport" => next == Some(&"vxlan"),
            _ => false,
        };
        if excluded || random.one_in(2) {
            continue;
        }
        let flow = random.one_in(3);
        let (text, set) = value(random, field, bits);
        let prefix = if flow { "flow:" } else { "" };
        said.push(format!("{field} = \"{prefix}{text}\""));
        allowed.push(Allowed { layer: number, field, flow, set });
    }
    if layer == "gre" {
        for field in ["key", "seq"] {
            if random.one_in(2) {
                let (text, set) = value(random, field, 32);
                said.push(format!("{field} = \"{text}\""));
                allowed.push(Allowed { layer: number, field, flow: false, set });
            }
        }
    }
    said
}

/// Adds a field that lengthens the header; returns the added bytes.
fn more(random: &mut Random, layer: &str, fields: &mut Vec<String>) -> usize {
    let words = fields.len();
    let mut add = |said: &str, bytes| {
        fields.push(said.to_owned());
        bytes
    };
    match layer {
        "gre" if random.one_in(2) => words * 4,
        "gre" => words * 4 + add("checksum = \"right\"", 4),
        "ipv4" => match random.below(8) {
            0 => add("options = \"94 04 00 00\"", 4),
            1 => add("options = \"01 01 01 01 01\"", 8),
            _ => 0,
        },
        "tcp" => match random.below(5) {
            0 => add(
                "options = [\"mss=1200-1460\", \"sack-ok\", \"timestamps=1..1000 0\", \"nop\", \
                 \"wscale=7\"]",
                20,
            ),
            1 => add("options = [\"nop\", \"mss=536,1460\"]", 8),
            _ => 0,
        },
        "hop-by-hop" | "destination" => match random.below(3) {
            0 => add("options = \"05 02 00 00\"", 0),
            1 => add("options = \"1e 05 01 02 03 04 05\"", 8),
            _ => 0,
        },
        _ => 0,
    }
}

/// Generates a value of a field, and its meaning.
fn value(random: &mut Random, field: &str, bits: usize) -> (String, Set) {
    let mask = u128::MAX >> (128 - bits);
    let base: u128 = match bits {
        48 => 0x0200_0000_0000,
        128 => 0x2001_0db8 << 96,
        32 if matches!(field, "src" | "dst" | "spa" | "tpa") => 0xc612_0000,
        _ => 0,
    };
    // Ports that tshark associates with a protocol are avoided.
    let port = matches!(field, "sport" | "dport");
    let (low, room) = match (base, port) {
        (_, true) => (50_000, 8000),
        (0, false) => (0, mask),
        _ => (base, 0x1_ffff),
    };
    let any = |random: &mut Random| low + u128::from(random.next()) % (room.saturating_add(1));
    let write = |number: u128| match (base, bits) {
        (0, _) => number.to_string(),
        (_, 48) => {
            let bytes = (number as u64).to_be_bytes();
            let bytes: Vec<_> = bytes[2..].iter().map(|byte| format!("{byte:02x}")).collect();
            bytes.join(":")
        }
        (_, 32) => std::net::Ipv4Addr::from_bits(number as u32).to_string(),
        _ => std::net::Ipv6Addr::from_bits(number).to_string(),
    };
    let (first, other) = (any(random), any(random));
    let (least, most) = (first.min(other), first.max(other));
    match random.below(if base == 0 { 5 } else { 7 }) {
        0 => (write(first), Set::One(first)),
        1 => {
            let list: Vec<_> = (0..2 + random.below(4)).map(|_| any(random)).collect();
            let text: Vec<_> = list.iter().map(|number| write(*number)).collect();
            match random.below(2) {
                0 => (text.join(","), Set::InTurn(list)),
                _ => (format!("any:{}", text.join(",")), Set::AnyOf(list)),
            }
        }
        2 => {
            let step = 1 + u128::from(random.below(5));
            let count = first.abs_diff(other) / step + 1;
            let at = |n: u128| if first < other { first + n * step } else { first - n * step };
            // The list needs no more values than the tests check.
            let list = (0..count.min(5000)).map(at).collect();
            (format!("{}..{}/{step}", write(first), write(other)), Set::InTurn(list))
        }
        3 | 4 => (format!("{}-{}", write(least), write(most)), Set::Between(least, most)),
        _ => {
            let fixed = match bits {
                48 => 8 + random.below(40),
                32 => 15 + random.below(17),
                _ => 32 + random.below(96),
            };
            let lower = mask >> fixed;
            let prefix = first & !lower;
            (format!("{}/{fixed}", write(first)), Set::Between(prefix, prefix | lower))
        }
    }
}

fn payload(random: &mut Random) -> Option<String> {
    let kinds = [
        "payload = {}",
        "payload = { hex = \"00 01 02 03 04 05 06\" }",
        "payload = { text = \"the quick brown fox\" }",
        "payload = { pattern = \"55 aa 01\" }",
        "payload = { random = true }",
    ];
    let place = random.below(7) as usize;
    kinds.get(place).map(|kind| format!("{{ {kind} }}"))
}

/// Generates the frame's size and its bounds.
fn size(random: &mut Random, headers: usize) -> (String, (usize, usize)) {
    let mut any = || headers as u64 + random.below(1400);
    let (a, b) = (any(), any());
    let bounds = (a.min(b) as usize, a.max(b) as usize);
    match random.below(6) {
        0 => (String::new(), (60.min(headers), usize::MAX)),
        1 => (format!("size = {a}\n"), (a as usize, a as usize)),
        2 => (format!("size = [{a}, {b}, {a}]\n"), bounds),
        3 => (format!("size = \"imix:{a}=3,{b}=2\"\n"), bounds),
        4 => (format!("size = \"{a}..{b}/7\"\n"), bounds),
        _ => (format!("size = \"{}-{}\"\n", bounds.0, bounds.1), bounds),
    }
}
