//! A client that sees every byte: status, headers, chunked bodies, server-sent events.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use serde_json::Value;

/// A server that is silent for longer has hung.
const PATIENCE: Duration = Duration::from_secs(60);

/// A whole response.
#[derive(Debug)]
pub struct Reply {
    pub status: u16,
    pub headers: Vec<(String, String)>,
    pub body: Vec<u8>,
}

impl Reply {
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(key, _)| key.eq_ignore_ascii_case(name)).map(|(_, value)| value.as_str())
    }

    /// The body as JSON; `NaN` and infinities would not parse.
    pub fn json(&self) -> Value {
        serde_json::from_slice(&self.body).unwrap_or_else(|e| panic!("{e}: {}", String::from_utf8_lossy(&self.body)))
    }

    /// The body of a request that must have succeeded.
    pub fn ok(self) -> Value {
        assert_eq!(self.status, 200, "{}", String::from_utf8_lossy(&self.body));
        self.json()
    }

    /// The `error` of a refusal, checked for its shape.
    pub fn refused(self, status: u16) -> Value {
        assert_eq!(self.status, status, "{}", String::from_utf8_lossy(&self.body));
        assert_eq!(self.header("content-type"), Some("application/json"));
        let error = self.json()["error"].clone();
        assert!(error["message"].is_string() && error["type"].is_string(), "{error}");
        assert!(error.get("param").is_some() && error.get("code").is_some(), "{error}");
        error
    }

    /// The `data` of every event of a stream that must have begun, checked for the form of its lines.
    pub fn events(self) -> Vec<String> {
        assert_eq!(self.status, 200, "{}", String::from_utf8_lossy(&self.body));
        assert_eq!(self.header("content-type"), Some("text/event-stream"));
        let text = String::from_utf8(self.body).expect("a character was split or the stream is not UTF-8");
        let blocks = text.split_terminator("\n\n").filter(|block| *block != ": ping");
        blocks.map(|block| block.strip_prefix("data: ").unwrap_or_else(|| panic!("{block:?}")).to_owned()).collect()
    }
}

/// A request as bytes, with the length it claims.
pub fn raw_request(method: &str, path: &str, headers: &str, body: &[u8]) -> Vec<u8> {
    let length = body.len();
    let mut bytes = format!(
        "{method} {path} HTTP/1.1\r\nHost: test\r\nConnection: close\r\nContent-Length: {length}\r\n{headers}\r\n"
    )
    .into_bytes();
    bytes.extend_from_slice(body);
    bytes
}

/// Sends bytes and reads the response to its end.
pub fn exchange(addr: SocketAddr, request: &[u8]) -> Reply {
    let mut connection = Connection::open(addr, request);
    let (status, headers) = connection.head();
    let mut body = Vec::new();
    // A server that refuses a body unread may close the connection hard after its answer.
    let _ = connection.0.read_to_end(&mut body);
    let chunked =
        headers.iter().any(|(key, value)| key.eq_ignore_ascii_case("transfer-encoding") && value == "chunked");
    Reply { status, headers, body: if chunked { unchunked(&body) } else { body } }
}

pub fn get(addr: SocketAddr, path: &str) -> Reply {
    exchange(addr, &raw_request("GET", path, "", b""))
}

pub fn post(addr: SocketAddr, path: &str, body: &Value) -> Reply {
    exchange(addr, &raw_request("POST", path, "", body.to_string().as_bytes()))
}

/// The same with `stream: true`; the data of its events.
pub fn stream(addr: SocketAddr, path: &str, body: &Value) -> Vec<String> {
    post(addr, path, &with(body, "stream", true)).events()
}

/// `body` with one field set.
pub fn with(body: &Value, key: &str, value: impl Into<Value>) -> Value {
    let mut body = body.clone();
    body[key] = value.into();
    body
}

/// A connection on which a response is read piece by piece. Dropping it closes the socket.
pub struct Connection(BufReader<TcpStream>);

impl Connection {
    pub fn open(addr: SocketAddr, request: &[u8]) -> Self {
        let mut socket = TcpStream::connect(addr).unwrap();
        socket.set_read_timeout(Some(PATIENCE)).unwrap();
        socket.write_all(request).unwrap();
        Connection(BufReader::new(socket))
    }

    pub fn post(addr: SocketAddr, path: &str, body: &Value) -> Self {
        Self::open(addr, &raw_request("POST", path, "", body.to_string().as_bytes()))
    }

    /// Status and headers.
    pub fn head(&mut self) -> (u16, Vec<(String, String)>) {
        let status = self.line();
        let code = status.split(' ').nth(1).and_then(|code| code.parse().ok());
        let mut headers = Vec::new();
        loop {
            let line = self.line();
            let Some((key, value)) = line.split_once(": ") else { break };
            headers.push((key.to_owned(), value.to_owned()));
        }
        (code.unwrap_or_else(|| panic!("no status in {status:?}")), headers)
    }

    /// The next line that starts with `prefix`; `None` at the end.
    pub fn line_with(&mut self, prefix: &str) -> Option<String> {
        let mut line = String::new();
        while self.0.read_line(&mut line).unwrap() > 0 {
            if line.starts_with(prefix) {
                return Some(line.trim_end().to_owned());
            }
            line.clear();
        }
        None
    }

    fn line(&mut self) -> String {
        let mut line = String::new();
        self.0.read_line(&mut line).unwrap();
        line.trim_end().to_owned()
    }
}

/// Undoes the chunked transfer encoding; the last chunk must be there.
fn unchunked(mut bytes: &[u8]) -> Vec<u8> {
    let mut body = Vec::new();
    loop {
        let end = bytes.windows(2).position(|pair| pair == b"\r\n").expect("a chunk without a size: cut off");
        let size = usize::from_str_radix(std::str::from_utf8(&bytes[..end]).unwrap(), 16).unwrap();
        if size == 0 {
            return body;
        }
        body.extend_from_slice(&bytes[end + 2..end + 2 + size]);
        bytes = &bytes[end + 4 + size..];
    }
}
