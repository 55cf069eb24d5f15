//! `GET /playground`: a page to talk to the model with, made of the files in `src/playground`, and whole in itself.
//!
//! The page asks this server and nobody else: its policy forbids every other origin, markup that was not shipped cannot
//! run, and no other page may frame it. It holds nothing of the server, so it is answered without a key; what it asks for
//! needs one like everything.

use axum::http::StatusCode;
use axum::http::header::{
    CACHE_CONTROL, CONTENT_SECURITY_POLICY, CONTENT_TYPE, HeaderName, LOCATION, REFERRER_POLICY, X_CONTENT_TYPE_OPTIONS,
};
use axum::response::{IntoResponse, Response};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use sha2::{Digest, Sha256};

const STYLE: &str = include_str!("../playground/style.css");
const BODY: &str = include_str!("../playground/body.html");
/// One script, whose parts see each other and nothing else sees them.
const SCRIPT: &str = concat!(
    "(() => {\n\"use strict\";\n",
    include_str!("../playground/stream.js"),
    include_str!("../playground/render.js"),
    include_str!("../playground/figures.js"),
    include_str!("../playground/page.js"),
    "})();\n"
);
/// So that browsers do not ask for `/favicon.ico`.
const ICON: &str = "data:image/svg+xml,%3Csvg xmlns='http://www.w3.org/2000/svg' viewBox='0 0 32 32' fill='%237c8cff'%3E\
    %3Cellipse cx='16' cy='16' rx='14' ry='7.5' transform='rotate(-28 16 16)' fill='none' stroke='%237c8cff' \
    stroke-width='2'/%3E%3Ccircle cx='12.4' cy='17.6' r='4.8'/%3E%3Ccircle cx='27.6' cy='8.4' r='2.4'/%3E%3C/svg%3E";

/// `GET /`: to the playground.
pub async fn home() -> Response {
    (StatusCode::TEMPORARY_REDIRECT, [(LOCATION, "/playground")], "See /playground\n").into_response()
}

/// `GET /playground`.
pub async fn page() -> Response {
    let headers: [(HeaderName, String); 5] = [
        (CONTENT_TYPE, "text/html; charset=utf-8".to_owned()),
        (CONTENT_SECURITY_POLICY, policy()),
        (CACHE_CONTROL, "no-cache".to_owned()),
        (REFERRER_POLICY, "no-referrer".to_owned()),
        (X_CONTENT_TYPE_OPTIONS, "nosniff".to_owned()),
    ];
    (headers, html()).into_response()
}

fn html() -> String {
    format!(
        "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n<title>Perilune</title>\n\
         <link rel=\"icon\" href=\"{ICON}\">\n<style>{STYLE}</style>\n</head>\n<body>\n{BODY}<script>{SCRIPT}</script>\n\
         </body>\n</html>\n"
    )
}

/// Only the shipped style and script, only this server.
fn policy() -> String {
    let hash = |text: &str| STANDARD.encode(Sha256::digest(text));
    format!(
        "default-src 'none'; style-src 'sha256-{}'; script-src 'sha256-{}'; connect-src 'self'; img-src data:; \
         base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
        hash(STYLE),
        hash(SCRIPT)
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_page_is_whole_and_asks_nobody_else() {
        let page = html();
        let addresses = page.match_indices("http").map(|(at, _)| &page[at..(at + 26).min(page.len())]);
        let foreign: Vec<&str> = addresses.filter(|found| !found.starts_with("http://www.w3.org/2000/svg")).collect();
        assert!(foreign.is_empty(), "{foreign:?}");
        assert_eq!(page.matches("<script").count(), 1);
        assert_eq!(page.matches("<style").count(), 1);
        assert!(![" onclick", " onload", " onerror"].iter().any(|handler| BODY.contains(handler)));
    }

    #[test]
    fn nothing_is_made_markup_at_run_time() {
        for way in ["innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "eval(", "Function(", "srcdoc"] {
            assert!(!SCRIPT.contains(way), "{way}");
        }
        assert!(!SCRIPT.contains("</script") && !STYLE.contains("</style"));
    }

    #[test]
    fn the_policy_names_what_is_shipped() {
        assert!(policy().contains(&format!("script-src 'sha256-{}'", STANDARD.encode(Sha256::digest(SCRIPT)))));
        assert!(!policy().contains("unsafe"));
    }
}
