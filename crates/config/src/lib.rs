//! Reads a checkpoint's configuration files and refuses what cannot run.
