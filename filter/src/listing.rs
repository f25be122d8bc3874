//! Classic BPF as text, in the three forms of `tcpdump -d`.

use std::fmt::{self, Write as _};

use super::cbpf::{Instruction, Op, Operand};
use super::ebpf::{Alu, Compare, Size};

/// The form of a listing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Listing {
    /// Mnemonics, for people: `(000) ldh      [12]` (`tcpdump -d`).
    Assembly,
    /// Rows of a C array of `struct sock_filter` (`-dd`).
    C,
    /// Their number, then decimal numbers: what `fanout_prog=` and `iptables -m bpf` read (`-ddd`).
    Decimal,
}

impl Listing {
    /// Returns the program in this form.
    pub fn of(self, program: &[Instruction]) -> String {
        let mut text = String::new();
        if self == Self::Decimal {
            let _ = writeln!(text, "{}", program.len());
        }
        for (at, instruction) in program.iter().enumerate() {
            let Instruction { code, jt, jf, k } = *instruction;
            // A write to memory cannot fail.
            let _ = match self {
                Self::C => writeln!(text, "{{ {code:#x}, {jt}, {jf}, {k:#010x} }},"),
                Self::Decimal => writeln!(text, "{code} {jt} {jf} {k}"),
                Self::Assembly => match Op::decode(*instruction) {
                    Some(op) => writeln!(text, "{}", Line { at, op }),
                    None => writeln!(text, "({at:03}) unimp    {code:#x}"),
                },
            };
        }
        text
    }
}

/// An instruction at its place, from which jumps are counted.
struct Line {
    at: usize,
    op: Op,
}

impl fmt::Display for Line {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let to = |skipped: i64| self.at as i64 + 1 + skipped;
        let (name, operand): (&str, String) = match self.op {
            Op::Load(size, k) => (load(size), format!("[{k}]")),
            Op::LoadIndirect(size, k) => (load(size), format!("[x + {k}]")),
            Op::LoadLength => ("ld", "#pktlen".into()),
            Op::LoadConstant(k) => ("ld", format!("#{k:#x}")),
            Op::LoadCell(k) => ("ld", format!("M[{k}]")),
            Op::LoadXHeader(k) => ("ldxb", format!("4*([{k}]&0xf)")),
            Op::LoadXLength => ("ldx", "#pktlen".into()),
            Op::LoadXConstant(k) => ("ldx", format!("#{k:#x}")),
            Op::LoadXCell(k) => ("ldx", format!("M[{k}]")),
            Op::Store(k) => ("st", format!("M[{k}]")),
            Op::StoreX(k) => ("stx", format!("M[{k}]")),
            Op::Calculate(alu, with) => (calculation(alu), calculated(alu, with)),
            Op::Negate => ("neg", String::new()),
            Op::Jump(by) => ("ja", to(by.into()).to_string()),
            Op::Branch(condition, with, ..) => (comparison(condition), shown(with)),
            Op::Return(k) => ("ret", format!("#{k}")),
            Op::ReturnA => ("ret", "a".into()),
            Op::CopyToX => ("tax", String::new()),
            Op::CopyToA => ("txa", String::new()),
        };
        match self.op {
            Op::Branch(_, _, jt, jf) => {
                let (yes, no) = (to(jt.into()), to(jf.into()));
                write!(f, "({:03}) {name:<8} {operand:<16} jt {yes}\tjf {no}", self.at)
            }
            _ => write!(f, "({:03}) {name:<8} {operand}", self.at),
        }
    }
}

fn load(size: Size) -> &'static str {
    match size {
        Size::B => "ldb",
        Size::H => "ldh",
        _ => "ld",
    }
}

fn shown(operand: Operand) -> String {
    match operand {
        Operand::K(k) => format!("#{k:#x}"),
        Operand::X => "x".into(),
    }
}

/// Sums, products and shifts are by decimal numbers, masks by hexadecimal ones.
fn calculated(alu: Alu, operand: Operand) -> String {
    match operand {
        Operand::K(k) if !matches!(alu, Alu::And | Alu::Or | Alu::Xor) => format!("#{k}"),
        operand => shown(operand),
    }
}

fn calculation(alu: Alu) -> &'static str {
    match alu {
        Alu::Add => "add",
        Alu::Sub => "sub",
        Alu::Mul => "mul",
        Alu::Div => "div",
        Alu::Or => "or",
        Alu::And => "and",
        Alu::Lsh => "lsh",
        Alu::Rsh => "rsh",
        Alu::Rem => "mod",
        Alu::Xor => "xor",
        _ => "alu",
    }
}

fn comparison(condition: Compare) -> &'static str {
    match condition {
        Compare::Eq => "jeq",
        Compare::Gt => "jgt",
        Compare::Ge => "jge",
        Compare::Set => "jset",
        _ => "jmp",
    }
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use sluicegate_base::ring::LINKTYPE_ETHERNET;

    use super::*;
    use crate::Filter;

    #[test]
    fn programs_are_listed_as_tcpdump_lists_them() {
        let lists = |form: &str, expression: &str| {
            let output = Command::new("tcpdump")
                .args(["-s", "65535", "-y", "EN10MB", form, expression])
                .output();
            output.ok().filter(|it| it.status.success()).map(|it| it.stdout)
        };
        if lists("-d", "udp").is_none() {
            eprintln!("skipped: needs tcpdump; get it by scripts/setup.sh");
            return;
        }
        for expression in [
            "udp port 53",
            "ip[6:2] & 0x1fff = 0 and tcp[((tcp[12] & 0xf0) >> 2):4] = 0x47455420",
            "ip6 host 2001:db8::1 or vlan 5 or len > 100",
            "ether[0] & 1 != 0 and ip[0] * 4 + 6 % 5 ^ 3 = 20",
            "tcp portrange 1-1024 or icmp[0] = 8",
            "ip[8] < ip[9] and ip[2:2] - 20 > ip[4] | 1",
            "less 64",
        ] {
            let filter = Filter::compile(expression, LINKTYPE_ETHERNET).unwrap();
            for (form, listing) in
                [("-d", Listing::Assembly), ("-dd", Listing::C), ("-ddd", Listing::Decimal)]
            {
                let theirs = String::from_utf8(lists(form, expression).expect(expression)).unwrap();
                let ours = listing.of(filter.program().instructions());
                // tcpdump ends lines without an operand with blanks.
                let trimmed = |text: &str| {
                    text.lines().map(|line| line.trim_end().to_owned()).collect::<Vec<_>>()
                };
                assert_eq!(trimmed(&ours), trimmed(&theirs), "{form} {expression}");
            }
        }
    }
}
