//! The real binary on a free port, for tests; killed when dropped.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::process::{Child, Command, ExitStatus};
use std::time::{Duration, Instant};

/// A running server.
pub struct Running {
    pub child: Child,
    pub address: SocketAddr,
}

impl Drop for Running {
    fn drop(&mut self) {
        // It may have ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Running {
    /// Starts the demo with further flags and waits until it is ready.
    pub fn start(flags: &[&str]) -> Running {
        let address = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
        let model = concat!(env!("CARGO_MANIFEST_DIR"), "/../models/demo");
        let child = Command::new(env!("CARGO_BIN_EXE_perilune"))
            .args(["serve", "--model", model, "--served-model-name", "demo", "--port", &address.port().to_string()])
            .args(flags)
            .spawn()
            .unwrap();
        let server = Running { child, address };
        wait_for("the server to be ready", || {
            server.get("/ready").is_some_and(|reply| reply.starts_with("HTTP/1.1 200"))
        });
        server
    }

    /// The whole reply, headers included; `None` where nobody answers.
    fn get(&self, path: &str) -> Option<String> {
        let mut stream = TcpStream::connect(self.address).ok()?;
        stream.set_read_timeout(Some(Duration::from_secs(60))).ok()?;
        stream.write_all(format!("GET {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n").as_bytes()).ok()?;
        let mut reply = String::new();
        stream.read_to_string(&mut reply).ok()?;
        Some(reply)
    }

    /// A figure of `/metrics`.
    fn metric(&self, name: &str) -> f64 {
        let page = self.get("/metrics").unwrap();
        let line = page.lines().find_map(|l| l.strip_prefix(&format!("perilune_{name} ")).map(str::to_owned));
        line.unwrap_or_else(|| panic!("{name} is not in {page}")).parse().unwrap()
    }

    /// The part of the arena that running and stored sequences hold, in KiB.
    pub fn arena_kib(&self) -> u64 {
        ((self.metric("arena_bytes") - self.metric("arena_free_bytes")) / 1024.0) as u64
    }

    /// Waits until no request holds anything.
    pub fn wait_until_idle(&self) {
        let gauges = ["requests_running", "requests_waiting", "kv_blocks_used", "state_slots_used"];
        wait_for("all memory to come back", || gauges.iter().all(|name| self.metric(name) == 0.0));
    }

    /// Sends SIGTERM.
    pub fn terminate(&self) {
        let pid = self.child.id().to_string();
        assert!(Command::new("kill").args(["-TERM", &pid]).status().unwrap().success());
    }

    /// Waits for the end of the process.
    pub fn exit_status(&mut self) -> ExitStatus {
        let mut status = None;
        wait_for("the process to end", || {
            status = self.child.try_wait().unwrap();
            status.is_some()
        });
        status.unwrap()
    }
}

/// The head of a POST.
pub fn post_head(path: &str, len: usize) -> String {
    format!(
        "POST {path} HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nConnection: close\r\nContent-Length: {len}\r\n\r\n"
    )
}

/// Polls for at most 30 seconds.
fn wait_for(what: &str, mut done: impl FnMut() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(30);
    while !done() {
        assert!(Instant::now() < deadline, "waited 30 s for {what}");
        std::thread::park_timeout(Duration::from_millis(20));
    }
}
