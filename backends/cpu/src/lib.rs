//! The native CPU backend.
