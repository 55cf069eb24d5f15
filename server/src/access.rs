//! Who may ask: keys for everything but liveness, others for what changes the server.
//!
//! With keys set every route but `/health` and the playground's page needs one, `/metrics` too unless that was switched off; a route for
//! administrators needs an administrator's key where there are any, else an ordinary one. Keys are compared in constant
//! time, and all of them, so that the time of an answer tells nothing.

use axum::extract::{Request, State};
use axum::http::{HeaderMap, Method, StatusCode, header};
use axum::middleware::Next;
use axum::response::Response;
use perilune_protocol::ErrorKind;
use subtle::{Choice, ConstantTimeEq};

use crate::app::SharedApp;
use crate::error::{ApiError, ServerError};

/// Answered without a key: liveness, and a page that holds nothing of this server and asks for a key itself.
const OPEN: &[&str] = &["/health", "/", "/playground"];
/// What changes the server for everybody, or shows what others do.
const ADMIN: &[&str] = &["/abort_request", "/cache", "/flush_cache"];
/// Anthropic's header for keys.
const X_API_KEY: &str = "x-api-key";
/// Longest key.
const MAX_KEY_BYTES: usize = 512;

/// Whose key a route needs, where keys are set.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Access {
    /// None.
    Open,
    /// A user's.
    Users,
    /// An administrator's.
    Admins,
}

/// Whose key `path` needs.
pub(crate) fn access(path: &str) -> Access {
    match path {
        path if OPEN.contains(&path) => Access::Open,
        path if ADMIN.contains(&path) => Access::Admins,
        _ => Access::Users,
    }
}

/// The keys of a server. Never shown.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct Keys {
    users: Vec<String>,
    admins: Vec<String>,
    open_metrics: bool,
}

impl std::fmt::Debug for Keys {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Keys({} for users, {} for administrators)", self.users.len(), self.admins.len())
    }
}

impl Keys {
    /// Keys for users and for administrators; none of either is no lock.
    ///
    /// # Errors
    /// `Flag` for a key that no header could carry.
    pub fn new(users: Vec<String>, admins: Vec<String>) -> Result<Self, ServerError> {
        for (flag, keys) in [("--api-key", &users), ("--admin-api-key", &admins)] {
            let fits = |key: &&String| {
                !key.is_empty() && key.len() <= MAX_KEY_BYTES && key.bytes().all(|b| b.is_ascii_graphic())
            };
            if let Some(bad) = keys.iter().find(|key| !fits(key)) {
                let (value, rule) = (format!("{} bytes", bad.len()), "a key is 1 to 512 visible ASCII characters");
                return Err(ServerError::Flag { flag, value, rule: rule.to_owned() });
            }
        }
        Ok(Keys { users, admins, open_metrics: false })
    }

    /// The same keys, with `/metrics` answered without one.
    pub fn with_open_metrics(mut self) -> Self {
        self.open_metrics = true;
        self
    }

    /// The keys in the lines of a file; empty lines and those that begin with `#` are none.
    ///
    /// # Errors
    /// `Io`.
    pub fn read(path: &std::path::Path) -> Result<Vec<String>, ServerError> {
        let io = |source| ServerError::Io { what: format!("cannot read {}", path.display()), source };
        let text = std::fs::read_to_string(path).map_err(io)?;
        let lines = text.lines().map(str::trim).filter(|line| !line.is_empty() && !line.starts_with('#'));
        Ok(lines.map(str::to_owned).collect())
    }

    /// Whether a request for `path` with these headers is let in.
    fn admits(&self, path: &str, headers: &HeaderMap) -> Result<(), Refusal> {
        let access = access(path);
        let admin = access == Access::Admins && !self.admins.is_empty();
        let free = access == Access::Open || (path == "/metrics" && self.open_metrics);
        if free || (!admin && self.users.is_empty()) {
            return Ok(());
        }
        let given = given(headers);
        let is_admin = matches_any(&self.admins, given);
        let is_user = matches_any(&self.users, given);
        match (admin, bool::from(is_admin), bool::from(is_user)) {
            (_, true, _) | (false, _, true) => Ok(()),
            (true, false, true) => Err(Refusal::NotAdmin),
            _ if given.is_empty() => Err(Refusal::NoKey),
            _ => Err(Refusal::WrongKey),
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Refusal {
    NoKey,
    WrongKey,
    NotAdmin,
}

impl Refusal {
    fn error(self) -> ApiError {
        let (status, message, code) = match self {
            Refusal::NoKey => {
                let message = "no API key was sent; send it as `Authorization: Bearer KEY` or `x-api-key: KEY`";
                (StatusCode::UNAUTHORIZED, message, "missing_api_key")
            }
            Refusal::WrongKey => {
                (StatusCode::UNAUTHORIZED, "the API key is not one of this server's", "invalid_api_key")
            }
            Refusal::NotAdmin => {
                (StatusCode::FORBIDDEN, "this route needs an administrator's key", "admin_key_required")
            }
        };
        ApiError::new(status, ErrorKind::AuthenticationError, message).with_code(code)
    }
}

/// The key a request brings, or nothing.
fn given(headers: &HeaderMap) -> &[u8] {
    let value = |name: &str| headers.get(name).map(|value| value.as_bytes());
    let bearer = value(header::AUTHORIZATION.as_str()).and_then(|value| {
        let (scheme, key) = value.split_at_checked(7)?;
        scheme.eq_ignore_ascii_case(b"bearer ").then(|| key.trim_ascii())
    });
    bearer.or_else(|| value(X_API_KEY)).unwrap_or_default()
}

fn matches_any(keys: &[String], given: &[u8]) -> Choice {
    keys.iter().fold(Choice::from(0), |any, key| any | key.as_bytes().ct_eq(given))
}

/// Lets a request in or answers it.
pub async fn check(State(app): State<SharedApp>, request: Request, next: Next) -> Response {
    let (path, headers) = (request.uri().path(), request.headers());
    if request.method() == Method::POST && access(path) == Access::Admins && is_foreign(headers) {
        return foreign(headers).for_path(path);
    }
    match app.settings.keys.admits(request.uri().path(), request.headers()) {
        Ok(()) => next.run(request).await,
        Err(refusal) => {
            let mut response = refusal.error().for_path(request.uri().path());
            if response.status() == StatusCode::UNAUTHORIZED {
                response.headers_mut().insert(header::WWW_AUTHENTICATE, header::HeaderValue::from_static("Bearer"));
            }
            response
        }
    }
}

/// Whether a web page of another server asks. Only browsers send an origin.
fn is_foreign(headers: &HeaderMap) -> bool {
    let text = |name| headers.get(name).and_then(|value| value.to_str().ok());
    let own = |origin: &str| origin.split_once("://").map(|(_, host)| host) == text(header::HOST);
    headers.get(header::ORIGIN).is_some_and(|origin| !origin.to_str().is_ok_and(own))
}

fn foreign(headers: &HeaderMap) -> ApiError {
    let shown = |name| headers.get(name).map(|value| String::from_utf8_lossy(value.as_bytes())).unwrap_or_default();
    let message = format!(
        "`Origin` is {:?} and `Host` {:?}; a web page of another server may not change this one",
        shown(header::ORIGIN),
        shown(header::HOST)
    );
    ApiError::new(StatusCode::FORBIDDEN, ErrorKind::InvalidRequestError, message).with_code("foreign_origin")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn admits(keys: &Keys, path: &str, header: Option<(&'static str, &str)>) -> Result<(), Refusal> {
        let mut headers = HeaderMap::new();
        if let Some((name, value)) = header {
            headers.insert(name, value.parse().unwrap());
        }
        keys.admits(path, &headers)
    }

    #[test]
    fn who_gets_where() {
        let strings = |keys: &[&str]| keys.iter().map(|key| (*key).to_owned()).collect::<Vec<_>>();
        let none = Keys::default();
        assert_eq!(admits(&none, "/flush_cache", None), Ok(()));
        let users = Keys::new(strings(&["a", "bb"]), vec![]).unwrap();
        for (header, outcome) in [
            (None, Err(Refusal::NoKey)),
            (Some(("authorization", "Bearer a")), Ok(())),
            (Some(("authorization", "bearer  bb ")), Ok(())),
            (Some(("x-api-key", "bb")), Ok(())),
            (Some(("authorization", "Bearer b")), Err(Refusal::WrongKey)),
            (Some(("authorization", "Basic a")), Err(Refusal::NoKey)),
            (Some(("authorization", "Bearer ")), Err(Refusal::NoKey)),
        ] {
            assert_eq!(admits(&users, "/v1/models", header), outcome, "{header:?}");
            assert_eq!(admits(&users, "/flush_cache", header), outcome, "{header:?}");
            assert_eq!(admits(&users, "/health", header), Ok(()));
        }
        let both = Keys::new(strings(&["a"]), strings(&["root"])).unwrap();
        assert_eq!(admits(&both, "/flush_cache", Some(("x-api-key", "a"))), Err(Refusal::NotAdmin));
        assert_eq!(admits(&both, "/flush_cache", Some(("x-api-key", "root"))), Ok(()));
        assert_eq!(admits(&both, "/tokenize", Some(("x-api-key", "root"))), Ok(()));
        let admins = Keys::new(vec![], strings(&["root"])).unwrap();
        assert_eq!(admits(&admins, "/tokenize", None), Ok(()));
        assert_eq!(admits(&admins, "/abort_request", None), Err(Refusal::NoKey));
        assert_eq!(admits(&users, "/metrics", None), Err(Refusal::NoKey));
        assert_eq!(admits(&users.with_open_metrics(), "/metrics", None), Ok(()));
    }

    #[test]
    fn keys_that_no_header_carries_are_refused_and_none_is_shown() {
        for bad in ["", "a b", "é", &"x".repeat(513)] {
            assert!(Keys::new(vec![bad.to_owned()], vec![]).is_err(), "{bad:?}");
        }
        let keys = Keys::new(vec!["secret".to_owned()], vec![]).unwrap();
        assert!(!format!("{keys:?}").contains("secret"));
    }
}
