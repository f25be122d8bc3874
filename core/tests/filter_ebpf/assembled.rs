//! A program of the assembler's that does what filters do not: maps, helpers, a loop.

use sluicegate::filter::ebpf::Reg::*;
use sluicegate::filter::ebpf::Size::*;
use sluicegate::filter::ebpf::{Assembler, Helper, Reg, xdp_action};

use crate::kernel::{self, Numbers};

#[test]
fn a_program_counts_in_a_map() {
    let map = match Numbers::<4>::new() {
        Ok(map) => map,
        Err(error) => {
            eprintln!("skipped: needs BPF maps ({error}); get it by sudo");
            return;
        }
    };
    let mut asm = Assembler::new();
    let done = asm.label();
    // The first number by a pointer into the map, the second by a lookup.
    asm.load_map_value(R1, &map.0, 0);
    asm.mov(R2, 3);
    asm.atomic_fetch_add(DW, R1 + 0, R2);
    asm.store(W, Reg::FP - 4, 0);
    asm.load_map(R1, &map.0);
    asm.mov(R2, Reg::FP);
    asm.add(R2, -4);
    asm.call(Helper::MAP_LOOKUP);
    asm.jeq(R0, 0, done);
    asm.mov(R6, R0);
    asm.load_constant(R7, 0x0102_0304_0506_0708);
    asm.to_be(DW, R7);
    asm.store(DW, R6 + 8, R7);
    // The third counts a loop's turns, the fourth gets what it was before the last.
    asm.mov32(R8, 5);
    let turn = asm.here();
    asm.mov(R1, 1);
    asm.atomic_fetch_add(DW, R6 + 16, R1);
    asm.sub32(R8, 1);
    asm.jne32(R8, 0, turn);
    asm.store(DW, R6 + 24, R1);
    asm.place(done);
    asm.mov(R0, xdp_action::TX);
    asm.exit();
    let program = asm.finish().unwrap();

    let loaded = kernel::load(&program, false).unwrap();
    for run in 1..=2 {
        assert_eq!(loaded.run(&[0; 60], None).unwrap(), xdp_action::TX.cast_unsigned());
        let turned = if cfg!(target_endian = "little") {
            0x0807_0605_0403_0201
        } else {
            0x0102_0304_0506_0708
        };
        assert_eq!(map.read().unwrap(), [3 * run, turned, 5 * run, 5 * run - 1], "run {run}");
    }
}
