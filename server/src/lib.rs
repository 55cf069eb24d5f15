//! The perilune binary: HTTP in, token streams out.
