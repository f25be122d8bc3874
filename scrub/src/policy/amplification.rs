//! Amplification classes: answers of protocols that attackers use as amplifiers.
//!
//! An attacker sends small requests with the victim's address as source to many servers, which send large answers to
//! the victim. Answers come from a protocol's port and are long; some also have a byte that tells them from requests.

/// A class of answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AmplificationClass {
    /// Its name in policies.
    pub name: &'static str,
    /// The UDP source port of answers.
    pub port: u16,
    /// The minimum length of an answer's payload, in bytes.
    pub min_payload: u16,
    /// A byte of the payload that answers have.
    pub byte: Option<PayloadByte>,
}

/// A condition on one byte of a payload.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PayloadByte {
    /// Its offset.
    pub offset: u8,
    /// The bits that matter.
    pub mask: u8,
    /// Their values.
    pub value: u8,
}

const fn class(name: &'static str, port: u16, min_payload: u16) -> AmplificationClass {
    AmplificationClass { name, port, min_payload, byte: None }
}

const fn with_byte(
    class: AmplificationClass,
    offset: u8,
    mask: u8,
    value: u8,
) -> AmplificationClass {
    AmplificationClass { byte: Some(PayloadByte { offset, mask, value }), ..class }
}

/// The classes. One port has one class.
pub const AMPLIFICATION: &[AmplificationClass] = &[
    // QR: an answer (RFC 1035, 4.1.1).
    with_byte(class("dns", 53, 12), 2, 0x80, 0x80),
    class("chargen", 19, 1),
    class("qotd", 17, 1),
    class("tftp", 69, 4),
    // REPLY, the message type of RPC (RFC 5531, 9).
    with_byte(class("portmap", 111, 24), 7, 0xff, 1),
    // Modes 6 and 7, control and private: never the time itself (RFC 9327).
    with_byte(class("ntp", 123, 12), 0, 0x06, 0x06),
    // R: a response (RFC 1002, 4.2.1.1).
    with_byte(class("netbios", 137, 50), 2, 0x80, 0x80),
    // A SEQUENCE in BER; the shortest response has an empty community and no variables (RFC 3416, 3; RFC 1901, 3).
    with_byte(class("snmp", 161, 20), 0, 0xff, 0x30),
    // A SEQUENCE in BER (RFC 4511, 4.1.1).
    with_byte(class("cldap", 389, 40), 0, 0xff, 0x30),
    class("isakmp", 500, 200),
    class("ipmi", 623, 16),
    // Command: response (RFC 2453, 3.6).
    with_byte(class("rip", 520, 24), 0, 0xff, 2),
    class("mssql", 1434, 20),
    // "HTTP/1.1 200 OK"; announcements begin with "NOTIFY" (UPnP Device Architecture 1.1, 1.3.3).
    with_byte(class("ssdp", 1900, 100), 0, 0xff, b'H'),
    class("ard", 3283, 200),
    class("rdp", 3389, 200),
    class("wsd", 3702, 100),
    // The first byte of the marker of IKE; packets of a tunnel have its SPI there (RFC 3948, 2.1 and 2.2).
    with_byte(class("ipsec-nat", 4500, 200), 0, 0xff, 0),
    // "SIP/2.0"; a method has no slash (RFC 3261, 7).
    with_byte(class("sip", 5060, 100), 3, 0xff, b'/'),
    // QR: an answer (RFC 6762, 18.2).
    with_byte(class("mdns", 5353, 12), 2, 0x80, 0x80),
    // Version 1, acknowledgement or code of class 2 to 5 cannot be told from one byte (RFC 7252, 3).
    class("coap", 5683, 64),
    class("ubiquiti", 10001, 100),
    class("memcached", 11211, 64),
    class("quake", 27960, 100),
    class("steam", 27015, 200),
    class("plex", 32414, 20),
    class("dvr", 37810, 100),
    class("bacnet", 47808, 20),
];

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn ports_and_names_differ() {
        let ports: BTreeSet<_> = AMPLIFICATION.iter().map(|it| it.port).collect();
        let names: BTreeSet<_> = AMPLIFICATION.iter().map(|it| it.name).collect();
        assert_eq!((ports.len(), names.len()), (AMPLIFICATION.len(), AMPLIFICATION.len()));
    }

    #[test]
    fn answers_reach_to_their_byte() {
        for class in AMPLIFICATION {
            let reaches = |it: PayloadByte| u16::from(it.offset) < class.min_payload;
            assert!(class.byte.is_none_or(reaches), "{}", class.name);
        }
    }
}
