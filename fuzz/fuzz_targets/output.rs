//! Feeds [`perilune_fuzz::checks::output`] with whatever libFuzzer thinks of.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| perilune_fuzz::checks::output(data));
