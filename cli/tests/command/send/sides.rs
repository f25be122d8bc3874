//! `sluice replay` out of two ports: the client's packets out of one, the server's out of the other.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::Path;

use sluicegate::link::{Shape, netns};

use crate::support::*;

/// Conversations of hosts' own TCP in a file. Returns the server's port.
fn conversations(path: &Path) -> Option<u16> {
    let lab = lab()?;
    let (left, right) = (lab.netns("left"), lab.netns("right"));
    let listen = || Ok(TcpListener::bind("198.18.0.2:0").unwrap());
    let listener = netns::run_in(Some(&right), listen).unwrap();
    let address = listener.local_addr().unwrap();
    let capture = capture_all(&right, &format!("tcp port {}", address.port()), path);
    let connect = || Ok((0..3).map(|_| TcpStream::connect(address).unwrap()).collect::<Vec<_>>());
    let clients = netns::run_in(Some(&left), connect).unwrap();
    for mut client in clients {
        let (mut server, _) = listener.accept().unwrap();
        let mut heard = [0; 100];
        for number in 0..20 {
            client.write_all(&[number; 100]).unwrap();
            server.read_exact(&mut heard).unwrap();
            server.write_all(&heard).unwrap();
            client.read_exact(&mut heard).unwrap();
        }
        drop(client);
        assert_eq!(server.read(&mut heard).unwrap(), 0, "the client has closed");
    }
    capture.stop().good();
    Some(address.port())
}

/// Splits packets into those to a port of TCP, and the others.
fn split(path: &Path, port: u16) -> [Vec<Vec<u8>>; 2] {
    let all = packets(path).into_iter().map(|(_, bytes)| bytes);
    let (to, from) = all.partition(|bytes: &Vec<u8>| bytes[36..38] == port.to_be_bytes());
    [to, from]
}

fn frames(path: &Path) -> Vec<Vec<u8>> {
    packets(path).into_iter().map(|(_, bytes)| bytes).collect()
}

#[test]
fn both_ends_of_a_device_get_their_side_of_a_real_conversation() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name);
    let Some(port) = conversations(&path("talk.pcap")) else { return };
    let sides = split(&path("talk.pcap"), port);
    assert!(sides.iter().all(|side| side.len() >= 3 * 20), "{:?}", sides.map(|side| side.len()));
    let Some(lab) = lab_of(Shape::Line, 1) else { return };
    for (sentence, more, rounds) in [
        ("as recorded", &[][..], 1),
        ("again, as fast as possible", &["--loop", "3", "--top-speed"], 3),
        ("by two threads each", &["--threads", "2"], 1),
    ] {
        let filter = format!("tcp port {port}");
        let [at_left, at_right] = [("left", "left0"), ("right", "right0")].map(|(host, port)| {
            capture(&lab.netns(host), &format!("{port}?blocks=64"), &filter, &path(port))
        });
        let middle = lab.netns("middle");
        let file = path("talk.pcap");
        let what = ["replay", file.to_str().unwrap(), "middle0", "middle1", "--netns", &middle];
        let sent = run(&[&what[..], &["--json"], more].concat()).good();
        let counts = sides.each_ref().map(|side| side.len() * rounds);
        for (number, port) in ["middle0", "middle1"].into_iter().enumerate() {
            let of_port = &sent["ports"][number];
            assert!(of_port["port"].as_str().unwrap().contains(port), "{sentence}: {sent}");
            assert_eq!(of_port["accepted"], counts[number], "{sentence}: {sent}");
        }
        assert_eq!(sent["accepted"], counts[0] + counts[1], "{sentence}: {sent}");
        assert_eq!(sent["pace"].is_object(), rounds == 1, "{sentence}: {sent}");
        for (number, (capture, file)) in
            [(at_left, "left0"), (at_right, "right0")].into_iter().enumerate()
        {
            assert_eq!(capture.stop().good()["packets"], counts[number], "{sentence}: {file}");
            let (mut came, mut expected) =
                (frames(&path(file)), vec![sides[number].clone(); rounds].concat());
            if more.contains(&"--threads") {
                // Only flows keep their order.
                came.sort();
                expected.sort();
            }
            assert!(came == expected, "{sentence}: {file}");
        }
    }
}

#[test]
fn prefixes_choose_the_clients_and_files_are_targets_too() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name);
    let one = |from: u8, number: u8| {
        let mut frame =
            vec![2, 0, 0, 0, 0, 2, 2, 0, 0, 0, 0, 1, 8, 0, 0x45, 0, 0, 28, 0, 1, 0, 0, 64, 17];
        frame.extend([
            0,
            0,
            198,
            18,
            0,
            from,
            198,
            18,
            0,
            3 - from,
            4,
            number,
            4,
            number,
            0,
            8,
            0,
            0,
        ]);
        frame
    };
    let frames_of = |from: u8| (0..5).map(|number| one(from, number)).collect::<Vec<_>>();
    let both: Vec<_> =
        frames_of(1).into_iter().zip(frames_of(2)).flat_map(|(a, b)| [a, b]).collect();
    pcap_file(&path("talk.pcap"), &both);
    let (file, a, b) = (path("talk.pcap"), path("a.pcap"), path("b.pcap"));
    let (a, b) = (format!("pcap:{}", a.display()), format!("pcap:{}", b.display()));
    let what = ["replay", file.to_str().unwrap(), &a, &b, "--top-speed"];
    for (clients, first) in
        [(&[][..], 1), (&["--client", "198.18.0.2"], 2), (&["--client", "198.18.0.0/31"], 1)]
    {
        let sent = run(&[&what[..], clients].concat());
        assert_eq!(sent.status, Some(0), "{}", sent.err);
        assert!(sent.out.contains(&format!("5 to {a}")), "{}", sent.out);
        assert_eq!(frames(&path("a.pcap")), frames_of(first), "{clients:?}");
        assert_eq!(frames(&path("b.pcap")), frames_of(3 - first), "{clients:?}");
    }
    let (soft, new) = (path("soft.pcap"), path("new.pcap"));
    std::os::unix::fs::symlink("a.pcap", &soft).unwrap();
    let written = std::fs::read(path("a.pcap")).unwrap();
    let port = |path: &std::path::Path| format!("pcap:{}", path.display());
    for (one, other) in [
        (&a, &a),
        (&a, &port(&soft)),
        (&port(&new), &port(&folder.path().join(".").join("new.pcap"))),
    ] {
        let what = ["replay", file.to_str().unwrap(), one, other];
        refused(&what, "the two targets are the same");
    }
    assert_eq!(std::fs::read(path("a.pcap")).unwrap(), written, "it keeps its packets");
    assert!(!new.exists());
    refused(&["replay", file.to_str().unwrap(), &a, &b, "--dmac", "auto"], "two next hops");
    refused(&["replay", "-", &a, &b], "a pipe can be read but once");
    refused(&["replay", file.to_str().unwrap(), &a, "--client", "198.18.0.2"], "SERVER-PORT");
}
