//! Owns a device thread; turns requests into token events.
