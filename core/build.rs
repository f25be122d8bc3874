//! Compiles the BPF programs in `bpf/`.

fn main() {
    // For build scripts that compile a program for the scrub stage: the folder of chain.h.
    let folder = std::env::var("CARGO_MANIFEST_DIR").expect("cargo sets it");
    println!("cargo::metadata=include={folder}/bpf");
    sluicegate_build_bpf::compile(&["ingress", "redirects", "scrub_test"]);
}
