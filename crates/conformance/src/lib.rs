//! Checks a backend against the reference, over random sizes.
