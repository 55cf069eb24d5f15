//! The contract between model code and devices.
