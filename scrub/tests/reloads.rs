//! The policy changes under load: no packet is misjudged, and each is counted once. The test needs root.

use std::fmt::Write as _;
use std::net::{IpAddr, Ipv4Addr};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use sluicegate::error::Result;
use sluicegate::link::{self, Lab, netns};
use sluicegate::port::{Directions, OpenOptions, Port};
use sluicegate::ring::{Meta, Packet};
use sluicegate::xdp::resident::Resident;
use sluicegate_scrub::policy::{Policy, Verdict};
use sluicegate_scrub::scrubber::{Candidate, EditedPolicy, Options, Scrubber, StageName};
use sluicegate_scrub::testing::{FrameSpec, Random};

mod lab;

/// Packets on their way at most: fewer than a veth's ring holds, so none is lost.
const BURST: u64 = 64;
const TIMEOUT: Duration = Duration::from_secs(60);

/// Changes of the policy; a slow machine (an emulated one) may thin them out.
fn changes() -> u8 {
    let thin = std::env::var("SLUICE_TEST_THIN").ok().and_then(|it| it.parse::<u8>().ok());
    100 / thin.unwrap_or(1)
}

/// Returns the networks of this length in a /8, each a string of TOML.
fn parts(first: u8, length: u8) -> impl Iterator<Item = String> {
    let address = move |part: u32| Ipv4Addr::from(u32::from(first) << 24 | part << (32 - length));
    (0..1 << (length - 8)).map(move |part| format!("'{}/{length}'", address(part)))
}

/// Returns a set with these networks.
fn set(name: &str, action: &str, networks: impl Iterator<Item = String>) -> String {
    let networks: Vec<_> = networks.collect();
    format!("[set.{name}]\n{action}\nnetworks = [{}]\n", networks.join(","))
}

/// Policies that drop what comes from 11.0.0.0/8, and pass what comes from 12.0.0.0/8, each by other stages.
fn policies() -> Vec<Policy> {
    let (passes, drops) = ("action = 'pass'", "action = 'drop'");
    let mut rules = String::new();
    for part in 0..1000 {
        let network = format!("13.{}.{}.0/24", part >> 8, part & 255);
        let rule = format!("name = 'r{part}'\nmatch = {{ src = '{network}' }}\naction = 'drop'\n");
        let _ = write!(rules, "[[rule]]\n{rule}");
    }
    rules += "[[rule]]\nname = 'attack'\nmatch = { src = '11.0.0.0/8' }\naction = 'drop'\n";
    let friends = "[[rule]]\nname = 'friends'\nmatch = { src_set = 'friends' }\naction = 'pass'\n";
    let texts = [
        set("bad", drops, parts(11, 16).chain(parts(13, 22))),
        format!("{rules}{}", set("good", passes, parts(12, 20))),
        format!("profile.default.default = 'drop'\n{friends}{}", set("friends", "", parts(12, 22))),
        format!("profile.default.amplification = 'drop'\n{}", set("bad", drops, parts(13, 22))),
    ];
    texts.iter().map(|it| Policy::parse(it).unwrap()).collect()
}

fn lab() -> Option<Lab> {
    let lab = lab::privileged(Lab::scratch())?;
    // Without IPv6, a host sends nothing by itself.
    for host in ["left", "right"] {
        let off = || Ok(std::fs::write("/proc/sys/net/ipv6/conf/all/disable_ipv6", "1"));
        netns::run_in(Some(&lab.netns(host)), off).unwrap().unwrap();
    }
    Some(lab)
}

fn right0(lab: &Lab) -> link::Interface {
    link::interface(Some(&lab.netns("right")), "right0").unwrap()
}

/// The resident program of right0.
fn resident(lab: &Lab) -> Resident {
    let right0 = right0(lab);
    netns::run_in(Some(&lab.netns("right")), || Resident::find(&right0)).unwrap().unwrap()
}

/// Sends packets from 11.0.0.0/8 and from 12.0.0.0/8 by turns until `over`. Returns the number of each, and the bytes of
/// a frame.
fn send(lab: &Lab, over: &AtomicBool, sent: &AtomicU64) -> (u64, u64) {
    let netns = Some(lab.netns("left"));
    let options = OpenOptions { usage: Directions::Send, netns, ..OpenOptions::default() };
    let mut port = Port::open(&"packet:left0?slots=256".parse().unwrap(), &options).unwrap();
    let resident = resident(lab);
    let mut random = Random::new(3);
    // An answer of memcached: one policy drops those of the first kind as such.
    let frame = |src: [u8; 4], sport| {
        let (src, payload) = (IpAddr::from(src), vec![0; 100]);
        let spec = FrameSpec { src, sport, payload, protocol: 17, ..FrameSpec::default() };
        let mut frame = spec.build();
        frame[..6].copy_from_slice(&right0(lab).mac.unwrap().0);
        frame
    };
    let mut frames = [frame([11, 0, 0, 0], 11211), frame([12, 0, 0, 0], 9)];
    let (queue, mut all, bytes) = (&mut port.queues[0], 0, frames[0].len() as u64);
    while !over.load(Ordering::Relaxed) {
        for at in 0..BURST as usize {
            let frame = &mut frames[at & 1];
            frame[27..30].copy_from_slice(&random.number().to_ne_bytes()[..3]);
            assert!(queue.tx_mut().push(&Packet::new(&Meta::default(), frame)));
        }
        all += BURST;
        let until = Instant::now() + TIMEOUT;
        while resident.total().packets < all {
            queue.sync_tx().unwrap();
            assert!(Instant::now() < until, "packets are lost");
        }
        sent.store(all, Ordering::Relaxed);
    }
    queue.close_tx().unwrap();
    (all / 2, bytes)
}

/// Changes the policy, then a set of it as many times.
fn change(scrubber: &mut Scrubber, policies: &[Policy]) -> Result<()> {
    for policy in policies.iter().cycle().skip(1).take(changes().into()) {
        scrubber.apply(policy.clone())?;
    }
    let mut edited = EditedPolicy::new(policies[0].clone());
    for number in 0..changes() {
        let network = format!("14.{}.0.0/16", number / 2).parse().expect("a network");
        match number & 1 {
            0 => edited.add("bad", &[network], None)?,
            _ => edited.delete("bad", &[network])?,
        }
        scrubber.apply(edited.policy())?;
    }
    Ok(())
}

#[test]
fn changes_under_load_misjudge_no_packet() {
    let Some(lab) = lab() else { return };
    let (policies, right) = (policies(), lab.netns("right"));
    let interface = right0(&lab);
    let start = || {
        let candidate = Candidate::build(policies[0].clone())?;
        Scrubber::start(&[interface], candidate, &Options::default(), None)
    };
    let mut scrubber = netns::run_in(Some(&right), start).unwrap();
    // They count behind the scrubber what it passes.
    let options = OpenOptions { netns: Some(right.clone()), ..OpenOptions::default() };
    let _receivers = ["src net 11.0.0.0/8", "src net 12.0.0.0/8"].map(|filter| {
        let name = format!("xdp:right0?action=drop&filter={filter}");
        Port::open(&name.parse().unwrap(), &options).unwrap()
    });
    let (over, sent) = (AtomicBool::new(false), AtomicU64::new(0));
    let begun = Instant::now();
    let (changed, time, (each, bytes)) = thread::scope(|scope| {
        let sender = scope.spawn(|| send(&lab, &over, &sent));
        while sent.load(Ordering::Relaxed) == 0 && !sender.is_finished() {
            thread::yield_now();
        }
        let changed = change(&mut scrubber, &policies);
        over.store(true, Ordering::Relaxed);
        (changed, begun.elapsed(), sender.join().unwrap())
    });
    changed.unwrap();
    println!("{} packets in {time:?}: {:?}", 2 * each, scrubber.report());
    let report = scrubber.report();
    for verdict in [Verdict::Drop, Verdict::Pass] {
        let total = report.total(verdict);
        assert_eq!((total.packets, total.bytes), (each, each * bytes), "{verdict:?}");
    }
    let counts = report.counts();
    assert_eq!(counts.iter().map(|it| it.count.packets).sum::<u64>(), 2 * each, "{counts:?}");
    // Each stage decided on both kinds.
    for (stage, name, verdict) in [
        (StageName::Set, "bad", Verdict::Drop),
        (StageName::Rule, "attack", Verdict::Drop),
        (StageName::Default, "default", Verdict::Drop),
        (StageName::Amplification, "memcached", Verdict::Drop),
        (StageName::Set, "good", Verdict::Pass),
        (StageName::Rule, "friends", Verdict::Pass),
        (StageName::Default, "default", Verdict::Pass),
    ] {
        let decided = counts.iter().any(|it| {
            (it.stage, it.name.as_str(), it.verdict) == (stage, name, Some(verdict))
                && it.count.packets > 0
        });
        assert!(decided, "{stage:?} {name} {verdict:?}: {counts:?}");
    }
    let resident = resident(&lab);
    assert_eq!(resident.total().packets, 2 * each, "no other packets came");
    let received: Vec<_> = netns::run_in(Some(&right), || resident.owned_stages())
        .unwrap()
        .into_iter()
        .filter(|it| it.owner.filter.starts_with("src net"))
        .map(|it| (it.owner.filter, it.tally.packets))
        .collect();
    let expected = [("src net 11.0.0.0/8".to_owned(), 0), ("src net 12.0.0.0/8".to_owned(), each)];
    assert_eq!(received, expected);
}
