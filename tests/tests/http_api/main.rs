//! End to end over HTTP on `127.0.0.1:0`: the server in-process, a client that speaks bytes.
//!
//! The demo checkpoint answers where real text matters; a scripted engine where exact tokens or exact moments do.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)] // helpers of tests

mod aborted;
mod cached_chats;
mod client;
mod completions;
mod continued;
mod disconnects;
mod grammar;
mod keys;
mod lifecycle;
mod limits;
mod load;
mod memory;
mod messages;
mod named_events;
mod native;
mod openapi;
mod parameters;
mod playground;
mod prefixes;
mod profiles;
mod request_log;
mod responses;
mod schemas;
mod script;
mod scripted_output;
mod server;
mod speculation;
mod steps;
mod streaming;
mod structured;
mod token_ids;
