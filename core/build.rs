//! Compiles the BPF programs in `bpf/` with clang.

use std::env;
use std::path::Path;

use libbpf_cargo::SkeletonBuilder;

const BPF: &str = "bpf";

fn main() {
    println!("cargo::rerun-if-changed={BPF}");
    let out = env::var_os("OUT_DIR").expect("cargo sets OUT_DIR");
    let machine = env::var("CARGO_CFG_TARGET_ARCH").expect("cargo sets the target");
    // Debian keeps <asm/types.h> apart for each architecture.
    let headers = format!("/usr/include/{machine}-linux-gnu");
    let libbpf = env::var("DEP_BPF_INCLUDE").expect("libbpf-sys says where its headers are");
    for name in ["ingress", "redirects"] {
        let built = SkeletonBuilder::new()
            .source(Path::new(BPF).join(format!("{name}.bpf.c")))
            .obj(Path::new(&out).join(format!("{name}.bpf.o")))
            .clang_args([
                "-Wall",
                "-Werror",
                "-mcpu=v3",
                "-I",
                &headers,
                "-I",
                &libbpf,
                "-I",
                "bpf/include",
            ])
            .build();
        if let Err(error) = built {
            println!("cargo::error=bpf/{name}.bpf.c: {error:#}; scripts/setup.sh installs clang");
        }
    }
}
