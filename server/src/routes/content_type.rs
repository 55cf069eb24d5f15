//! Which bodies are taken for JSON.
//!
//! A web page may send some content types to any server without asking it first, and a server on the reader's own machine
//! must not do a stranger's work. JSON is not among those types: for it browsers ask (with OPTIONS), and here nobody
//! answers that. A body without a content type is taken, as many clients send none, unless it comes from a web page.

use axum::http::{HeaderMap, StatusCode, header};
use perilune_protocol::ErrorKind;

use crate::error::ApiError;

/// Refuses a body that does not say it is JSON, or is compressed.
///
/// # Errors
/// 415 with what to add.
pub(super) fn check(headers: &HeaderMap) -> Result<(), ApiError> {
    let mut codings = headers.get_all(header::CONTENT_ENCODING).iter();
    if let Some(coding) = codings.find(|coding| !coding.as_bytes().eq_ignore_ascii_case(b"identity")) {
        let coding = String::from_utf8_lossy(coding.as_bytes());
        return Err(refuse(format!(
            "the content coding is {coding:?}; send the body as it is, without `Content-Encoding`"
        )));
    }
    let found = match headers.get(header::CONTENT_TYPE) {
        Some(value) if value.to_str().is_ok_and(is_json) => return Ok(()),
        Some(value) => format!("{:?}", String::from_utf8_lossy(value.as_bytes())),
        None if headers.contains_key(header::ORIGIN) => "missing".to_owned(),
        None => return Ok(()),
    };
    Err(refuse(format!("the content type is {found}; send JSON with the header `Content-Type: application/json`")))
}

fn refuse(message: String) -> ApiError {
    ApiError::new(StatusCode::UNSUPPORTED_MEDIA_TYPE, ErrorKind::InvalidRequestError, message)
}

/// `application/json` or `*/*+json`, whatever parameters follow.
fn is_json(value: &str) -> bool {
    let essence = value.split(';').next().unwrap_or_default().trim().to_ascii_lowercase();
    essence == "application/json" || essence.contains('/') && essence.ends_with("+json")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn status(headers: &[(header::HeaderName, &str)]) -> u16 {
        let mut all = HeaderMap::new();
        for (name, value) in headers {
            all.append(name, value.parse().unwrap());
        }
        let refused = check(&all).err().map(axum::response::IntoResponse::into_response);
        refused.map_or(200, |response: axum::response::Response| response.status().as_u16())
    }

    #[test]
    fn json_and_nothing_else() {
        for good in ["application/json", "Application/JSON; charset=utf-8", "application/vnd.api+json"] {
            assert_eq!(status(&[(header::CONTENT_TYPE, good)]), 200, "{good}");
        }
        for bad in ["text/plain", "application/x-www-form-urlencoded", "multipart/form-data; x=+json", "", "+json", "é"]
        {
            assert_eq!(status(&[(header::CONTENT_TYPE, bad)]), 415, "{bad}");
        }
    }

    #[test]
    fn what_is_compressed_is_refused() {
        let json = (header::CONTENT_TYPE, "application/json");
        assert_eq!(status(&[json.clone(), (header::CONTENT_ENCODING, "Identity")]), 200);
        for coding in ["gzip", "br", "zstd, gzip", ""] {
            assert_eq!(status(&[json.clone(), (header::CONTENT_ENCODING, coding)]), 415, "{coding}");
            let second = [json.clone(), (header::CONTENT_ENCODING, "identity"), (header::CONTENT_ENCODING, coding)];
            assert_eq!(status(&second), 415, "{coding}");
        }
    }

    #[test]
    fn none_is_fine_but_not_from_a_web_page() {
        assert_eq!(status(&[]), 200);
        assert_eq!(status(&[(header::ORIGIN, "https://example.org")]), 415);
        assert_eq!(status(&[(header::ORIGIN, "null"), (header::CONTENT_TYPE, "application/json")]), 200);
    }
}
