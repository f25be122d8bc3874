//! The part of the program from the Ethernet header to the transport's checksum.

use sluicegate::filter::ebpf::Reg::*;
use sluicegate::filter::ebpf::{Alu, Chain, Helper, Label, Reg, Size};
use sluicegate_base::headers::{ethertype, protocol};

use super::{AnalyserCode, CORRUPT, INTACT, STATE, UNCHECKED, word};
use crate::analyse::header_walk::TUNNEL_PORTS;
use crate::live::emit;

/// The current header.
const AT: Reg = R1;
/// Bytes of the packet from AT on.
const BYTES: Reg = R2;
/// The sum so far, of 32-bit numbers in the machine's byte order. The byte order does not affect whether the
/// folded sum is all ones (RFC 1071, 2 (B)).
pub(super) const SUM: Reg = R3;
/// The next header: an EtherType in network order, or an IP protocol.
const NEXT: Reg = R4;

/// Maximum of VLAN tags.
const TAGS: usize = 2;
const UDP: i32 = protocol::UDP as i32;
const TCP: i32 = protocol::TCP as i32;
const STAMP_BYTES: i32 = crate::analyse::Stamp::BYTES as i32;

/// The address of the next bytes to add, less BEFORE, because the last step reads some bytes again.
const DATA: Reg = R1;
const BEFORE: i16 = 8;
/// The number of bytes left.
const LEFT: Reg = R2;
/// The sum of every second number: two sums do not wait for each other.
const OTHER_SUM: Reg = R0;

/// Sizes of steps in bytes, with the number of such steps, largest first. Each step has to check for the
/// packet's end.
const STEPS: [(i16, usize); 3] = [(128, 12), (32, 3), (8, 3)];

/// A 16-bit number as it is loaded from network order.
pub(super) fn be(number: u16) -> i32 {
    i32::from(number.to_be())
}

impl AnalyserCode<'_> {
    /// Reads the headers and stores `UPPER_AT`, `UPPER_BYTES`, `STAMP_AT` and `CONDITION`. Continues
    /// at `check` with the sum of the pseudo header, at `judged` if there is nothing to check, or at
    /// `unstamped`.
    pub(super) fn headers(&mut self, check: Label, judged: Label) {
        let [v4, v6, broken] = self.asm.labels();
        self.set_condition(INTACT);
        self.asm.store(Size::DW, STATE + word::STAMP_AT, 0);
        self.asm.mov(AT, self.frame.data);
        self.need(14);
        self.asm.load(Size::H, NEXT, AT + 12);
        self.asm.add(AT, 14);
        self.tags();
        self.asm.jeq(NEXT, be(ethertype::IPV4), v4);
        self.asm.jeq(NEXT, be(ethertype::IPV6), v6);
        self.asm.jump(self.unstamped);
        self.asm.place(v4);
        self.ipv4(broken);
        self.upper(false, check, judged);
        self.asm.place(v6);
        self.ipv6(broken);
        self.upper(true, check, judged);
        self.asm.place(broken);
        self.set_condition(CORRUPT);
        self.asm.jump(self.unstamped);
    }

    /// Jumps to `unstamped` if fewer than `bytes` bytes are left. Clobbers R0.
    fn need(&mut self, bytes: i32) {
        self.asm.mov(R0, AT).add(bytes).jgt(self.frame.end, self.unstamped);
    }

    /// R0 = the packet's condition.
    pub(super) fn condition(&mut self) -> Chain<'_> {
        self.asm.load(Size::DW, R0, STATE + word::CONDITION)
    }

    pub(super) fn set_condition(&mut self, condition: i32) {
        self.asm.store(Size::DW, STATE + word::CONDITION, condition);
    }

    /// Sets the packet's condition to unchecked, if it is not already worse. Clobbers R0.
    fn set_unchecked(&mut self) {
        let worse = self.asm.label();
        self.condition().jge(UNCHECKED, worse);
        self.set_condition(UNCHECKED);
        self.asm.place(worse);
    }

    /// Adds `words` words from an offset on to SUM. Clobbers R0.
    fn sum(&mut self, from: i16, words: i16) {
        for word in 0..words {
            self.asm.load(Size::W, R0, AT + (from + word * 4));
            self.asm.add(SUM, R0);
        }
    }

    /// Skips VLAN tags.
    fn tags(&mut self) {
        let untagged = self.asm.label();
        for _ in 0..TAGS {
            let tag = self.asm.label();
            for kind in ethertype::VLAN_TAGS {
                self.asm.jeq(NEXT, be(kind), tag);
            }
            self.asm.jump(untagged);
            self.asm.place(tag);
            self.need(4);
            self.asm.load(Size::H, NEXT, AT + 2);
            self.asm.add(AT, 4);
        }
        self.asm.place(untagged);
    }

    /// Reads an IPv4 header. Leaves AT, BYTES and NEXT at the transport, and the addresses in SUM.
    fn ipv4(&mut self, broken: Label) {
        let [options, summed, right, first, whole] = self.asm.labels();
        self.need(20);
        self.asm.load(Size::B, NEXT, AT + 0);
        self.asm.load(Size::H, BYTES, AT + 2).to_be(Size::H);
        self.asm.mov(SUM, 0);
        self.sum(0, 5);
        self.asm.jne(NEXT, 0x45, options);
        self.asm.jlt(BYTES, 20, broken);
        // R4: bytes of the header.
        self.asm.mov(R4, 20);
        self.asm.jump(summed);
        self.asm.place(options);
        self.options(broken, summed);
        self.asm.place(summed);
        self.right_or(R0, right);
        self.set_condition(CORRUPT);
        self.asm.place(right);
        self.asm.mov(SUM, 0);
        self.sum(12, 2);
        self.asm.load(Size::H, R5, AT + 6);
        self.asm.load(Size::B, R0, AT + 9);
        self.asm.add(AT, R4);
        self.asm.sub(BYTES, R4);
        self.asm.mov(NEXT, R0);
        // Only the first fragment has a transport header; its checksum also covers the others.
        self.asm.jset32(R5, be(0x1fff), self.unstamped);
        self.asm.jset32(R5, be(0x2000), first);
        self.asm.jump(whole);
        self.asm.place(first);
        self.set_unchecked();
        self.asm.place(whole);
    }

    /// Reads the options of a header: adds them to SUM, and puts the header's length into R4.
    fn options(&mut self, broken: Label, summed: Label) {
        self.asm.mov(R0, R4).and(0xf0).jne(0x40, broken);
        self.asm.and(R4, 0xf).lsh(2).jlt(20, broken);
        self.asm.jlt(BYTES, R4, broken);
        for at in (20..60).step_by(4) {
            self.asm.jle(R4, at, summed);
            self.need(at + 4);
            self.sum(at as i16, 1);
        }
    }

    /// Reads an IPv6 header, as [`ipv4`](Self::ipv4).
    fn ipv6(&mut self, broken: Label) {
        self.need(40);
        self.asm.load(Size::B, NEXT, AT + 0).rsh(4).jne(6, broken);
        self.asm.load(Size::H, BYTES, AT + 4).to_be(Size::H);
        self.asm.mov(SUM, 0);
        self.sum(8, 8);
        self.asm.load(Size::B, NEXT, AT + 6);
        self.asm.add(AT, 40);
    }

    /// Reads a transport header.
    fn upper(&mut self, v6: bool, check: Label, judged: Label) {
        let [udp, tcp] = self.asm.labels();
        self.enough();
        self.asm.jeq(NEXT, UDP, udp);
        self.asm.jeq(NEXT, TCP, tcp);
        self.asm.jump(self.unstamped);
        self.asm.place(udp);
        self.udp(v6, judged);
        self.pseudo_header(UDP, check, judged);
        self.asm.place(tcp);
        self.tcp();
        self.pseudo_header(TCP, check, judged);
    }

    /// Checks that the packet has the length in its IP header.
    fn enough(&mut self) {
        let [enough, corrupt] = self.asm.labels();
        self.asm.mov(R0, self.frame.end).sub(AT);
        self.asm.jle(BYTES, R0, enough);
        self.asm.mov(BYTES, R0);
        if self.frame.fragments {
            self.rest_elsewhere(corrupt);
            self.set_unchecked();
            self.asm.jump(enough);
        }
        self.asm.place(corrupt);
        self.set_condition(CORRUPT);
        self.asm.place(enough);
    }

    /// Continues at `not` if the first buffer holds the whole frame.
    fn rest_elsewhere(&mut self, not: Label) {
        let kept = [AT, BYTES, SUM, NEXT];
        for (at, reg) in (1..).zip(kept) {
            self.asm.store(Size::DW, R10 - at * 8, reg);
        }
        self.asm.mov(R1, self.frame.ctx);
        self.asm.call(Helper::XDP_BUFF_LEN);
        for (at, reg) in (1..).zip(kept) {
            self.asm.load(Size::DW, reg, R10 - at * 8);
        }
        self.asm.mov(R5, self.frame.end).sub(self.frame.data);
        self.asm.jle(R0, R5, not);
    }

    /// Reads a UDP header; continues at `judged` if it has no checksum.
    fn udp(&mut self, v6: bool, judged: Label) {
        let [long, wrong, absent, summed] = self.asm.labels();
        self.need(8);
        // A fragment has the length of the whole datagram.
        self.condition().jne(INTACT, long);
        self.asm.load(Size::H, R5, AT + 4).to_be(Size::H).jlt(8, wrong);
        self.asm.jgt(R5, BYTES, wrong);
        self.asm.mov(BYTES, R5);
        self.asm.jump(long);
        self.asm.place(wrong);
        self.set_condition(CORRUPT);
        self.asm.place(long);
        self.asm.mov(R5, 8);
        self.stamp_behind();
        self.asm.load(Size::H, R5, AT + 6).jne(0, summed);
        if v6 {
            self.asm.load(Size::H, R5, AT + 2);
            for port in TUNNEL_PORTS {
                self.asm.jeq(R5, be(port), absent);
            }
            self.set_condition(CORRUPT);
            self.asm.place(absent);
        }
        self.condition().jne(UNCHECKED, judged);
        self.set_condition(INTACT);
        self.asm.jump(judged);
        self.asm.place(summed);
    }

    fn tcp(&mut self) {
        let [whole, on] = self.asm.labels();
        self.need(20);
        self.asm.load(Size::B, R5, AT + 12).rsh(4).lsh(2).jge(20, whole);
        self.set_condition(CORRUPT);
        self.asm.jump(on);
        self.asm.place(whole);
        self.stamp_behind();
        self.asm.place(on);
    }

    /// Stores the offset of the stamp after a header of R5 bytes, if it fits.
    fn stamp_behind(&mut self) {
        let none = self.asm.label();
        self.asm.mov(R0, R5).add(STAMP_BYTES).jgt(BYTES, none);
        self.asm.mov(R0, AT).sub(self.frame.data).add(R5).store(Size::DW, STATE + word::STAMP_AT);
        self.asm.place(none);
    }

    /// Adds the protocol and the length to SUM and continues at `check`; at `judged` if the packet
    /// cannot be checked.
    fn pseudo_header(&mut self, protocol: i32, check: Label, judged: Label) {
        self.condition().jne(INTACT, judged);
        self.asm.add(SUM, be(protocol as u16));
        self.asm.mov(R0, BYTES).to_be(Size::H);
        self.asm.add(SUM, R0);
        self.asm.mov(R0, AT).sub(self.frame.data).store(Size::DW, STATE + word::UPPER_AT);
        self.asm.store(Size::DW, STATE + word::UPPER_BYTES, BYTES);
        self.asm.jump(check);
    }

    /// Judges the packet by the checksum over `UPPER_BYTES` from `UPPER_AT` on, and the pseudo
    /// header in SUM. Continues at `judged`.
    ///
    /// Offset and length come from memory, so the verifier knows nothing of them and verifies the following
    /// code once for all headers.
    pub(super) fn checksum(&mut self, judged: Label) {
        let unchecked = self.asm.label();
        self.asm.load(Size::DW, DATA, STATE + word::UPPER_AT).sub(i32::from(BEFORE)).and(0xff);
        self.asm.add(DATA, self.frame.data);
        self.asm.load(Size::DW, LEFT, STATE + word::UPPER_BYTES).and(0xffff);
        self.asm.mov(OTHER_SUM, 0);
        for (bytes, times) in STEPS {
            let fewer = self.asm.label();
            for _ in 0..times {
                self.step(bytes, fewer, unchecked);
            }
            // The packet is longer than all steps together.
            self.asm.jge(LEFT, i32::from(bytes), unchecked);
            self.asm.place(fewer);
        }
        self.last_bytes(unchecked);
        self.asm.add(SUM, OTHER_SUM);
        self.right_or(R4, judged);
        self.set_condition(CORRUPT);
        self.asm.jump(judged);
        self.asm.place(unchecked);
        self.set_condition(UNCHECKED);
    }

    /// Adds `bytes` bytes; jumps to `fewer` if fewer are left.
    fn step(&mut self, bytes: i16, fewer: Label, unchecked: Label) {
        let asm = &mut self.asm;
        asm.jlt(LEFT, i32::from(bytes), fewer);
        asm.mov(R5, DATA).add(i32::from(BEFORE + bytes));
        // Proves to the verifier that the packet has these bytes.
        asm.jgt(R5, self.frame.end, unchecked);
        for at in (0..bytes).step_by(8) {
            asm.load(Size::W, R4, DATA + (BEFORE + at));
            asm.load(Size::W, R5, DATA + (BEFORE + at + 4));
            asm.add(SUM, R4);
            asm.add(OTHER_SUM, R5);
        }
        asm.add(DATA, i32::from(bytes));
        asm.sub(LEFT, i32::from(bytes));
    }

    /// Adds the last bytes, fewer than eight: reads the packet's last eight, and drops those added
    /// before. The transport header has at least eight.
    fn last_bytes(&mut self, unchecked: Label) {
        let (asm, end) = (&mut self.asm, self.frame.end);
        let none = asm.label();
        asm.jeq(LEFT, 0, none);
        asm.add(DATA, LEFT);
        asm.mov(R5, DATA).add(i32::from(BEFORE)).jgt(end, unchecked);
        asm.load(Size::DW, R4, DATA + 0);
        asm.mov(R5, i32::from(BEFORE)).sub(LEFT).lsh(3);
        // Shifts out the bytes that are already added.
        let shift = if cfg!(target_endian = "little") { Alu::Rsh } else { Alu::Lsh };
        asm.alu(shift, R4, R5);
        asm.mov(R5, R4).rsh(32);
        asm.mov32(R4, R4);
        asm.add(SUM, R4);
        asm.add(OTHER_SUM, R5);
        asm.place(none);
    }

    /// Continues at `right` if SUM is all ones. SUM must include all bytes that a checksum covers, and the
    /// checksum.
    pub(super) fn right_or(&mut self, scratch: Reg, right: Label) {
        emit::fold(self.asm, SUM, scratch);
        self.asm.jeq(SUM, 0xffff, right);
    }
}
