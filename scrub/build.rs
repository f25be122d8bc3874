//! Compiles the BPF programs in `bpf/` with clang.

use std::env;
use std::path::PathBuf;
use std::process::Command;

fn main() {
    println!("cargo::rerun-if-changed=bpf");
    for name in ["scrub", "cost", "handover"] {
        if let Err(error) = compile(name) {
            error.lines().for_each(|line| println!("cargo::error={line}"));
            println!("cargo::error=bpf/{name}.bpf.c: scripts/setup.sh installs clang");
        }
    }
}

/// Compiles `bpf/NAME.bpf.c` into `OUT_DIR/NAME.bpf.o`. Returns what clang printed if it failed.
fn compile(name: &str) -> Result<(), String> {
    let variable = |name| env::var(name).expect("cargo and libbpf-sys set it");
    let object = PathBuf::from(variable("OUT_DIR")).join(format!("{name}.bpf.o"));
    let headers = format!("/usr/include/{}-linux-gnu", variable("CARGO_CFG_TARGET_ARCH"));
    let options =
        "-Wall -Werror -target bpf -mcpu=v3 -O2 -g -ffile-compilation-dir=. -fno-stack-protector";
    let clang = Command::new("clang")
        .args(options.split(' '))
        .args(["-I", &headers, "-I", &variable("DEP_BPF_INCLUDE")])
        .args(["-I", &variable("DEP_SLUICEGATE_INCLUDE")])
        .args(["-c", &format!("bpf/{name}.bpf.c"), "-o"])
        .arg(object)
        .output()
        .map_err(|error| format!("cannot run clang: {error}"))?;
    if !clang.status.success() {
        return Err(String::from_utf8_lossy(&clang.stderr).into_owned());
    }
    Ok(())
}
