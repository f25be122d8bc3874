//! Rows of files: what each holds, and which are deleted.

use super::*;

#[test]
fn every_file_of_a_row_names_its_interfaces_and_ends_with_statistics() {
    if !have(&["capinfos"]) {
        return;
    }
    let directory = TempDir::new().unwrap();
    let config = OutputConfig {
        rotation: Rotation { bytes: Some(4000), ..Rotation::default() },
        ..OutputConfig::new(directory.path().join("a-%Y.pcapng"))
    };
    let mut encoder = encoder(&config);
    let mut output = Output::create(config).unwrap();
    assert!(files(directory.path()).is_empty(), "named after a packet that has not come");
    output.add_interface(&interface("left0", LINKTYPE_ETHERNET), None).unwrap();
    output.set_statistics(0, InterfaceStats::default()).unwrap();
    put(&mut output, &mut encoder, &packets(20), 1 << 20);
    output.add_interface(&interface("right0", LINKTYPE_ETHERNET), None).unwrap();
    put(&mut output, &mut encoder, &packets(20), 1 << 20);
    let summary = output.finish();
    let made = files(directory.path());
    assert_eq!(made.len() as u64, summary.files);
    assert!(made.len() > 4);
    for (number, path) in (1..).zip(&made) {
        let name = format!("a-2023-{number:05}.pcapng");
        assert_eq!(path.file_name().unwrap(), name.as_str());
        assert!(fs::metadata(path).unwrap().len() <= 4000);
        let about = text(Command::new("capinfos").arg(path));
        assert!(about.contains("Name = left0") && about.contains("stat entries = 1"), "{about}");
    }
    let last = text(Command::new("capinfos").arg(&made[made.len() - 1]));
    assert!(last.contains("Name = right0"));
}

#[test]
fn packets_after_the_last_file_are_counted_before_the_end() {
    let directory = TempDir::new().unwrap();
    let config = OutputConfig {
        rotation: Rotation { packets: Some(5), last_file: Some(2), ..Rotation::default() },
        ..OutputConfig::new(directory.path().join("a.pcapng"))
    };
    let mut encoder = encoder(&config);
    let mut output = Output::create(config).unwrap();
    output.add_interface(&interface("left0", LINKTYPE_ETHERNET), None).unwrap();
    put(&mut output, &mut encoder, &packets(17), 1 << 20);
    let counts = output.counts();
    assert_eq!((counts.written(), counts.after_last_file()), (10, 7));
    assert_eq!(output.finish().after_last_file, 7);
}

#[test]
fn a_file_somebody_put_in_our_place_is_left_alone() {
    let directory = TempDir::new().unwrap();
    let stranger = directory.path().join("a-00001.pcapng");
    let config = OutputConfig {
        rotation: Rotation { bytes: Some(1), files: Some(1), ..Rotation::default() },
        ..OutputConfig::new(directory.path().join("a.pcapng"))
    };
    let mut encoder = encoder(&config);
    let mut output = Output::create(config).unwrap();
    output.add_interface(&interface("left0", LINKTYPE_ETHERNET), None).unwrap();
    put(&mut output, &mut encoder, &packets(1), 1 << 20);
    let theirs = directory.path().join("theirs");
    fs::write(&theirs, "theirs").unwrap();
    fs::rename(&theirs, &stranger).unwrap();
    put(&mut output, &mut encoder, &packets(2), 1 << 20);
    let summary = output.finish();
    assert_eq!((summary.files, summary.files_deleted, summary.files_left), (3, 1, 1));
    assert_eq!(fs::read(&stranger).unwrap(), b"theirs");
    assert_eq!(files(directory.path()).len(), 2);
}

#[test]
fn only_the_newest_file_is_kept_however_far_compression_lags() {
    let directory = TempDir::new().unwrap();
    let config = OutputConfig {
        workers: 3,
        rotation: Rotation { bytes: Some(1), files: Some(1), ..Rotation::default() },
        ..OutputConfig::new(directory.path().join("a.pcapng.zst"))
    };
    let mut encoder = encoder(&config);
    let mut output = Output::create(config).unwrap();
    output.add_interface(&interface("left0", LINKTYPE_ETHERNET), None).unwrap();
    put(&mut output, &mut encoder, &packets(100), 1 << 20);
    let summary = output.finish();
    assert_eq!((summary.packets, summary.packets_deleted), (100, 99));
    assert_eq!((summary.files, summary.files_deleted), (100, 99));
    assert_eq!(files(directory.path()), [directory.path().join("a-00100.pcapng.zst")]);
}
