//! JSON shapes of the public APIs.
