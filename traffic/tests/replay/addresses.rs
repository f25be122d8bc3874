//! Packets with other addresses.

use std::sync::Arc;

use sluicegate_traffic::rewrite::{Rewrite, Rule};
use sluicegate_traffic::source::{ReplayOptions, Tempo};

use crate::support::*;

#[test]
fn every_packet_gets_its_other_addresses_once_and_in_every_round() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("mix.pcap");
    let recorded = mix(600);
    pcap(&file, 1, &recorded);
    // Twice applied they would lead further.
    let rules = ["198.18.0.2=198.18.0.3", "198.18.0.3=198.18.0.4", "198.18.0.1=198.18.0.2"];
    let rewrite: Rewrite = rules.iter().map(|rule| rule.parse::<Rule>().unwrap()).collect();
    let rewrite = Arc::new(rewrite);
    for (workers, keep_bytes) in [(1, 0), (3, 0), (1, 1 << 30), (3, 1 << 30)] {
        let rewrite = Arc::clone(&rewrite);
        let options = ReplayOptions { rewrite, rounds: 2, keep_bytes, ..options(Tempo::Top) };
        let all = sent(folder.path(), &file, &options, workers);
        let packets: Vec<_> = all.into_iter().flat_map(|(packets, _)| packets).collect();
        assert_eq!(packets.len(), 1200);
        for (_, bytes) in packets {
            assert_eq!(
                (&bytes[26..30], &bytes[30..34]),
                (&[198, 18, 0, 2][..], &[198, 18, 0, 3][..])
            );
        }
    }
}
