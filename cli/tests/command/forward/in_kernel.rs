//! `--in-kernel`: XDP redirects packets to the other interface.

use nix::sys::signal::Signal;
use sluicegate::link::Shape;

use super::*;

#[test]
fn hosts_talk_and_every_packet_is_counted() {
    if !have(&["ping"]) {
        return;
    }
    let Some(lab) = lab_of(Shape::Line, 2) else { return };
    let ping = ["ping", "-q", "-c", "20", "-i", "0.02", "-W", "5", "198.18.0.2"];
    for mode in ["native", "skb"] {
        let [from, to] = ["middle0", "middle1"].map(|name| format!("xdp:{name}?mode={mode}"));
        let running = forward(&lab, &[&from, &to, "--in-kernel"]);
        let pinged = on(&lab, "left", &ping);
        assert_eq!(pinged.status, Some(0), "{mode}: {}", pinged.out);
        hosts::talk(&lab);
        let report = running.stop().good();
        assert_eq!(report["mode"], mode, "{report}");
        assert_eq!(report["ledger"]["losses"], serde_json::json!({}), "{report}");
        for index in [0, 1] {
            let [packets, swapped, copied] = direction(&report, index);
            assert!(packets > 100 && swapped + copied == 0, "{mode}: {report}");
        }
    }
    // The host keeps the packets that the filter leaves out, and does not forward them.
    let filtered = ["xdp:middle0", "xdp:middle1", "--in-kernel", "-f", "not icmp"];
    let running = forward(&lab, &filtered);
    assert_ne!(on(&lab, "left", &ping).status, Some(0));
    hosts::talk(&lab);
    running.stop().good();
}

#[test]
fn every_packet_at_full_speed_is_out_or_lost_by_name() {
    let Some(lab) = lab_of(Shape::Line, 1) else { return };
    let running = forward(&lab, &["xdp:middle0", "xdp:middle1", "--in-kernel", "--one-way"]);
    let before = received(&lab, "middle", "middle0");
    let sent = ended(&mut generate(&lab, &["--count", "500000", "--method", "live"])).good();
    let came = sent["ledger"]["out"].as_u64().unwrap();
    eventually("all have come", || received(&lab, "middle", "middle0") >= before + came);
    let report = running.stop().good();
    assert_eq!(report["packets"], came, "{sent} {report}");
}

#[test]
fn claims_of_others_keep_their_packets_and_the_rest_is_forwarded() {
    let Some(lab) = lab_of(Shape::Line, 1) else { return };
    let netns = lab.netns("middle");
    let one_way = ["xdp:middle0", "xdp:middle1", "--in-kernel", "--one-way"];
    let count = |port: &str| Running::start(&["count", "--netns", &netns, "--json", port]);
    // Matching packets go to the other claims' programs, and the rest is forwarded.
    let ours = "udp dst portrange 7-9";
    let passed = count(&format!("xdp:middle0?action=pass&filter={ours}"));
    let dropped = count("xdp:middle0?action=drop&filter=udp dst port 7");
    let rest_dropped = count("xdp:middle0?action=drop");
    let forwarding = forward(&lab, &one_way);
    for second in [
        &[&["forward"], &one_way[..]].concat()[..],
        &["capture", "xdp:middle0", "--count", "1"],
        &["count", "xdp:middle0?timestamp=off&method=af_xdp"],
        &["count", "xdp:middle0?action=drop", "--analyze"],
    ] {
        let second = ended(&mut sluice(&[second, &["--netns", &netns]].concat()));
        assert_ne!(second.status, Some(0));
        assert!(second.err.contains("already has all packets of middle0/0"), "{}", second.err);
        let advised = second.err.split('`').nth(1).unwrap_or_default();
        assert_eq!(advised, format!("sluice claims --netns {netns} middle0"), "{}", second.err);
        let words: Vec<&str> = advised.split(' ').skip(1).collect();
        let shown = run(&words);
        assert_eq!(shown.status, Some(0), "{advised}: {}", shown.err);
        assert!(shown.out.contains("forward"), "{advised}: {}", shown.out);
    }
    let send = |port: &str| {
        let arguments = ["--count", "1000", "--rate", "50kpps", "--dport", port];
        ended(&mut generate(&lab, &arguments)).good();
    };
    // The hosts' own packets do not match.
    let passed_so_far = || {
        let claims = run(&["claims", "middle0", "--netns", &netns, "--json"]).report();
        let claims = claims["claims"].as_array().unwrap();
        let claim = claims.iter().find(|it| it["filter"] == ours).unwrap();
        claim["packets"].as_u64()
    };
    send("7");
    send("9");
    eventually("they have come", || passed_so_far() == Some(2000));
    let forwarded = forwarding.stop().good();
    // After the forwarder's end, the unfiltered drop gets the rest.
    send("9");
    eventually("all have come", || passed_so_far() == Some(3000));
    let [passed, dropped, rest] = [passed, dropped, rest_dropped].map(|it| it.stop().good());
    assert_eq!([&passed["packets"], &dropped["packets"]], [3000, 1000]);
    for counted in [forwarded, rest] {
        // The hosts' own packets, of which there are few, come in addition.
        assert!((1000..1100).contains(&counted["packets"].as_u64().unwrap()), "{counted}");
    }
}

#[test]
fn one_of_two_concurrent_unfiltered_claims_is_refused() {
    let Some(lab) = lab_of(Shape::Line, 1) else { return };
    let netns = lab.netns("middle");
    // Neither has to attach the program first.
    let unused = "xdp:middle0?action=pass&filter=ip proto 253";
    let _attached = Running::start(&["count", unused, "--netns", &netns]);
    let ways = [
        &["count", "xdp:middle0"][..],
        &["count", "xdp:middle0?method=ring"],
        &["count", "xdp:middle0?method=af_xdp&timestamp=off"],
        &["count", "xdp:middle0?action=drop", "--analyze"],
        &["forward", "xdp:middle0", "xdp:middle1", "--in-kernel", "--one-way"],
    ];
    for (at, one) in ways.iter().enumerate() {
        for other in &ways[at..] {
            let both = [one, other].map(|way| {
                Running::unawaited(&mut sluice(&[way, &["--netns", &netns, "--json"][..]].concat()))
            });
            // The winner keeps the interface until the other has been refused.
            eventually("one is refused", || both.iter().any(Running::has_ended));
            let (lost, won): (Vec<_>, Vec<_>) = both.into_iter().partition(Running::has_ended);
            let pair = format!("{one:?} beside {other:?}");
            assert_eq!((lost.len(), won.len()), (1, 1), "{pair}");
            won[0].has_begun();
            let lost = lost.into_iter().map(Running::end).next().unwrap();
            assert_eq!(lost.status, Some(2), "{pair}: {}", lost.err);
            assert!(
                lost.err.contains("already has all packets of middle0/0"),
                "{pair}: {}",
                lost.err
            );
            won.into_iter().for_each(|it| drop(it.stop().good()));
        }
    }
}

#[test]
fn a_killed_forwarder_leaves_the_host_connected() {
    if !have(&["ping"]) {
        return;
    }
    let Some(lab) = lab_of(Shape::Line, 1) else { return };
    on(&lab, "middle", &["ip", "address", "add", "198.18.0.3/24", "dev", "middle0"]);
    let reach = || {
        let ping = ["ping", "-q", "-c", "3", "-i", "0.05", "-W", "1", "198.18.0.3"];
        on(&lab, "left", &ping).status == Some(0)
    };
    assert!(reach());
    let netns = lab.netns("middle");
    // Alone, and with others that keep the program: the killed forwarder's claim then stays until the next
    // process joins.
    for beside in [None, Some(["xdp:middle0", "xdp:middle1"])] {
        let beside = beside.map(|ports| {
            ports.map(|port| {
                let port = format!("{port}?action=pass&filter=udp");
                Running::start(&["count", "--netns", &netns, &port])
            })
        });
        for filter in [&[][..], &["-f", "ip or arp"]] {
            let arguments = [&["xdp:middle0", "xdp:middle1", "--in-kernel"], filter].concat();
            let running = forward(&lab, &arguments);
            assert!(!reach(), "what is for the host goes on, too");
            running.signal(Signal::SIGKILL);
            running.end();
            eventually("the host gets its packets again", reach);
        }
        drop(beside);
    }
}

#[test]
fn a_removed_target_ends_it_and_no_packet_is_lost() {
    let Some(lab) = lab_of(Shape::Line, 1) else { return };
    let running = forward(&lab, &["xdp:middle0", "xdp:middle1", "--in-kernel", "--one-way"]);
    ended(&mut generate(&lab, &["--count", "1000", "--method", "live"])).good();
    eventually("they pass", || received(&lab, "right", "right0") >= 1000);
    on(&lab, "middle", &["ip", "link", "del", "middle1"]);
    let ended = running.end();
    assert_eq!(ended.status, Some(1), "{}", ended.err);
    assert!(ended.err.contains("middle1"), "{}", ended.err);
    let report = ended.report();
    closes(&report);
    assert!(report["ledger"]["out"].as_u64() >= Some(1000), "{report}");
    assert_eq!(report["ledger"]["losses"], serde_json::json!({}), "{report}");
}

#[test]
fn a_detached_target_ends_it() {
    let Some(lab) = lab_of(Shape::Line, 1) else { return };
    let running = forward(&lab, &["xdp:middle0", "xdp:middle1", "--in-kernel", "--one-way"]);
    let detached = run(&["detach", "middle1", "--netns", &lab.netns("middle")]);
    assert_eq!(detached.status, Some(0), "{}", detached.err);
    let ended = running.end();
    assert_eq!(ended.status, Some(1), "{}", ended.err);
    assert!(ended.err.contains("middle1"), "{}", ended.err);
}

#[test]
fn ports_that_the_kernel_cannot_redirect_are_refused() {
    for (arguments, said) in [
        (&["xdp:lo", "null:", "--one-way"][..], "two xdp: ports"),
        (&["packet:lo", "xdp:lo2"], "two xdp: ports"),
        (&["xdp:lo", "xdp:lo2", "--batch", "5"], "cannot be used with"),
    ] {
        refused(&[&["forward", "--in-kernel"], arguments].concat(), said);
    }
}
