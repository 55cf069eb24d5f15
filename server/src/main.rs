//! The `perilune` binary.
fn main() {}
