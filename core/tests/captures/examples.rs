//! The examples of the library, with a pipe whose reader has exited.

use std::process::{Command, Stdio};

use crate::child;

#[test]
fn examples_end_quietly_without_a_reader() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("empty.pcap");
    let head: [u32; 6] = [0xa1b2_c3d4, 2 | 4 << 16, 0, 0, 65535, 1];
    std::fs::write(&file, head.map(u32::to_le_bytes).concat()).unwrap();
    let file = format!("pcap:{}", file.display());
    let test = std::env::current_exe().unwrap();
    let examples = test.ancestors().nth(2).unwrap().join("examples");
    for (example, arguments) in [
        ("receive", &["null:"][..]),
        ("count_by_protocol", &[&file]),
        ("generate", &["null:"]),
        ("null_forward", &["io", "0.01"]),
    ] {
        let program = examples.join(example);
        if !program.exists() {
            eprintln!("skipped: needs {example}; get it by cargo build --examples");
            continue;
        }
        let (reader, writer) = std::io::pipe().unwrap();
        drop(reader);
        let mut command = Command::new(program);
        let command = command.args(arguments).stdout(writer).stderr(Stdio::piped());
        let ended = child::end(command.spawn().unwrap());
        assert_eq!(
            (ended.status.code(), &ended.stderr[..]),
            (Some(0), &b""[..]),
            "{example}: {ended:?}"
        );
    }
}
