use super::*;

#[test]
fn rings_are_as_large_as_memory_allows() {
    let of = |rings, snaplen, cells| {
        CopyConfig::new(Sharing::Queue, rings, 0..=0, snaplen, cells)
            .map(|g| (g.ring.cells, g.ring.cell_bytes(), g.ring.snaplen))
    };
    let rows = [
        ("frames of 1500 bytes", of(1, 1522, None), Ok((16_384, 1600, 1522))),
        ("jumbo frames", of(1, 9022, None), Ok((2048, 9088, 9022))),
        ("the longest", of(1, 1 << 20, None), Ok((256, 65_600, 65_535))),
        ("short packets", of(1, 96, None), Ok((16_384, 128, 96))),
        ("many CPUs", of(256, 1522, None), Ok((256, 1600, 1522))),
        ("as many as one says, and up to a power of two", of(1, 96, Some(100)), Ok((128, 128, 96))),
        ("many CPUs and jumbo frames", of(256, 9022, None), Ok((32, 9088, 9022))),
        (
            "many CPUs and the longest",
            of(256, 1 << 20, None),
            Err("256 rings of copies would take 257 MiB, and 128 MiB is the most".into()),
        ),
        ("the same, and one says how many", of(256, 1 << 20, Some(8)), Ok((8, 65_600, 65_535))),
        (
            "too many",
            of(1, 65_535, Some(65_536)),
            Err("a ring of copies would take 4100 MiB, and 256 MiB is the most".into()),
        ),
        (
            "as many as there are numbers",
            of(1, 1, Some(u32::MAX)),
            Err("a ring of copies would take 262144 MiB, and 256 MiB is the most".into()),
        ),
    ];
    for (sentence, got, expected) in rows {
        assert_eq!(got, expected, "{sentence}");
    }
}
