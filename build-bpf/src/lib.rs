//! Compiles the BPF programs in a crate's folder `bpf/`, for its build script.

use std::env;
use std::path::PathBuf;
use std::process::Command;

/// The folder of a crate's programs.
const FOLDER: &str = "bpf";

/// Compiles each `bpf/NAME.bpf.c` into `OUT_DIR/NAME.bpf.o`, with Debian's clang. Headers are those of libbpf and, for
/// crates that depend on `sluicegate`, those of its folder `bpf/`. If a program does not compile, the build fails with
/// what clang prints.
///
/// # Panics
/// It runs outside of a build script, or libbpf-sys is no dependency.
pub fn compile(names: &[&str]) {
    println!("cargo::rerun-if-changed={FOLDER}");
    if let Some(folder) = shared_headers() {
        println!("cargo::rerun-if-changed={folder}");
    }
    for name in names {
        if let Err(error) = compile_one(name) {
            // A line each: cargo reads no more of a message.
            error.lines().for_each(|line| println!("cargo::error={line}"));
            println!("cargo::error={FOLDER}/{name}.bpf.c: scripts/setup.sh installs clang");
        }
    }
}

/// Returns the folder of chain.h, for crates that depend on `sluicegate`.
fn shared_headers() -> Option<String> {
    env::var("DEP_SLUICEGATE_INCLUDE").ok()
}

fn compile_one(name: &str) -> Result<(), String> {
    let variable = |name| env::var(name).expect("cargo and libbpf-sys set it");
    let object = PathBuf::from(variable("OUT_DIR")).join(format!("{name}.bpf.o"));
    // Debian keeps <asm/types.h> apart for each architecture.
    let headers = format!("/usr/include/{}-linux-gnu", variable("CARGO_CFG_TARGET_ARCH"));
    let includes = [Some(headers), Some(variable("DEP_BPF_INCLUDE")), shared_headers()];
    // BTF takes -g. Its DWARF comes along, without this machine's paths.
    let options =
        "-Wall -Werror -target bpf -mcpu=v3 -O2 -g -ffile-compilation-dir=. -fno-stack-protector";
    let clang = Command::new("clang")
        .args(options.split(' '))
        .args(includes.into_iter().flatten().map(|folder| format!("-I{folder}")))
        .args(["-c", &format!("{FOLDER}/{name}.bpf.c"), "-o"])
        .arg(object)
        .output()
        .map_err(|error| format!("cannot run clang: {error}"))?;
    if clang.status.success() {
        return Ok(());
    }
    Err(String::from_utf8_lossy(&clang.stderr).into_owned())
}
