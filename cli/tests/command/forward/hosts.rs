//! Hosts reach each other through each kind of forwarder.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::time::Duration;

use sluicegate::link::netns;

use super::*;

/// Bytes that go each way.
const BYTES: usize = 300_000;

/// Exchanges bytes over TCP: right returns what left sends.
pub fn talk(lab: &Lab) {
    let within = |host: &str| Some(lab.netns(host));
    let listen = || Ok(TcpListener::bind("198.18.0.2:0").unwrap());
    let listener = netns::run_in(within("right").as_deref(), listen).unwrap();
    let address = listener.local_addr().unwrap();
    let echo = std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        let mut bytes = vec![0; BYTES];
        stream.read_exact(&mut bytes).unwrap();
        stream.write_all(&bytes).unwrap();
    });
    let connect = || Ok(TcpStream::connect_timeout(&address, Duration::from_secs(60)).unwrap());
    let mut stream = netns::run_in(within("left").as_deref(), connect).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
    let said: Vec<u8> = (0..BYTES).map(|i| (i * 7 % 251) as u8).collect();
    stream.write_all(&said).unwrap();
    let mut heard = vec![0; BYTES];
    stream.read_exact(&mut heard).unwrap();
    assert!(said == heard);
    echo.join().unwrap();
}

#[test]
fn hosts_talk_through_it() {
    if !have(&["ping"]) {
        return;
    }
    let Some(lab) = lab_of(Shape::Line, 1) else { return };
    without_gro(&lab, "middle", &["middle0", "middle1"]);
    for (ports, swaps, why) in [
        (["xdp:middle0", "xdp:middle1"], [true, true], "buffers change places"),
        (["xdp:middle0?mode=skb", "xdp:middle1?mode=skb"], [true, true], "skb mode"),
        (
            ["xdp:middle0?send=live", "xdp:middle1?send=live"],
            [true, true],
            "written for a program from a buffer that came",
        ),
        (["packet:middle0", "packet:middle1"], [false, false], "from the kernel's blocks"),
        (["xdp:middle0", "packet:middle1"], [true, false], "there and back by different ways"),
        (
            ["packet:middle0?method=recvmmsg", "packet:middle1?method=recv"],
            [true, true],
            "system calls fill buffers of the pool",
        ),
    ] {
        let running = forward(&lab, &ports);
        let ping = ["ping", "-q", "-c", "20", "-i", "0.02", "-W", "5", "198.18.0.2"];
        let pinged = on(&lab, "left", &ping);
        assert_eq!(pinged.status, Some(0), "{ports:?}: {}", pinged.out);
        talk(&lab);
        let report = running.stop().good();
        for (index, swaps) in swaps.into_iter().enumerate() {
            let [packets, swapped, copied] = direction(&report, index);
            assert!(packets > 20 + BYTES as u64 / 1500, "{ports:?}: {report}");
            let expected = if swaps { (packets, 0) } else { (0, packets) };
            assert_eq!((swapped, copied), expected, "{ports:?}: {why}: {report}");
        }
        assert_eq!(report["ledger"]["losses"], serde_json::json!({}), "{report}");
        assert_eq!(report["to"], ports[1], "{report}");
    }
}

/// Sends 3000 stamped packets from left to right, of many flows or in order of one. Returns how many the
/// receiver counts: a busy machine loses some on the way.
fn send_stamped(lab: &Lab, arguments: &[&str], sport: &str) -> u64 {
    let right = lab.netns("right");
    let count = Running::start(&[
        "count",
        "--netns",
        &right,
        "xdp:right0",
        "-f",
        "udp",
        "--analyze",
        "--json",
    ]);
    let what = ["--stamp", "--size", "60-1514", "--count", "3000", "--sport", sport];
    // A pace that all of them keep up with, unless the machine suspends them.
    let how = ["--rate", "30kpps", "--method", "sendmmsg"];
    let come = || received(lab, "right", "right0") + dropped(lab, "left", "left0");
    let all = come() + 3000;
    let sent = ended(&mut generate(lab, &[&what[..], &how].concat())).good();
    assert_eq!(sent["accepted"], 3000, "{sent}");
    settles(all, come);
    let counted = count.stop().good();
    let analysis = &counted["analysis"]["streams"][0];
    for trouble in ["duplicates", "corrupt", "reordered"] {
        // Flows that come by several queues may overtake each other.
        if trouble != "reordered" || sport == "9" {
            assert_eq!(analysis[trouble], 0, "{arguments:?}: {trouble}: {counted}");
        }
    }
    counted["ledger"]["in"].as_u64().unwrap()
}

#[test]
fn every_packet_comes_once_whole_and_in_the_order_of_its_flow() {
    let Some(lab) = lab_of(Shape::Line, 3) else { return };
    for (arguments, threads, why) in [
        (&["xdp:middle0", "xdp:middle1"][..], 3, "a thread for each pair of queues"),
        (&["xdp:middle0", "xdp:middle1/0-1", "--one-way"], 2, "three queues into two"),
        (&["xdp:middle0", "xdp:middle1/2", "--one-way"], 1, "three queues into one"),
        (&["xdp:middle0", "xdp:middle1", "--threads", "1"], 1, "one thread for all"),
        (&["xdp:middle0", "xdp:middle1", "--batch", "7", "--wait", "sleep"], 3, "small steps"),
        (&["xdp:middle0", "packet:middle1", "--one-way"], 1, "swapped, and sent by calls"),
        (&["xdp:middle0", "live:middle1", "--one-way"], 1, "written for a program to send"),
        (&["xdp:middle0?send=live", "xdp:middle1?send=live"], 3, "and back, with three queues"),
        (&["packet:middle0", "packet:middle1"], 1, "copied from the kernel's blocks"),
        (&["mirror:middle0", "xdp:middle1/0", "--one-way"], 1, "copied from rings of copies"),
    ] {
        let running = forward(&lab, arguments);
        let before = dropped(&lab, "left", "left0");
        let came = ["1024-65535", "9"].map(|sport| send_stamped(&lab, arguments, sport));
        let report = running.stop().good();
        let after = dropped(&lab, "left", "left0");
        let named = report["ledger"]["losses"].as_object().unwrap();
        let named: u64 = named.values().map(|count| count.as_u64().unwrap()).sum();
        let explained = came.iter().sum::<u64>() + after - before + named;
        assert_eq!(explained, 6000, "{why}: {came:?}, {before} to {after}: {report}");
        assert_eq!(report["ledger"]["unexplained"], 0, "{why}: {report}");
        let served = report["threads"].as_array().unwrap().len();
        assert_eq!(served, threads, "{why}: {report}");
    }
}

/// AF_XDP's frames and the buffers of a pipe have different sizes by default.
#[test]
fn packets_pass_between_a_wire_and_a_pipe() {
    let Some(lab) = lab_of(Shape::Line, 1) else { return };
    let folder = tempfile::tempdir().unwrap();
    let pipe = |role| format!("memif:{}?role={role}", folder.path().join("socket").display());
    let (server, client, left) = (pipe("server"), pipe("client"), lab.netns("left"));
    // The shortest queue on the way holds more.
    let what = ["--stamp", "--size", "60-1514", "--count", "200"];
    let taken = ["--count", "200", "--json"];
    for (ports, counts_at) in [
        (["xdp:middle0", &server], &["count", &client][..]),
        ([&server, "xdp:middle0"], &["count", "xdp:left0", "--netns", &left, "-f", "udp"]),
    ] {
        let filter = if ports[1] == server { &["-f", "udp"][..] } else { &[] };
        let forwarder = forward(&lab, &[&ports[..], &["--one-way"], filter].concat());
        let counts = Running::start(&[counts_at, &taken].concat());
        let sent = match filter {
            [] => {
                run(&[&["generate", &client, "--dst", "198.18.0.1", "--json"], &what[..]].concat())
            }
            _ => ended(&mut generate(&lab, &what)),
        };
        let counted = counts.end().good();
        assert_eq!(counted["bytes"], sent.good()["bytes"], "{ports:?}: {counted}");
        let report = forwarder.stop().good();
        assert_eq!(direction(&report, 0), [200, 200, 0], "{report}");
    }
}
