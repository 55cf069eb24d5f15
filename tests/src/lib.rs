//! Golden runs, equality laws and end-to-end tests.
