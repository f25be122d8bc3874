//! Reports name planted slowdowns: a reader that sleeps, one that copies, packets that all arrive at one CPU.
//! The tests make their own labs and need root; without it each test prints that.

#[path = "../../core/tests/child/limit.rs"]
mod child;
#[path = "../../core/tests/lab/scratch.rs"]
mod scratch;

use std::io::Read;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use sluicegate::link::{Lab, Shape, pin_thread};
use sluicegate::port::{Directions, OpenOptions, Port, Queue};
use sluicegate::ring::{Meta, Packet, Wait};
use sluicegate_bench::measurement::Explanation;
use sluicegate_bench::process::is_installed;
use sluicegate_bench::profile::{Participants, Profiler};

/// The environment variable with a child's role.
const ROLE: &str = "SLUICE_TEST_ROLE";
/// Maximum run time of a child whose parent does not stop it.
const LIMIT: Duration = Duration::from_secs(60);
/// The sampling time.
const SECOND: Duration = Duration::from_secs(1);

/// Not a test: the entry point of the tests' children.
#[test]
fn child() {
    let Ok(role) = std::env::var(ROLE) else { return };
    std::thread::spawn(|| {
        // The end of standard input is the sign to stop.
        let _ = std::io::stdin().read_to_end(&mut Vec::new());
        STOP.store(true, Ordering::Relaxed);
    });
    match role.as_str() {
        "send" => send(),
        "sleep" => receive(|_| std::thread::sleep(Duration::from_millis(20))),
        "copy" => receive(copy),
        other => panic!("no role {other}"),
    }
}

/// Makes the loops end; publishes no other data.
static STOP: AtomicBool = AtomicBool::new(false);

fn goes_on(since: Instant) -> bool {
    !STOP.load(Ordering::Relaxed) && since.elapsed() < LIMIT
}

/// Sends to a port without a listener, on CPU 0, where the veth's softirq also runs.
fn send() {
    pin_thread(0).unwrap();
    let mut queue = open("packet:left0", Directions::Send);
    let mut frame = vec![2, 0, 0xc6, 0x12, 0, 2, 2, 0, 0xc6, 0x12, 0, 1, 8, 0];
    frame.extend([0x45, 0, 0, 46, 0, 0, 0, 0, 64, 17, 0x24, 0x9c, 198, 18, 0, 1, 198, 18, 0, 2]);
    frame.extend([0x13, 0x88, 0, 9, 0, 26, 0, 0]);
    frame.resize(1000, 0);
    let since = Instant::now();
    while goes_on(since) {
        while queue.tx_mut().push(&Packet::new(&Meta::default(), &frame)) {}
        queue.sync_tx().unwrap();
    }
}

/// Receives on CPU 1, handles each batch, and prints the packets received and lost.
fn receive(mut handle: impl FnMut(&Queue)) {
    pin_thread(1).unwrap();
    let mut queue = open("packet:right0?method=recvmmsg&buffer=256K", Directions::Receive);
    let since = Instant::now();
    let mut got = 0;
    while goes_on(since) {
        if queue.sync_rx().unwrap() == 0 {
            queue.wait_rx(Wait::Sleep, Duration::from_millis(100)).unwrap();
        }
        got += queue.rx().packets().count();
        handle(&queue);
        let slots = queue.rx().available();
        queue.rx_mut().release(slots);
    }
    let lost = queue.stats().unwrap().dropped_ring_full;
    println!("counted {got} {lost}");
}

/// Copies much more than a packet, for each packet.
fn copy(queue: &Queue) {
    const BYTES: usize = 64 << 10;
    let (from, mut to) = (vec![1; BYTES], vec![0; BYTES]);
    for _ in 0..4 * queue.rx().packets().count() {
        std::hint::black_box(&mut to).copy_from_slice(std::hint::black_box(&from));
    }
}

fn open(name: &str, usage: Directions) -> Queue {
    let options = OpenOptions { usage, ..OpenOptions::default() };
    Port::open(&name.parse().unwrap(), &options).unwrap().queues.remove(0)
}

/// Creates a lab, if there is root, perf and a second CPU.
fn lab() -> Option<Lab> {
    if !is_installed("perf") {
        println!("skipped: needs perf; get it by scripts/setup.sh");
        return None;
    }
    if std::thread::available_parallelism().unwrap().get() < 2 {
        println!("skipped: needs two CPUs");
        return None;
    }
    scratch::lab_of(Shape::Pair, 2)
}

/// Starts this test as a child on a host.
fn start(lab: &Lab, host: &str, role: &str) -> Child {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", "child", "--nocapture"]).env(ROLE, role);
    command.stdin(Stdio::piped()).stdout(Stdio::piped());
    lab.spawn(host, &mut command).unwrap()
}

/// Stops a child and returns its output.
fn end(mut child: Child) -> String {
    drop(child.stdin.take());
    let output = child::end(child);
    assert!(output.status.success(), "{output:?}");
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// Stops a reader and returns its counts: packets received and lost.
fn end_reader(child: Child) -> (u64, u64) {
    let output = end(child);
    let (_, counts) = output.split_once("counted ").expect("a reader prints its counts");
    let mut words = counts.split_whitespace();
    let mut number = || words.next().unwrap().parse().unwrap();
    (number(), number())
}

/// Returns the profile of a second of sending, and of a reader with this role if given.
fn profile(lab: &Lab, role: Option<&str>) -> Explanation {
    // Tests measure CPUs, so only one may run at a time.
    static ONE: Mutex<()> = Mutex::new(());
    let _one = ONE.lock().unwrap_or_else(PoisonError::into_inner);
    let sender = start(lab, "left", "send");
    let reader = role.map(|role| start(lab, "right", role));
    std::thread::sleep(SECOND);
    let profiler = Profiler::start(true).unwrap();
    std::thread::sleep(SECOND);
    let measured = reader.iter().map(Child::id).collect();
    let participants = Participants { measured, sender: vec![sender.id()] };
    let recorded = profiler.stop().unwrap();
    let (got, lost) = reader.map_or((0, 0), end_reader);
    end(sender);
    let lost = lost as f64 / (got + lost).max(1) as f64;
    recorded.explain(&participants, got, lost)
}

/// Asserts that profiles lead to advice that fits, with a reader of this role if given. Other programs may use the CPUs
/// meanwhile, and their packets may arrive on the other one, so the profile is repeated.
fn assert_advice(role: Option<&str>, fits: impl Fn(&str) -> bool) {
    let Some(lab) = lab() else { return };
    let mut said = Vec::new();
    let named = (0..5).any(|_| {
        said.push(profile(&lab, role));
        said.last().and_then(|profile| profile.advice.as_deref()).is_some_and(&fits)
    });
    assert!(named, "{said:#?}");
}

#[test]
fn a_reader_that_sleeps_is_named() {
    assert_advice(Some("sleep"), |advice| {
        advice.contains(" sleeps ") && advice.contains("let it wait for packets")
    });
}

#[test]
fn an_extra_copy_is_named() {
    assert_advice(Some("copy"), |advice| {
        advice.starts_with("copying takes ") && advice.contains("read packets in place")
    });
}

#[test]
fn packets_that_all_come_to_one_cpu_are_named() {
    assert_advice(None, |advice| advice.starts_with("CPU 0 alone receives"));
}
