//! Compiles the BPF programs in `bpf/` with clang.

use std::env;
use std::path::PathBuf;
use std::process::Command;

const BPF: &str = "bpf";

fn main() {
    println!("cargo::rerun-if-changed={BPF}");
    // For build scripts that compile a program for the scrub stage: the folder of chain.h.
    let folder = env::var("CARGO_MANIFEST_DIR").expect("cargo sets it");
    println!("cargo::metadata=include={folder}/{BPF}");
    for name in ["ingress", "redirects", "scrub_test"] {
        if let Err(error) = compile(name) {
            // A line each: cargo reads no more of a message.
            error.lines().for_each(|line| println!("cargo::error={line}"));
            println!("cargo::error=bpf/{name}.bpf.c: scripts/setup.sh installs clang");
        }
    }
}

/// Compiles `bpf/NAME.bpf.c` into `OUT_DIR/NAME.bpf.o`. Returns what clang printed if it failed.
fn compile(name: &str) -> Result<(), String> {
    let variable = |name| env::var(name).expect("cargo and libbpf-sys set it");
    let object = PathBuf::from(variable("OUT_DIR")).join(format!("{name}.bpf.o"));
    // Debian keeps <asm/types.h> apart for each architecture.
    let headers = format!("/usr/include/{}-linux-gnu", variable("CARGO_CFG_TARGET_ARCH"));
    // BTF takes -g. Its DWARF comes along, without this machine's paths.
    let options =
        "-Wall -Werror -target bpf -mcpu=v3 -O2 -g -ffile-compilation-dir=. -fno-stack-protector";
    let clang = Command::new("clang")
        .args(options.split(' '))
        .args(["-I", &headers, "-I", &variable("DEP_BPF_INCLUDE")])
        .args(["-c", &format!("{BPF}/{name}.bpf.c"), "-o"])
        .arg(object)
        .output()
        .map_err(|error| format!("cannot run clang: {error}"))?;
    if !clang.status.success() {
        return Err(String::from_utf8_lossy(&clang.stderr).into_owned());
    }
    Ok(())
}
