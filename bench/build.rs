//! Compiles the BPF programs in `bpf/`.

fn main() {
    sluicegate_build_bpf::compile(&["lpm", "lru", "network"]);
}
