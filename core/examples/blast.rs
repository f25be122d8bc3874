//! A sender for measurements: one UDP frame, over and over, at the speed of live frames
//! (BPF_PROG_RUN with BPF_F_TEST_XDP_LIVE_FRAMES, Linux 5.18). About ten times as fast as a
//! packet socket, so that the receiver is what is measured.
//!
//! ```text
//! blast IFACE DESTINATION_MAC SECONDS [--size BYTES] [--sport PORT]
//! ```
//!
//! | option | meaning |
//! | --- | --- |
//! | `--size` | bytes a frame, without the frame check sequence: 60 (the default) to 1514 |
//! | `--sport` | this UDP source port in every frame; without it each frame has the next one |
//!
//! The interface must be one end of a veth pair whose other end has NAPI (`ethtool -K IFACE gro
//! on`), as in a lab. The destination should be nobody's address, as on a mirror port: the host
//! then drops the packets early. It sends from one CPU, `taskset` says which, and keeps it busy.
//!
//! Ends after SECONDS, or earlier by SIGINT or SIGTERM, and prints one line: how many frames it
//! attempted to send, in how much time. What became of them the interfaces' counters tell.
//! Needs CAP_BPF and CAP_NET_ADMIN. Exit status: 0 done, 1 failed, 2 wrong usage, 3 missing
//! privilege or kernel feature.
#![allow(unsafe_code)]

use std::io;
use std::process::exit;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use nix::sys::signal::{SaFlags, SigAction, SigHandler, SigSet, Signal, sigaction};

const USAGE: &str = "usage: blast IFACE DESTINATION_MAC SECONDS [--size BYTES] [--sport PORT]";
const SIZES: std::ops::RangeInclusive<usize> = 60..=1514;
/// A day: longer than anybody measures, and far from overflow.
const LONGEST: Duration = Duration::from_secs(86_400);

fn main() {
    let job = Job::from_args(std::env::args().skip(1)).unwrap_or_else(|problem| {
        eprintln!("blast: {problem}\n{USAGE}");
        exit(2);
    });
    match blast(&job) {
        Ok((attempted, elapsed)) => {
            let seconds = elapsed.as_secs_f64();
            let mpps = attempted as f64 / seconds / 1e6;
            println!("{attempted} frames attempted in {seconds:.3} s, {mpps:.2} Mpps");
        }
        Err((what, error)) => {
            let (status, remedy) = match error.raw_os_error() {
                Some(libc::EPERM | libc::EACCES) => (3, "; run it with sudo"),
                Some(libc::EINVAL | libc::ENOSYS) => (3, "; live frames need Linux 5.18"),
                _ => (1, ""),
            };
            eprintln!("blast: {what}: {error}{remedy}");
            exit(status);
        }
    }
}

/// What to send, where, and for how long.
struct Job {
    interface: String,
    destination: [u8; 6],
    duration: Duration,
    size: usize,
    source_port: Option<u16>,
}

impl Job {
    fn from_args(mut args: impl Iterator<Item = String>) -> Result<Self, String> {
        let (mut words, mut size, mut source_port) = (Vec::new(), *SIZES.start(), None);
        while let Some(arg) = args.next() {
            let mut value = || args.next().ok_or(format!("{arg} wants a value"));
            match arg.as_str() {
                "--size" => size = number(&value()?)?,
                "--sport" => source_port = Some(number(&value()?)?),
                _ if arg.starts_with('-') => return Err(format!("there is no option {arg}")),
                _ => words.push(arg),
            }
        }
        let [interface, mac, seconds] = words.try_into().map_err(|_| "three words are wanted")?;
        if !SIZES.contains(&size) {
            return Err(format!("frames have {} to {} bytes", SIZES.start(), SIZES.end()));
        }
        let duration = Duration::try_from_secs_f64(number(&seconds)?).unwrap_or_default();
        if duration.is_zero() || duration > LONGEST {
            return Err(format!("'{seconds}' is not a number of seconds, up to a day"));
        }
        let destination = parse_mac(&mac).ok_or(format!("'{mac}' is not a MAC address"))?;
        Ok(Self { interface, destination, duration, size, source_port })
    }
}

fn number<T: std::str::FromStr>(text: &str) -> Result<T, String> {
    text.parse().map_err(|_| format!("'{text}' is not a number that fits here"))
}

fn parse_mac(text: &str) -> Option<[u8; 6]> {
    let bytes: Option<Vec<u8>> =
        text.split(':').map(|byte| u8::from_str_radix(byte, 16).ok()).collect();
    bytes?.try_into().ok()
}

/// Sends until the time is over or a signal comes. Each run sets up a page pool, which takes
/// milliseconds, and then lasts until a signal ends it: as a rule there is one.
fn blast(job: &Job) -> Result<(u64, Duration), (String, io::Error)> {
    let doing = |what: &str| {
        let what = what.to_owned();
        move |error: io::Error| (what, error)
    };
    let interface = nix::net::if_::if_nametoindex(job.interface.as_str())
        .map_err(|error| (job.interface.clone(), error.into()))?;
    let counter = bpf::counter().map_err(doing("make a BPF map"))?;
    let program =
        bpf::sender(interface, job.source_port, &counter).map_err(doing("load an XDP program"))?;
    let frame = frame(job.destination, job.size);
    stop_after(job.duration).map_err(doing("set a timer"))?;
    let start = Instant::now();
    while !STOP.load(Ordering::Relaxed) {
        match bpf::run(&program, &frame) {
            Err(error) if error.kind() != io::ErrorKind::Interrupted => {
                return Err(("send live frames".into(), error));
            }
            _ => {}
        }
    }
    let elapsed = start.elapsed();
    Ok((bpf::read(&counter).map_err(doing("read a BPF map"))?, elapsed))
}

/// 198.18.0.1 to 198.18.0.2, port 9 (discard), without a UDP checksum.
fn frame(destination: [u8; 6], size: usize) -> Vec<u8> {
    let mut frame = vec![0u8; size];
    let ip_bytes = (frame.len() - 14) as u16;
    frame[..6].copy_from_slice(&destination);
    frame[6..14].copy_from_slice(&[2, 0, 0, 0, 0, 1, 8, 0]);
    frame[14..18].copy_from_slice(&[0x45, 0, (ip_bytes >> 8) as u8, ip_bytes as u8]);
    frame[22..24].copy_from_slice(&[64, 17]);
    frame[26..34].copy_from_slice(&[198, 18, 0, 1, 198, 18, 0, 2]);
    let sum: u32 = frame[14..34].chunks(2).map(|w| u32::from(w[0]) << 8 | u32::from(w[1])).sum();
    let checksum = !(((sum >> 16) + (sum & 0xffff)) as u16);
    frame[24..26].copy_from_slice(&checksum.to_be_bytes());
    frame[36..38].copy_from_slice(&9u16.to_be_bytes());
    frame[38..40].copy_from_slice(&(ip_bytes - 20).to_be_bytes());
    frame
}

/// Whether a signal has come. It publishes nothing else, so relaxed accesses do.
static STOP: AtomicBool = AtomicBool::new(false);

/// A pending signal is what ends a run. One that came just before it would be gone by then:
/// hence another a second later, and so on.
extern "C" fn on_signal(_: libc::c_int) {
    STOP.store(true, Ordering::Relaxed);
    // SAFETY: alarm(2) touches no memory and may be called in a signal handler.
    unsafe { libc::alarm(1) };
}

/// Has `on_signal` called by SIGINT, SIGTERM, and after `duration`.
fn stop_after(duration: Duration) -> io::Result<()> {
    let action = SigAction::new(SigHandler::Handler(on_signal), SaFlags::empty(), SigSet::empty());
    for signal in [Signal::SIGINT, Signal::SIGTERM, Signal::SIGALRM] {
        // SAFETY: the handler does nothing but an atomic store and alarm(2), both of which a
        // signal handler may do.
        unsafe { sigaction(signal, &action) }?;
    }
    let timer = libc::itimerval {
        it_interval: libc::timeval { tv_sec: 0, tv_usec: 0 },
        // A timer of zero would never ring.
        it_value: libc::timeval {
            tv_sec: duration.as_secs().cast_signed(),
            tv_usec: i64::from(duration.subsec_micros().max(1)),
        },
    };
    // SAFETY: `timer` is a live itimerval; the old one is not asked for.
    let status =
        unsafe { libc::setitimer(libc::ITIMER_REAL, &raw const timer, std::ptr::null_mut()) };
    if status < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// The few commands of bpf(2) that are needed.
mod bpf {
    use std::io;
    use std::mem::size_of;
    use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

    use sluicegate::filter::ebpf::Reg::*;
    use sluicegate::filter::ebpf::{Assembler, Helper, Size, xdp_action, xdp_md};

    /// Frames between two looks at whether to go on. Up to 256 can be had, but no more speed.
    const BATCH: u32 = 64;
    /// Where a UDP source port stands, and where it ends.
    const SOURCE_PORT: i16 = 34;
    const SOURCE_PORT_END: i32 = 36;

    /// An array of one number: the frames attempted.
    pub fn counter() -> io::Result<OwnedFd> {
        let (kind, name) = (libbpf_sys::BPF_MAP_TYPE_ARRAY, c"blast".as_ptr());
        // SAFETY: the name is terminated and lives for ever; there are no options.
        owned(unsafe { libbpf_sys::bpf_map_create(kind, name, 4, 8, 1, std::ptr::null()) })
    }

    /// The counter's number.
    pub fn read(counter: &OwnedFd) -> io::Result<u64> {
        let (key, mut value) = (0u32, 0u64);
        let (at, to) = ((&raw const key).cast(), (&raw mut value).cast());
        // SAFETY: key and value have the sizes the counter was made with.
        checked(unsafe { libbpf_sys::bpf_map_lookup_elem(counter.as_raw_fd(), at, to) })?;
        Ok(value)
    }

    /// A program that counts, writes the source port (the count if there is none), and redirects
    /// to an interface.
    pub fn sender(interface: u32, port: Option<u16>, counter: &OwnedFd) -> io::Result<OwnedFd> {
        let mut asm = Assembler::new();
        let short = asm.label();
        asm.load(Size::W, R2, R1 + xdp_md::DATA);
        asm.load(Size::W, R3, R1 + xdp_md::DATA_END);
        // There is one writer.
        asm.load_map_value(R4, counter, 0);
        asm.load(Size::DW, R5, R4 + 0);
        asm.add(R5, 1);
        asm.store(Size::DW, R4 + 0, R5);
        if let Some(port) = port {
            asm.mov(R5, i32::from(port));
        }
        asm.mov(R0, xdp_action::DROP);
        asm.mov(R1, R2);
        asm.add(R1, SOURCE_PORT_END);
        asm.jgt(R1, R3, short);
        asm.to_be(Size::H, R5);
        asm.store(Size::H, R2 + SOURCE_PORT, R5);
        asm.mov(R1, interface.cast_signed());
        asm.mov(R2, 0);
        asm.call(Helper::REDIRECT);
        asm.place(short);
        asm.exit();
        let program = asm.finish().map_err(io::Error::other)?;
        let (kind, name) = (libbpf_sys::BPF_PROG_TYPE_XDP, c"blast".as_ptr());
        let (first, count) = (program.as_ptr().cast(), program.len() as u64);
        // SAFETY: both strings are terminated, and `first` leads to `count` instructions of the
        // kernel's layout; all outlive the call. There are no options.
        owned(unsafe {
            let none = std::ptr::null_mut();
            libbpf_sys::bpf_prog_load(kind, name, c"GPL".as_ptr(), first, count, none)
        })
    }

    /// Runs the program on copies of a frame, as many as a call can, or until a signal is
    /// pending ([`io::ErrorKind::Interrupted`]).
    pub fn run(program: &OwnedFd, frame: &[u8]) -> io::Result<()> {
        let mut options = libbpf_sys::bpf_test_run_opts {
            sz: size_of::<libbpf_sys::bpf_test_run_opts>() as u64,
            data_in: frame.as_ptr().cast(),
            data_size_in: frame.len() as u32,
            repeat: i32::from_ne_bytes(u32::MAX.to_ne_bytes()),
            flags: libbpf_sys::BPF_F_TEST_XDP_LIVE_FRAMES,
            batch_size: BATCH,
            ..Default::default()
        };
        // SAFETY: the options say their own size, and point at `data_size_in` bytes that outlive
        // the call; the kernel is asked for no output but the numbers in them.
        let status =
            unsafe { libbpf_sys::bpf_prog_test_run_opts(program.as_raw_fd(), &raw mut options) };
        checked(status).map(drop)
    }

    /// A negative answer is an errno.
    fn checked(answer: i32) -> io::Result<i32> {
        if answer < 0 { Err(io::Error::from_raw_os_error(-answer)) } else { Ok(answer) }
    }

    fn owned(answer: i32) -> io::Result<OwnedFd> {
        let fd = checked(answer)?;
        // SAFETY: a command that makes a map or a program returned it, so it is open and nobody
        // else's.
        Ok(unsafe { OwnedFd::from_raw_fd(fd) })
    }
}
