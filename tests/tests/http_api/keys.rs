//! API keys: every route but liveness answers 401 without one. And HTTPS.

use perilune_server::Settings;
use perilune_server::access::Keys;
use perilune_server::inspect_cache::inspect_cache;
use perilune_server::tls::TlsFiles;
use serde_json::json;
use ureq::tls::{Certificate, RootCerts, TlsConfig};

use crate::client::{exchange, raw_request};
use crate::script::Script;
use crate::server::{TestServer, demo_settings};

const GETS: [&str; 8] =
    ["/ready", "/version", "/metrics", "/cache", "/server_info", "/tokenizer_info", "/v1/models", "/v1/models/demo"];
const POSTS: [&str; 12] = [
    "/v1/chat/completions",
    "/v1/completions",
    "/v1/responses",
    "/v1/messages",
    "/v1/messages/count_tokens",
    "/v1/embeddings",
    "/generate",
    "/tokenize",
    "/detokenize",
    "/flush_cache",
    "/abort_request",
    "/no/such/route",
];

fn serve(users: &[&str], admins: &[&str]) -> TestServer {
    let strings = |keys: &[&str]| keys.iter().map(|key| (*key).to_owned()).collect();
    let keys = Keys::new(strings(users), strings(admins)).unwrap();
    TestServer::over(Script::markup("one two"), Settings { keys, ..demo_settings() }, |_| {})
}

#[test]
fn the_report_of_the_cache_is_fetched_under_a_key() {
    let server = serve(&["sesame"], &["root"]);
    let inspect = |key| inspect_cache(&format!("http://{}", server.addr), key);
    for (key, status) in [(None, "401"), (Some("nope"), "401"), (Some("sesame"), "403")] {
        let error = inspect(key).unwrap_err().to_string();
        assert!(error.contains(status) && error.contains("--api-key"), "{error}");
    }
    assert!(inspect(Some("root")).unwrap().contains("arena"));
}

#[test]
fn nothing_but_liveness_is_open() {
    let server = serve(&["sesame", "second"], &["root"]);
    let status = |method: &str, path: &str, header: &str| {
        let reply = exchange(server.addr, &raw_request(method, path, header, b"{}"));
        if reply.status == 401 {
            assert_eq!(reply.header("www-authenticate"), Some("Bearer"));
            let error = reply.json();
            assert_eq!(error["error"]["type"], "authentication_error");
        }
        reply.status
    };
    let routes = GETS.iter().map(|path| ("GET", *path)).chain(POSTS.iter().map(|path| ("POST", *path)));
    for (method, path) in routes {
        for wrong in ["", "Authorization: Bearer nope\r\n", "x-api-key: sesame2\r\n", "Authorization: sesame\r\n"] {
            assert_eq!(status(method, path, wrong), 401, "{method} {path} {wrong}");
        }
        let admin = ["/cache", "/flush_cache", "/abort_request"].contains(&path);
        for right in ["Authorization: Bearer sesame\r\n", "x-api-key: second\r\n"] {
            let found = status(method, path, right);
            assert_eq!(found == 403, admin, "{method} {path}: {found}");
            assert_ne!(found, 401);
        }
        assert!(![401, 403].contains(&status(method, path, "Authorization: Bearer root\r\n")), "{path}");
    }
    assert_eq!(status("GET", "/health", ""), 200);
}

#[test]
fn a_key_opens_streams_too() {
    let server = serve(&["sesame"], &[]);
    let body = json!({"prompt": "x", "max_tokens": 3, "stream": true}).to_string();
    let ask = |header: &str| exchange(server.addr, &raw_request("POST", "/v1/completions", header, body.as_bytes()));
    assert_eq!(ask("").status, 401);
    assert!(ask("Authorization: Bearer sesame\r\n").events().len() > 1);
}

#[test]
fn https_with_a_certificate_of_our_own() {
    let data = perilune_tests::data_dir().join("tls");
    let files = TlsFiles { cert: data.join("cert.pem"), key: data.join("key.pem") };
    let settings = Settings { tls: Some(files), ..demo_settings() };
    let server = TestServer::over(Script::markup("one two"), settings, |_| {});
    let root = Certificate::from_pem(&std::fs::read(data.join("cert.pem")).unwrap()).unwrap();
    let tls = TlsConfig::builder().root_certs(RootCerts::new_with_certs(&[root])).build();
    let agent: ureq::Agent = ureq::Agent::config_builder().tls_config(tls).build().into();
    let url = format!("https://localhost:{}/v1/completions", server.addr.port());
    let body = json!({"prompt": "x", "max_tokens": 5, "stream": true});
    // A client that never shakes hands keeps nobody out.
    let _silent = std::net::TcpStream::connect(server.addr).unwrap();
    let text = agent.post(&url).send_json(&body).unwrap().body_mut().read_to_string().unwrap();
    assert!(text.contains("one") && text.ends_with("data: [DONE]\n\n"), "{text}");
    let stranger: ureq::Agent = ureq::Agent::new_with_defaults();
    assert!(stranger.post(&url).send_json(&body).is_err(), "a certificate nobody vouches for");
}

#[test]
fn a_web_page_of_another_server_changes_nothing() {
    let server = serve(&[], &[]);
    let ask = |origin: &str| {
        let headers = format!("Content-Type: application/json\r\nOrigin: {origin}\r\n");
        ["/flush_cache", "/abort_request"]
            .map(|path| exchange(server.addr, &raw_request("POST", path, &headers, br#"{"rid": "nobody"}"#)))
    };
    for foreign in ["https://example.org", "null", "http://test:81", "http://test.example.org"] {
        for reply in ask(foreign) {
            assert_eq!(reply.refused(403)["code"], "foreign_origin", "{foreign}");
        }
    }
    for reply in ask("http://test") {
        reply.ok();
    }
}
