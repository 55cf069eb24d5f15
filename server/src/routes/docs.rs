//! `GET /openapi.json` and `GET /docs`: what the routes take and answer.

use axum::Extension;
use axum::http::header;
use axum::response::IntoResponse;

use crate::openapi::Documentation;

/// The document.
pub(crate) async fn document(Extension(docs): Extension<Documentation>) -> impl IntoResponse {
    ([(header::CONTENT_TYPE, "application/json")], docs.document)
}

/// The same as a page.
pub(crate) async fn page(Extension(docs): Extension<Documentation>) -> impl IntoResponse {
    // It holds no scripts and fetches nothing.
    let policy = "default-src 'none'; style-src 'unsafe-inline'";
    let headers = [(header::CONTENT_TYPE, "text/html; charset=utf-8"), (header::CONTENT_SECURITY_POLICY, policy)];
    (headers, docs.page)
}
