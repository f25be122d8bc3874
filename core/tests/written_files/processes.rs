//! Writers in processes of their own: standard output, and a kill.

use super::*;

/// The variable that makes a test below write for its parent.
const CHILD: &str = "SLUICE_TEST_WRITES_TO";

/// This test alone, in a process of its own, with its standard output in a pipe.
fn alone(test: &str, path: &Path) -> std::process::Child {
    Command::new(std::env::current_exe().unwrap())
        .args(["--exact", &format!("processes::{test}"), "--nocapture", "--test-threads=1"])
        .env(CHILD, path)
        .stdout(Stdio::piped())
        .spawn()
        .unwrap()
}

#[test]
fn standard_output_carries_a_capture() {
    if let Some(path) = std::env::var_os(CHILD) {
        let config = OutputConfig::new(path);
        let mut encoder = encoder(&config);
        let mut output = Output::create(config).unwrap();
        output.add_interface(&interface("left0", LINKTYPE_ETHERNET), None).unwrap();
        put(&mut output, &mut encoder, &packets(5000), 1 << 20);
        assert!(output.finish().failure.is_none());
        // Nothing of the test harness may follow.
        std::process::exit(0);
    }
    if !have(&["tcpdump"]) {
        return;
    }
    let written = child::end(alone("standard_output_carries_a_capture", Path::new("-"))).stdout;
    let head = written.windows(4).position(|four| four == [0x0a, 0x0d, 0x0d, 0x0a]);
    let capture = written[head.expect("no capture")..].to_vec();
    assert_eq!(by_tcpdump(capture), packets(5000));
}

#[test]
fn a_killed_writer_leaves_all_it_had_written() {
    let name = "a_killed_writer_leaves_all_it_had_written";
    if let Some(path) = std::env::var_os(CHILD) {
        let config = OutputConfig::new(path);
        let mut encoder = encoder(&config);
        let mut output = Output::create(config).unwrap();
        output.add_interface(&interface("left0", LINKTYPE_ETHERNET), None).unwrap();
        put(&mut output, &mut encoder, &packets(1000), 10_000);
        output.flush().unwrap();
        println!("\nwritten");
        loop {
            std::thread::park();
        }
    }
    if !have(&["tcpdump", "zstd", "lz4"]) {
        return;
    }
    let directory = TempDir::new().unwrap();
    for file in ["a.pcap", "a.pcapng", "a.pcapng.zst", "a.pcap.lz4", "a.pcap.gz"] {
        let path = directory.path().join(file);
        let mut writer = alone(name, &path);
        lines::until(writer.id(), writer.stdout.take().unwrap(), "written");
        writer.kill().unwrap();
        writer.wait().unwrap();
        assert_eq!(by_tcpdump(unpacked_to_the_end(&path)), packets(1000), "{file}");
    }
}

/// Decompresses a file that breaks off.
fn unpacked_to_the_end(path: &Path) -> Vec<u8> {
    let Some(tool) = tool(Compression::of(path)) else {
        return fs::read(path).unwrap();
    };
    Command::new(tool).arg("-dcq").arg(path).output().unwrap().stdout
}
