//! Connections: each serves one request after the other, and may take only so long over the head of each.

use std::net::SocketAddr;
use std::pin::pin;
use std::time::Duration;

use axum::Router;
use axum::extract::connect_info::ConnectInfo;
use axum::serve::Listener;
use hyper::Request;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::{Service, service_fn};
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use tokio::sync::watch;

use crate::journal::Peer;

/// Serves what `listener` accepts until `closed`, then waits for the requests under way. A connection that has not sent a
/// whole head within `head_timeout` is closed, an idle one too.
pub(crate) async fn serve<L: Listener<Addr = SocketAddr>>(
    mut listener: L,
    routes: Router,
    head_timeout: Option<Duration>,
    closed: impl Future<Output = ()>,
) {
    let mut closed = pin!(closed);
    let (closing, _) = watch::channel(false);
    loop {
        let (io, addr) = tokio::select! {
            accepted = listener.accept() => accepted,
            () = &mut closed => break,
        };
        tokio::spawn(attend(io, (addr, routes.clone()), head_timeout, closing.subscribe()));
    }
    drop(listener);
    closing.send_replace(true);
    closing.closed().await;
}

/// One connection, to its end.
async fn attend<I: tokio::io::AsyncRead + tokio::io::AsyncWrite + Unpin + Send + 'static>(
    io: I,
    (addr, routes): (SocketAddr, Router),
    head_timeout: Option<Duration>,
    mut closing: watch::Receiver<bool>,
) {
    let routes = TowerToHyperService::new(routes);
    let service = service_fn(move |mut request: Request<Incoming>| {
        request.extensions_mut().insert(ConnectInfo(Peer(addr)));
        routes.call(request)
    });
    let mut builder = http1::Builder::new();
    builder.timer(TokioTimer::new()).header_read_timeout(head_timeout);
    let mut connection = pin!(builder.serve_connection(TokioIo::new(io), service));
    let ended = tokio::select! {
        ended = connection.as_mut() => ended,
        () = told(&mut closing) => {
            connection.as_mut().graceful_shutdown();
            connection.await
        }
    };
    if let Err(error) = ended {
        tracing::debug!(%addr, %error, "a connection ended early");
    }
}

/// Waits until connections are to end; a server that is gone means the same.
async fn told(closing: &mut watch::Receiver<bool>) {
    drop(closing.wait_for(|closing| *closing).await);
}
