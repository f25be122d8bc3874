//! What packets belong to: an interface, or one of those a file speaks of.

/// What a packet's [`Meta::interface`](super::Meta::interface) refers to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Interface {
    /// Its name: "eth0"; empty where a file does not say.
    pub name: String,
    /// What its packets begin with: a LINKTYPE_ number (tcpdump.org's list); 1 is Ethernet.
    pub link_type: u16,
    /// The most bytes of a packet that are kept; 0 means no limit.
    pub snaplen: u32,
    /// Anything more there is to say of it, its clock for example.
    pub comment: String,
}

/// The link type of Ethernet.
pub const LINKTYPE_ETHERNET: u16 = 1;
