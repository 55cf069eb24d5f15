//! The meaning of each operation as plain f32 loops.
