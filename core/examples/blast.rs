//! A sender for measurements: one UDP frame, over and over, at the speed of live frames
//! (BPF_PROG_RUN with BPF_F_TEST_XDP_LIVE_FRAMES, Linux 5.18), each time from the next source
//! port. About ten times as fast as a packet socket, so that the receiver is what is measured.
//!
//! Usage: blast IFACE DESTINATION_MAC SECONDS [BYTES]
//!
//! The interface must be one end of a veth pair whose other end has NAPI (`ethtool -K IFACE gro
//! on`), as in a lab. Needs CAP_BPF, CAP_NET_ADMIN. Ends by itself.
#![allow(unsafe_code)]

use std::process::exit;
use std::time::{Duration, Instant};

/// `struct bpf_insn`.
#[repr(C)]
struct Op {
    code: u8,
    registers: u8,
    offset: i16,
    immediate: i32,
}

/// The parts of `union bpf_attr` for BPF_PROG_LOAD and BPF_PROG_TEST_RUN (linux/bpf.h).
#[repr(C)]
#[derive(Default)]
struct Load {
    prog_type: u32,
    insn_cnt: u32,
    insns: u64,
    license: u64,
    log_level: u32,
    log_size: u32,
    log_buf: u64,
    kern_version: u32,
    prog_flags: u32,
}

#[repr(C)]
#[derive(Default)]
struct TestRun {
    prog_fd: u32,
    retval: u32,
    data_size_in: u32,
    data_size_out: u32,
    data_in: u64,
    data_out: u64,
    repeat: u32,
    duration: u32,
    ctx_size_in: u32,
    ctx_size_out: u32,
    ctx_in: u64,
    ctx_out: u64,
    flags: u32,
    cpu: u32,
    batch_size: u32,
    _pad: u32,
}

const BPF_PROG_LOAD: i32 = 5;
const BPF_PROG_TEST_RUN: i32 = 10;
const BPF_PROG_TYPE_XDP: u32 = 6;
const LIVE_FRAMES: u32 = 1 << 1;

fn main() {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let (Some(interface), Some(mac), Some(seconds)) = (args.first(), args.get(1), args.get(2))
    else {
        eprintln!("usage: blast IFACE DESTINATION_MAC SECONDS [BYTES]");
        exit(2);
    };
    let size = args.get(3).map_or(Some(60), |text| text.parse().ok());
    let (Some(mac), Ok(seconds), Some(size)) = (parse_mac(mac), seconds.parse::<f64>(), size)
    else {
        eprintln!("blast: not a MAC address, a number of seconds, a size");
        exit(2);
    };
    let index = nix::net::if_::if_nametoindex(interface.as_str()).unwrap_or_else(|error| {
        eprintln!("blast: {interface}: {error}");
        exit(1);
    });
    let program = load(index);
    let frame = frame(mac, size);
    let end = Instant::now() + Duration::from_secs_f64(seconds);
    let mut sent = 0u64;
    // Each call sets up a page pool, which takes milliseconds: few, long calls.
    let repeat: u32 = std::env::var("REP").map_or(1 << 21, |r| r.parse().unwrap());
    while Instant::now() < end {
        run(program, &frame, repeat);
        sent += u64::from(repeat);
    }
    println!("{sent}");
}

fn parse_mac(text: &str) -> Option<[u8; 6]> {
    let bytes: Option<Vec<u8>> =
        text.split(':').map(|byte| u8::from_str_radix(byte, 16).ok()).collect();
    bytes?.try_into().ok()
}

/// 198.18.0.1 to 198.18.0.2, port 9 (discard), without a UDP checksum.
fn frame(destination: [u8; 6], size: usize) -> Vec<u8> {
    let mut frame = vec![0u8; size.clamp(60, 1514)];
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

/// Loads: add one to the source port, redirect to the interface.
fn load(index: u32) -> i32 {
    let op = |code, registers, offset, immediate| Op { code, registers, offset, immediate };
    let program = [
        op(0x61, 0x12, 0, 0),                   // r2 = data
        op(0x61, 0x13, 4, 0),                   // r3 = data_end
        op(0xbf, 0x24, 0, 0),                   // r4 = r2
        op(0x07, 0x04, 0, 42),                  // r4 += 42
        op(0xb7, 0x00, 0, 1),                   // r0 = XDP_DROP
        op(0x2d, 0x34, 6, 0),                   // if r4 > r3 goto exit
        op(0x69, 0x25, 34, 0),                  // r5 = source port
        op(0x07, 0x05, 0, 1),                   // r5 += 1
        op(0x6b, 0x52, 34, 0),                  // source port = r5
        op(0xb7, 0x01, 0, index.cast_signed()), // r1 = interface
        op(0xb7, 0x02, 0, 0),                   // r2 = 0
        op(0x85, 0x00, 0, 23),                  // call bpf_redirect
        op(0x95, 0x00, 0, 0),                   // exit
    ];
    let attr = Load {
        prog_type: BPF_PROG_TYPE_XDP,
        insn_cnt: program.len() as u32,
        insns: program.as_ptr().expose_provenance() as u64,
        license: c"GPL".as_ptr().expose_provenance() as u64,
        ..Load::default()
    };
    // SAFETY: `attr` has the layout the command reads; it points at live instructions and a
    // terminated string.
    let fd =
        unsafe { libc::syscall(libc::SYS_bpf, BPF_PROG_LOAD, &raw const attr, size_of::<Load>()) };
    if fd < 0 {
        eprintln!("blast: load the program: {}", std::io::Error::last_os_error());
        exit(if std::io::Error::last_os_error().raw_os_error() == Some(libc::EPERM) {
            3
        } else {
            1
        });
    }
    fd as i32
}

fn run(program: i32, frame: &[u8], repeat: u32) {
    let mut attr = TestRun {
        prog_fd: program.cast_unsigned(),
        data_size_in: frame.len() as u32,
        data_in: frame.as_ptr().expose_provenance() as u64,
        repeat,
        flags: LIVE_FRAMES,
        batch_size: std::env::var("BATCH").map_or(64, |r| r.parse().unwrap()),
        ..TestRun::default()
    };
    // SAFETY: `attr` has the layout the command reads and writes; it points at the live frame.
    let status = unsafe {
        libc::syscall(libc::SYS_bpf, BPF_PROG_TEST_RUN, &raw mut attr, size_of::<TestRun>())
    };
    if status < 0 {
        eprintln!("blast: run the program: {}", std::io::Error::last_os_error());
        exit(1);
    }
}
