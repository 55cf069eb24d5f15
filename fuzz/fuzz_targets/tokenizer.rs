//! Feeds [`perilune_fuzz::checks::tokenizer`] with whatever libFuzzer thinks of.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| perilune_fuzz::checks::tokenizer(data));
