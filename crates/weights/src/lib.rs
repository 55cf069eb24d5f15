//! Finds, maps and checks checkpoint tensors.
