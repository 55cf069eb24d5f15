//! One server from its socket to its end: listens at once, loads meanwhile, serves, drains.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use perilune_engine::{EngineHandle, EngineState};
use tokio::net::TcpListener;
use tokio::sync::oneshot;
use tokio_rustls::rustls::ServerConfig;

use crate::app::{App, Served, Settings, SharedApp};
use crate::connections;
use crate::drain::{CLOSING, Order, Shutdown};
use crate::error::ServerError;
use crate::http::router;
use crate::lifecycle::Phase;
use crate::tls::{TlsFiles, TlsListener};
use crate::watchdog;

/// The longest that a server waits for its engine to write what is stored.
const SAVING: Duration = Duration::from_secs(6);

/// A server that holds its socket and answers nothing yet.
pub struct Server {
    app: SharedApp,
    listener: TcpListener,
    tls: Option<(TlsFiles, Arc<ServerConfig>)>,
    addr: SocketAddr,
    shutdown: Shutdown,
}

impl Server {
    /// Takes the socket.
    ///
    /// # Errors
    /// `Io` where the address is in use or not this machine's; `Flag` for a certificate that cannot be used.
    pub async fn bind(addr: SocketAddr, settings: Settings) -> Result<Self, ServerError> {
        let io = |source| ServerError::Io { what: format!("cannot listen on {addr}"), source };
        let listener = TcpListener::bind(addr).await.map_err(io)?;
        let addr = listener.local_addr().map_err(io)?;
        let tls = settings.tls.clone().map(|files| files.load().map(|config| (files, config))).transpose()?;
        Ok(Server { tls, app: Arc::new(App::new(settings)?), listener, addr, shutdown: Shutdown::default() })
    }

    /// Where it listens.
    pub fn local_addr(&self) -> SocketAddr {
        self.addr
    }

    /// Ends the server from elsewhere.
    pub fn shutdown(&self) -> Shutdown {
        self.shutdown.clone()
    }

    /// The application, for looking into a running server.
    pub fn app(&self) -> SharedApp {
        self.app.clone()
    }

    /// Serves until told to end. `load` runs on its own thread while liveness is already answered.
    ///
    /// # Errors
    /// What `load` failed with; `EngineStopped`; `Io`.
    pub async fn run<L>(self, load: L) -> Result<(), ServerError>
    where
        L: FnOnce() -> Result<Served, ServerError> + Send + 'static,
    {
        let Server { app, listener, tls, addr, shutdown } = self;
        let (close, closed) = oneshot::channel::<()>();
        let closed = async {
            // A dropped sender means the same as a message: close.
            let _ = closed.await;
        };
        let (routes, head_timeout) = (router(app.clone()), app.settings.body_timeout);
        let http = match tls {
            None => tokio::spawn(connections::serve(listener, routes, head_timeout, closed)),
            Some((files, config)) => {
                let io = |source| ServerError::Io { what: format!("cannot listen on {addr}"), source };
                let listener = TlsListener::new(listener, files, config).map_err(io)?;
                tokio::spawn(connections::serve(listener, routes, head_timeout, closed))
            }
        };
        let outcome = tokio::select! {
            outcome = serve(&app, load, &shutdown) => outcome,
            () = shutdown.wait(Order::Now) => return Ok(()),
        };
        drop(close);
        tokio::select! {
            _ = tokio::time::timeout(CLOSING, http) => {}
            () = shutdown.wait(Order::Now) => {}
        }
        let journal = tokio::task::spawn_blocking(move || app.journal.flush(CLOSING));
        // A journal that cannot be written to its end is left behind.
        let _ = journal.await;
        outcome
    }
}

/// Loads, serves, drains; returns when connections may be closed.
async fn serve<L>(app: &SharedApp, load: L, shutdown: &Shutdown) -> Result<(), ServerError>
where
    L: FnOnce() -> Result<Served, ServerError> + Send + 'static,
{
    let loading = tokio::task::spawn_blocking(load);
    let served = tokio::select! {
        loaded = loading => match loaded {
            Ok(served) => served?,
            Err(error) => return Err(ServerError::Answer(format!("loading the model failed: {error}"))),
        },
        () = shutdown.wait(Order::Drain) => return Ok(()),
    };
    let engine = served.engine.clone();
    app.publish(served);
    tokio::select! {
        never = watchdog::watch(app.clone()) => match never {},
        reason = stopped(&engine) => {
            app.lifecycle.fail(format!("the engine has stopped: {reason}"));
            // Streams in flight end by themselves: the engine tells each of them.
            app.lifecycle.settle(CLOSING).await;
            Err(ServerError::EngineStopped { reason })
        }
        () = shutdown.wait(Order::Drain) => {
            app.lifecycle.drain(app.settings.drain_timeout).await;
            engine.shutdown();
            if engine.stats().usage.disk_len > 0 {
                // It writes what is stored; past the limit that is left behind.
                let _ = tokio::time::timeout(SAVING, engine.stopped()).await;
            }
            match app.lifecycle.phase() {
                Phase::Failed(reason) => Err(ServerError::EngineStopped { reason }),
                _ => Ok(()),
            }
        }
    }
}

/// Waits until the engine has ended by itself; why.
async fn stopped(engine: &EngineHandle) -> String {
    match engine.stopped().await {
        EngineState::Dead { reason } => reason,
        state => format!("{state:?}"),
    }
}
