//! The playground's page: open, whole, and closed to everything else.

use perilune_server::Settings;
use perilune_server::access::Keys;

use crate::client::{exchange, raw_request};
use crate::script::Script;
use crate::server::{TestServer, demo_settings};

#[test]
fn the_page_is_open_where_everything_else_needs_a_key() {
    let keys = Keys::new(vec!["sesame".to_owned()], vec![]).unwrap();
    let server = TestServer::over(Script::markup("one"), Settings { keys, ..demo_settings() }, |_| {});
    let get = |path: &str| exchange(server.addr, &raw_request("GET", path, "", b""));
    let home = get("/");
    assert_eq!((home.status, home.header("location")), (307, Some("/playground")));
    let page = get("/playground");
    assert_eq!((page.status, page.header("content-type")), (200, Some("text/html; charset=utf-8")));
    let policy = page.header("content-security-policy").unwrap();
    for part in ["default-src 'none'", "connect-src 'self'", "frame-ancestors 'none'", "script-src 'sha256-"] {
        assert!(policy.contains(part), "{policy}");
    }
    assert_eq!(page.header("x-content-type-options"), Some("nosniff"));
    assert!(!String::from_utf8_lossy(&page.body).contains("sesame"));
    for other in ["/playground/", "/playground/x", "//playground", "/v1/models", "/metrics"] {
        assert_eq!(get(other).status, 401, "{other}");
    }
    assert_eq!(exchange(server.addr, &raw_request("POST", "/playground", "", b"{}")).status, 405);
}
