//! K3 and Kimi-Linear as a sequence of backend calls.
