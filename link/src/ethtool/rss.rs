//! RSS: the card's choice of a receive queue, by a hash of addresses and ports.

use super::{Ethtool, Result, supported};

const ETHTOOL_GRSSH: u32 = 0x46;
const ETHTOOL_SRSSH: u32 = 0x47;
/// As the table's size: the table stays.
const ETH_RXFH_INDIR_NO_CHANGE: u32 = u32::MAX;

/// Words of a `struct ethtool_rxfh` before its table: command, context, sizes of the table and the key, functions.
const HEADER_WORDS: usize = 6;

/// The function that hashes packets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HashFunction {
    /// Toeplitz, with a key (Microsoft's RSS specification).
    Toeplitz,
    /// The exclusive or of the fields.
    Xor,
    /// CRC-32.
    Crc32,
}

/// The choice of receive queues.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rss {
    /// The queue of each value of the hash, modulo its length.
    pub table: Vec<u32>,
    /// The key of the hash; empty if the driver does not show it.
    pub key: Vec<u8>,
    /// The function; `None` if the driver does not report it.
    pub function: Option<HashFunction>,
}

impl Ethtool {
    /// Returns the choice of receive queues; `None` if the driver does not report it.
    ///
    /// # Errors
    /// No such interface.
    pub fn rss(&mut self, interface: &str) -> Result<Option<Rss>> {
        let Some(sizes) = self.rss_sizes(interface)? else { return Ok(None) };
        let [_, _, table_words, key_bytes, ..] = sizes;
        let (table_words, key_bytes) = (table_words as usize, key_bytes as usize);
        let mut words = vec![0; HEADER_WORDS + table_words + key_bytes.div_ceil(4)];
        words[..HEADER_WORDS].copy_from_slice(&sizes);
        self.ask_words(interface, "RSS", &mut words)?;
        let (table, key) = words[HEADER_WORDS..].split_at(table_words);
        let key: Vec<u8> = key.iter().flat_map(|it| it.to_ne_bytes()).take(key_bytes).collect();
        // linux/ethtool.h, ETH_RSS_HASH_TOP and others: a bit each.
        let function = match words[4].to_ne_bytes()[0] {
            1 => Some(HashFunction::Toeplitz),
            2 => Some(HashFunction::Xor),
            4 => Some(HashFunction::Crc32),
            _ => None,
        };
        Ok(Some(Rss { table: table.to_vec(), key, function }))
    }

    /// Sets the table, the key, or both.
    ///
    /// # Errors
    /// No such interface, a missing `CAP_NET_ADMIN`, or the driver refuses.
    pub fn set_rss(
        &mut self,
        interface: &str,
        table: Option<&[u32]>,
        key: Option<&[u8]>,
    ) -> Result<()> {
        let key = key.unwrap_or_default();
        // Byte 0 is the function, where 0 leaves the card's. Byte 1 is the symmetric transformation of addresses and ports
        // (Linux 6.8), where 0 would switch it off.
        let now = self.ask(interface, "RSS", [ETHTOOL_GRSSH, 0, 0, 0, 0, 0])?;
        let functions = u32::from_ne_bytes([0, now[4].to_ne_bytes()[1], 0, 0]);
        let table_words = table.map_or(ETH_RXFH_INDIR_NO_CHANGE, |it| it.len() as u32);
        let mut words = vec![ETHTOOL_SRSSH, 0, table_words, key.len() as u32, functions, 0];
        words.extend(table.unwrap_or_default());
        words.extend(key.chunks(4).map(|chunk| {
            let mut word = [0; 4];
            word[..chunk.len()].copy_from_slice(chunk);
            u32::from_ne_bytes(word)
        }));
        self.ask_words(interface, "set RSS of", &mut words)
    }

    /// Returns the header of an answer that has the sizes; `None` if the driver has neither table nor key.
    fn rss_sizes(&mut self, interface: &str) -> Result<Option<[u32; HEADER_WORDS]>> {
        let sizes = supported(self.ask(interface, "RSS", [ETHTOOL_GRSSH, 0, 0, 0, 0, 0]))?;
        let sizes = sizes.filter(|[_, _, table, key, ..]| table | key != 0);
        Ok(sizes.map(|[_, _, table, key, ..]| [ETHTOOL_GRSSH, 0, table, key, 0, 0]))
    }
}
