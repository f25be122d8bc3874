//! poll, select and epoll over netmap files and others.

use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::sync::atomic::{AtomicI32, Ordering};
use std::time::{Duration, Instant};

use libc::{pollfd, timespec};
use nix::errno::Errno;
use nix::sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags, EpollTimeout};
use nix::sys::resource::{Resource, getrlimit, setrlimit};
use nix::sys::signal::{SigSet, Signal, raise};

use crate::exits::interrupt_lines;
use crate::forks::{ends_well, in_child};
use crate::port::{Port, frame};
use crate::program::{is_preloaded, is_preloaded_by_both_hosts, pipe, try_open};

/// Waits for input of a netmap file and of another descriptor, without a limit or for some time. Returns which
/// of the two are ready.
type Wait = fn(RawFd, RawFd, Option<Duration>) -> Result<[bool; 2], Errno>;

const WAYS: [(&str, Wait); 6] = [
    ("poll", |first, second, time| {
        let mut list = poll_list([first, second]);
        let ms = time.map_or(-1, |time| time.as_millis() as i32);
        // SAFETY: a list of two.
        polled(unsafe { libc::poll(list.as_mut_ptr(), 2, ms) }, list)
    }),
    ("ppoll", |first, second, time| {
        let mut list = poll_list([first, second]);
        let time = time.map(timespec_of);
        let time = time.as_ref().map_or(std::ptr::null(), std::ptr::from_ref);
        // SAFETY: a list of two, and a time or none.
        polled(unsafe { libc::ppoll(list.as_mut_ptr(), 2, time, std::ptr::null()) }, list)
    }),
    ("select", |first, second, time| {
        let time = time.map(|time| libc::timeval {
            tv_sec: time.as_secs() as i64,
            tv_usec: i64::from(time.subsec_micros()),
        });
        selected([first, second], |count, set| {
            let mut time = time;
            let time = time.as_mut().map_or(std::ptr::null_mut(), std::ptr::from_mut);
            let none = std::ptr::null_mut();
            // SAFETY: a set for `count` descriptors, and a time or none.
            unsafe { libc::select(count, set, none, none, time) }
        })
    }),
    ("pselect", |first, second, time| {
        let time = time.map(timespec_of);
        let time = time.as_ref().map_or(std::ptr::null(), std::ptr::from_ref);
        selected([first, second], |count, set| {
            let none = std::ptr::null_mut();
            // SAFETY: a set for `count` descriptors, and a time or none.
            unsafe { libc::pselect(count, set, none, none, time, std::ptr::null()) }
        })
    }),
    ("epoll_wait", |first, second, time| {
        let epoll = epoll_of([first, second]);
        let mut events = [EpollEvent::empty(); 4];
        let ms = time.map_or(-1, |time| time.as_millis() as i32);
        let count = epoll.wait(&mut events, EpollTimeout::try_from(ms).unwrap())?;
        Ok([first, second].map(|fd| events[..count].iter().any(|it| it.data() == fd as u64)))
    }),
    ("poll of an epoll instance", |first, second, time| {
        let epoll = epoll_of([first, second]);
        let mut list = poll_list([epoll.0.as_raw_fd(), -1]);
        let ms = time.map_or(-1, |time| time.as_millis() as i32);
        // SAFETY: a list of two.
        let [ready, _] = polled(unsafe { libc::poll(list.as_mut_ptr(), 2, ms) }, list)?;
        let mut events = [EpollEvent::empty(); 4];
        let count = epoll.wait(&mut events, EpollTimeout::ZERO)?;
        assert_eq!(ready, count > 0, "what poll says of the instance");
        Ok([first, second].map(|fd| events[..count].iter().any(|it| it.data() == fd as u64)))
    }),
];

fn poll_list(fds: [RawFd; 2]) -> [pollfd; 2] {
    fds.map(|fd| pollfd { fd, events: libc::POLLIN, revents: -1 })
}

fn polled(count: i32, list: [pollfd; 2]) -> Result<[bool; 2], Errno> {
    let count = Errno::result(count)?;
    let ready = list.map(|it| it.revents & libc::POLLIN != 0);
    assert_eq!(count as usize, ready.iter().filter(|it| **it).count(), "{list:?}");
    Ok(ready)
}

fn selected(
    fds: [RawFd; 2],
    select: impl Fn(i32, *mut libc::fd_set) -> i32,
) -> Result<[bool; 2], Errno> {
    // SAFETY: descriptors below the size of a set, which zeros make empty.
    unsafe {
        let mut set = std::mem::zeroed::<libc::fd_set>();
        fds.iter().for_each(|fd| libc::FD_SET(*fd, &raw mut set));
        let count = Errno::result(select(fds.iter().max().unwrap() + 1, &raw mut set))?;
        let ready = fds.map(|fd| libc::FD_ISSET(fd, &raw const set));
        assert_eq!(count as usize, ready.iter().filter(|it| **it).count());
        Ok(ready)
    }
}

fn epoll_of(fds: [RawFd; 2]) -> Epoll {
    let epoll = Epoll::new(EpollCreateFlags::empty()).unwrap();
    for fd in fds {
        control(&epoll, libc::EPOLL_CTL_ADD, fd, EpollFlags::EPOLLIN).unwrap();
    }
    epoll
}

fn control(epoll: &Epoll, operation: i32, fd: RawFd, events: EpollFlags) -> Result<(), Errno> {
    let mut event = libc::epoll_event { events: events.bits() as u32, u64: fd as u64 };
    // SAFETY: an event.
    let result = unsafe { libc::epoll_ctl(epoll.0.as_raw_fd(), operation, fd, &raw mut event) };
    Errno::result(result).map(drop)
}

fn timespec_of(time: Duration) -> timespec {
    timespec { tv_sec: time.as_secs() as i64, tv_nsec: i64::from(time.subsec_nanos()) }
}

/// Two ports of a VALE switch, and a pipe.
struct Testbed {
    port: Port,
    far: Port,
    reader: OwnedFd,
    writer: OwnedFd,
}

impl Testbed {
    fn new() -> Self {
        let (reader, writer) = pipe();
        Self { port: Port::register("vale1:a"), far: Port::register("vale1:b"), reader, writer }
    }

    fn fds(&self) -> (RawFd, RawFd) {
        (self.port.fd(), self.reader.as_raw_fd())
    }

    fn write(&self) {
        nix::unistd::write(&self.writer, b"x").unwrap();
    }

    fn read(&self) {
        nix::unistd::read(&self.reader, &mut [0]).unwrap();
    }
}

/// Waits until a thread of this process sleeps in a call that waits for descriptors.
fn sleeps(thread: libc::pid_t) {
    // Numbers of poll, ppoll, select, pselect6, epoll_wait, epoll_pwait and epoll_pwait2, by the kernel's table.
    let waits = [
        #[cfg(target_arch = "x86_64")]
        libc::SYS_poll,
        #[cfg(target_arch = "x86_64")]
        libc::SYS_select,
        #[cfg(target_arch = "x86_64")]
        libc::SYS_epoll_wait,
        libc::SYS_ppoll,
        libc::SYS_pselect6,
        libc::SYS_epoll_pwait,
        libc::SYS_epoll_pwait2,
    ];
    let start = Instant::now();
    loop {
        let call = std::fs::read_to_string(format!("/proc/self/task/{thread}/syscall"));
        let number = call.unwrap_or_default().split(' ').next().and_then(|it| it.parse().ok());
        if number.is_some_and(|number| waits.contains(&number)) {
            return;
        }
        assert!(start.elapsed() < Duration::from_secs(60), "the thread sleeps");
        std::thread::yield_now();
    }
}

/// Runs a wait without a limit in a thread, and `then` with that thread's ID once it sleeps.
fn while_waiting(
    way: Wait,
    (first, second): (RawFd, RawFd),
    then: impl FnOnce(libc::pid_t),
) -> Result<[bool; 2], Errno> {
    let thread = AtomicI32::new(0);
    std::thread::scope(|scope| {
        let waiter = scope.spawn(|| {
            thread.store(nix::unistd::gettid().as_raw(), Ordering::Release);
            way(first, second, None)
        });
        while thread.load(Ordering::Acquire) == 0 {
            std::thread::yield_now();
        }
        let thread = thread.load(Ordering::Acquire);
        sleeps(thread);
        then(thread);
        waiter.join().unwrap()
    })
}

#[test]
fn what_is_ready_is_found_at_once() {
    if !is_preloaded_by_both_hosts("waits::what_is_ready_is_found_at_once") {
        return;
    }
    let bed = Testbed::new();
    let (port, other) = bed.fds();
    for (name, way) in WAYS {
        for time in [Some(Duration::ZERO), Some(Duration::from_millis(20))] {
            assert_eq!(way(port, other, time), Ok([false, false]), "{name}: nothing");
        }
        for time in [Some(Duration::ZERO), Some(Duration::from_secs(60)), None] {
            bed.write();
            assert_eq!(way(port, other, time), Ok([false, true]), "{name}: the pipe");
            bed.far.send(&frame(7));
            assert_eq!(way(port, other, time), Ok([true, true]), "{name}: both");
            bed.read();
            assert_eq!(way(port, other, time), Ok([true, false]), "{name}: the port");
            assert_eq!(bed.port.received(), [7], "{name}");
        }
    }
}

#[test]
fn a_wait_ends_after_its_time_and_not_before() {
    if !is_preloaded_by_both_hosts("waits::a_wait_ends_after_its_time_and_not_before") {
        return;
    }
    let bed = Testbed::new();
    let (port, other) = bed.fds();
    for (name, way) in WAYS {
        let (start, time) = (Instant::now(), Duration::from_millis(50));
        assert_eq!(way(port, other, Some(time)), Ok([false, false]), "{name}");
        assert!(start.elapsed() >= time, "{name}: {:?}", start.elapsed());
    }
}

#[test]
fn a_packet_and_another_descriptor_end_a_sleep() {
    if !is_preloaded_by_both_hosts("waits::a_packet_and_another_descriptor_end_a_sleep") {
        return;
    }
    let bed = Testbed::new();
    for (name, way) in WAYS {
        let found = while_waiting(way, bed.fds(), |_| bed.far.send(&frame(9)));
        assert_eq!(found, Ok([true, false]), "{name}");
        assert_eq!(bed.port.received(), [9], "{name}");
        let found = while_waiting(way, bed.fds(), |_| bed.write());
        assert_eq!(found, Ok([false, true]), "{name}");
        bed.read();
    }
}

extern "C" fn ignore(_: libc::c_int) {}

static SIGNALS: AtomicI32 = AtomicI32::new(0);

extern "C" fn count(_: libc::c_int) {
    SIGNALS.fetch_add(1, Ordering::Relaxed);
}

fn handle(handler: extern "C" fn(libc::c_int)) {
    // SAFETY: the handlers of these tests may run at any time.
    unsafe {
        let mut action = std::mem::zeroed::<libc::sigaction>();
        action.sa_sigaction = handler as *const () as usize;
        action.sa_flags = libc::SA_RESTART;
        assert_eq!(libc::sigaction(libc::SIGUSR1, &raw const action, std::ptr::null_mut()), 0);
    }
}

#[test]
fn the_mask_of_a_call_without_a_sleep_lets_a_signal_in() {
    if !is_preloaded_by_both_hosts("waits::the_mask_of_a_call_without_a_sleep_lets_a_signal_in") {
        return;
    }
    let bed = Testbed::new();
    handle(count);
    let blocked = SigSet::from(Signal::SIGUSR1);
    blocked.thread_block().unwrap();
    let all = SigSet::empty();
    let poll = |mask: Option<&SigSet>| {
        let mut list = pollfd { fd: bed.port.fd(), events: libc::POLLIN, revents: 0 };
        let (time, mask) =
            (timespec_of(Duration::ZERO), mask.map(|it| std::ptr::from_ref(it.as_ref())));
        // SAFETY: a list of one, a time, and a mask or none.
        Errno::result(unsafe { libc::ppoll(&mut list, 1, &time, mask.unwrap_or(std::ptr::null())) })
    };
    let found = |result| (result, SIGNALS.load(Ordering::Relaxed));
    raise(Signal::SIGUSR1).unwrap();
    assert_eq!(found(poll(None)), (Ok(0), 0), "it stays blocked");
    bed.far.send(&frame(1));
    assert_eq!(found(poll(Some(&all))), (Ok(1), 0), "a packet comes first");
    assert_eq!(bed.port.received(), [1]);
    assert_eq!(found(poll(Some(&all))), (Err(Errno::EINTR), 1));
    assert_eq!(found(poll(Some(&all))), (Ok(0), 1), "once");
}

#[test]
fn a_signal_interrupts_a_sleep() {
    if !is_preloaded_by_both_hosts("waits::a_signal_interrupts_a_sleep") {
        return;
    }
    let bed = Testbed::new();
    handle(ignore);
    for (name, way) in WAYS {
        let found = while_waiting(way, bed.fds(), |thread| {
            let process = nix::unistd::getpid().as_raw();
            // SAFETY: a signal to a thread of this process.
            let sent = unsafe { libc::syscall(libc::SYS_tgkill, process, thread, libc::SIGUSR1) };
            assert_eq!(sent, 0);
        });
        assert_eq!(found, Err(Errno::EINTR), "{name}");
    }
}

#[test]
fn an_epoll_instance_follows_changes_of_its_netmap_files() {
    if !is_preloaded_by_both_hosts("waits::an_epoll_instance_follows_changes_of_its_netmap_files") {
        return;
    }
    let bed = Testbed::new();
    let fd = bed.port.fd();
    let epoll = Epoll::new(EpollCreateFlags::empty()).unwrap();
    let ready = || {
        let mut events = [EpollEvent::empty(); 4];
        let count = epoll.wait(&mut events, EpollTimeout::ZERO).unwrap();
        events[..count].iter().map(|it| (it.data(), it.events())).collect::<Vec<_>>()
    };
    let (add, change, delete) = (libc::EPOLL_CTL_ADD, libc::EPOLL_CTL_MOD, libc::EPOLL_CTL_DEL);
    let (input, output) = (EpollFlags::EPOLLIN, EpollFlags::EPOLLOUT);
    bed.far.send(&frame(1));
    assert_eq!(control(&epoll, change, fd, input), Err(Errno::ENOENT));
    control(&epoll, add, fd, input).unwrap();
    assert_eq!(control(&epoll, add, fd, input), Err(Errno::EEXIST));
    assert_eq!(ready(), [(fd as u64, input)]);
    control(&epoll, change, fd, output).unwrap();
    assert_eq!(ready(), [(fd as u64, output)]);
    control(&epoll, change, fd, input | EpollFlags::EPOLLONESHOT).unwrap();
    assert_eq!(ready(), [(fd as u64, input)]);
    assert_eq!(ready(), [], "once");
    control(&epoll, change, fd, input | output).unwrap();
    assert_eq!(ready(), [(fd as u64, input | output)]);
    control(&epoll, delete, fd, input).unwrap();
    assert_eq!(ready(), []);
    assert_eq!(control(&epoll, delete, fd, input), Err(Errno::ENOENT));
    control(&epoll, add, fd, input).unwrap();
    drop(bed);
    assert_eq!(ready(), [], "closed");
}

#[test]
fn room_for_one_event_serves_netmap_files_and_others_in_turn() {
    if !is_preloaded_by_both_hosts(
        "waits::room_for_one_event_serves_netmap_files_and_others_in_turn",
    ) {
        return;
    }
    let bed = Testbed::new();
    let (port, other) = bed.fds();
    let epoll = epoll_of([port, other]);
    bed.far.send(&frame(1));
    bed.write();
    let mut events = [EpollEvent::empty()];
    let mut found: Vec<u64> = (0..4)
        .map(|_| {
            assert_eq!(epoll.wait(&mut events, EpollTimeout::NONE), Ok(1));
            events[0].data()
        })
        .collect();
    found.sort_unstable();
    let mut expected = [port, port, other, other].map(|fd| fd as u64);
    expected.sort_unstable();
    assert_eq!(found, expected);
}

#[test]
fn select_reads_no_more_of_its_sets_than_the_kernel_does() {
    if !is_preloaded_by_both_hosts("waits::select_reads_no_more_of_its_sets_than_the_kernel_does") {
        return;
    }
    let port = Port::register("vale1:a");
    let (none, time) = (std::ptr::null_mut(), timespec_of(Duration::ZERO));
    // SAFETY: the set is at the end of a page of this test; the next one cannot be read.
    unsafe {
        let page = libc::sysconf(libc::_SC_PAGESIZE) as usize;
        let access = libc::PROT_READ | libc::PROT_WRITE;
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
        let memory = libc::mmap(none, 2 * page, libc::PROT_NONE, flags, -1, 0);
        assert_eq!(Errno::result(libc::mprotect(memory, page, access)), Ok(0));
        let set = memory.byte_add(page - size_of::<libc::fd_set>()).cast::<libc::fd_set>();
        let none = none.cast();
        for call in ["select", "pselect"] {
            libc::FD_SET(port.fd(), set);
            let ready = match call {
                "select" => {
                    let mut time = libc::timeval { tv_sec: 0, tv_usec: 0 };
                    libc::select(65_536, none, set, none, &raw mut time)
                }
                _ => libc::pselect(65_536, none, set, none, &raw const time, std::ptr::null()),
            };
            assert_eq!(Errno::result(ready), Ok(1), "{call}: room to send");
            assert!(libc::FD_ISSET(port.fd(), set), "{call}");
        }
    }
}

#[test]
fn threads_add_and_change_files_of_an_epoll_instance_at_once() {
    if !is_preloaded("waits::threads_add_and_change_files_of_an_epoll_instance_at_once") {
        return;
    }
    let bed = Testbed::new();
    let output = EpollFlags::EPOLLOUT;
    let ports = [bed.port.fd(), bed.far.fd()];
    let instances = [(); 300].map(|()| Epoll::new(EpollCreateFlags::empty()).unwrap());
    let arrived = AtomicI32::new(0);
    let meet = |count| {
        arrived.fetch_add(1, Ordering::AcqRel);
        while arrived.load(Ordering::Acquire) < count {
            std::hint::spin_loop();
        }
    };
    let changes = |fd| {
        for (epoll, round) in instances.iter().zip(0..) {
            meet(4 * round + 2);
            control(epoll, libc::EPOLL_CTL_ADD, fd, output).unwrap();
            meet(4 * round + 4);
            control(epoll, libc::EPOLL_CTL_MOD, ports[0], output).unwrap();
        }
    };
    std::thread::scope(|scope| {
        ports.map(|fd| scope.spawn(move || changes(fd))).map(|it| it.join().unwrap())
    });
    let mut expected = ports.map(|fd| fd as u64);
    expected.sort_unstable();
    for (round, epoll) in instances.iter().enumerate() {
        let mut events = [EpollEvent::empty(); 4];
        let count = epoll.wait(&mut events, EpollTimeout::ZERO).unwrap();
        let mut found: Vec<_> = events[..count].iter().map(EpollEvent::data).collect();
        found.sort_unstable();
        assert_eq!(found, expected, "round {round}");
    }
}

#[test]
fn an_epoll_instance_without_room_in_the_table_can_be_tried_again() {
    if !is_preloaded("waits::an_epoll_instance_without_room_in_the_table_can_be_tried_again") {
        return;
    }
    // Each file has a descriptor, of 1024 by default.
    let (_, hard) = getrlimit(Resource::RLIMIT_NOFILE).unwrap();
    setrlimit(Resource::RLIMIT_NOFILE, hard, hard).unwrap();
    let epoll = Epoll::new(EpollCreateFlags::empty()).unwrap();
    let files: Vec<_> = std::iter::from_fn(|| try_open(0).ok()).collect();
    assert_eq!(files.len(), 1024, "the table is full before the process has no descriptors left");
    let fd = files[0].as_raw_fd();
    let add = || control(&epoll, libc::EPOLL_CTL_ADD, fd, EpollFlags::EPOLLIN);
    assert_eq!(add(), Err(Errno::EMFILE));
    assert_eq!(add(), Err(Errno::EMFILE), "the kernel does not keep it");
    drop(files);
}

static INSTANCE: AtomicI32 = AtomicI32::new(-1);

/// Waits with the instance that the interrupted thread waits with.
extern "C" fn wait_in_handler(_: libc::c_int) {
    let mut event = libc::epoll_event { events: 0, u64: 0 };
    // SAFETY: room for one event.
    let count = unsafe { libc::epoll_wait(INSTANCE.load(Ordering::Relaxed), &raw mut event, 1, 0) };
    SIGNALS.fetch_add(count, Ordering::Relaxed);
}

#[test]
fn a_signal_handler_waits_with_the_epoll_instance_that_its_thread_waits_with() {
    let test = "waits::a_signal_handler_waits_with_the_epoll_instance_that_its_thread_waits_with";
    if !is_preloaded(test) {
        return;
    }
    let bed = Testbed::new();
    let epoll = epoll_of([bed.port.fd(), bed.reader.as_raw_fd()]);
    ends_well(in_child(|| bed.port.txsync() == Ok(())));
    INSTANCE.store(epoll.0.as_raw_fd(), Ordering::Relaxed);
    // The wait prints that the child has the port.
    interrupt_lines(wait_in_handler);
    assert_eq!(epoll.wait(&mut [EpollEvent::empty()], EpollTimeout::NONE), Ok(1));
    assert_eq!(SIGNALS.load(Ordering::Relaxed), 1);
}
