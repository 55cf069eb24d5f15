//! HTTPS: a listener whose connections are encrypted, with a certificate that may change while the server runs.
//!
//! Handshakes run beside each other, so that a client that dawdles keeps nobody out. The files are looked at again now and
//! then: a new certificate serves new connections, one that cannot be read is reported and the old one kept.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use axum::serve::Listener;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::mpsc::{Receiver, Sender, channel};
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::ServerConfig;
use tokio_rustls::rustls::crypto::ring::default_provider;
use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio_rustls::server::TlsStream;

use crate::error::ServerError;

/// Longest handshake.
const HANDSHAKE: Duration = Duration::from_secs(10);
/// Time between two looks at the files.
const RECHECK: Duration = Duration::from_secs(5);
/// Connections that wait to be taken.
const BACKLOG: usize = 64;

/// Where certificate and key lie.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TlsFiles {
    /// The chain, PEM, the server's own certificate first.
    pub cert: PathBuf,
    /// Its key, PEM.
    pub key: PathBuf,
}

impl TlsFiles {
    /// Reads both.
    ///
    /// # Errors
    /// `Flag` naming the file and what is wrong with it.
    pub fn load(&self) -> Result<Arc<ServerConfig>, ServerError> {
        let wrong =
            |flag, path: &Path, rule: String| ServerError::Flag { flag, value: path.display().to_string(), rule };
        let chain = CertificateDer::pem_file_iter(&self.cert).and_then(|items| items.collect::<Result<Vec<_>, _>>());
        let chain = chain.map_err(|error| wrong("--tls-cert", &self.cert, error.to_string()))?;
        let key = PrivateKeyDer::from_pem_file(&self.key);
        let key = key.map_err(|error| wrong("--tls-key", &self.key, error.to_string()))?;
        let builder =
            ServerConfig::builder_with_provider(Arc::new(default_provider())).with_safe_default_protocol_versions();
        let config = builder.and_then(|builder| builder.with_no_client_auth().with_single_cert(chain, key));
        let mut config = config.map_err(|error| wrong("--tls-cert", &self.cert, error.to_string()))?;
        config.alpn_protocols = vec![b"http/1.1".to_vec()];
        Ok(Arc::new(config))
    }

    fn changed(&self) -> [Option<SystemTime>; 2] {
        [&self.cert, &self.key].map(|path| path.metadata().and_then(|data| data.modified()).ok())
    }
}

/// Connections after their handshakes.
pub struct TlsListener {
    addr: SocketAddr,
    ready: Receiver<(TlsStream<TcpStream>, SocketAddr)>,
}

impl TlsListener {
    /// Encrypts what `listener` accepts, with what was loaded from `files`.
    ///
    /// # Errors
    /// A socket that is gone.
    pub fn new(listener: TcpListener, files: TlsFiles, config: Arc<ServerConfig>) -> std::io::Result<Self> {
        let addr = listener.local_addr()?;
        let (sender, ready) = channel(BACKLOG);
        let identity = Identity { changed: files.changed(), files, config, looked: Instant::now() };
        tokio::spawn(accept(listener, identity, sender));
        Ok(TlsListener { addr, ready })
    }
}

impl Listener for TlsListener {
    type Io = TlsStream<TcpStream>;
    type Addr = SocketAddr;

    async fn accept(&mut self) -> (Self::Io, SocketAddr) {
        match self.ready.recv().await {
            Some(connection) => connection,
            // The task that accepts has ended, so nothing comes any more.
            None => std::future::pending().await,
        }
    }

    fn local_addr(&self) -> std::io::Result<SocketAddr> {
        Ok(self.addr)
    }
}

/// Until nobody takes connections any more.
async fn accept(mut listener: TcpListener, mut identity: Identity, ready: Sender<(TlsStream<TcpStream>, SocketAddr)>) {
    loop {
        let (socket, addr) = tokio::select! {
            accepted = Listener::accept(&mut listener) => accepted,
            () = ready.closed() => return,
        };
        let acceptor = TlsAcceptor::from(identity.current());
        let ready = ready.clone();
        tokio::spawn(async move {
            match tokio::time::timeout(HANDSHAKE, acceptor.accept(socket)).await {
                // The server may be closing.
                Ok(Ok(stream)) => drop(ready.send((stream, addr)).await),
                Ok(Err(error)) => tracing::debug!(%addr, %error, "a TLS handshake failed"),
                Err(_) => tracing::debug!(%addr, "a TLS handshake took too long"),
            }
        });
    }
}

/// The certificate in use.
struct Identity {
    files: TlsFiles,
    config: Arc<ServerConfig>,
    changed: [Option<SystemTime>; 2],
    looked: Instant,
}

impl Identity {
    fn current(&mut self) -> Arc<ServerConfig> {
        if self.looked.elapsed() >= RECHECK {
            self.looked = Instant::now();
            self.look();
        }
        self.config.clone()
    }

    fn look(&mut self) {
        let changed = self.files.changed();
        if changed == self.changed {
            return;
        }
        match self.files.load() {
            Ok(config) => {
                tracing::info!("the TLS certificate was renewed");
                (self.config, self.changed) = (config, changed);
            }
            Err(error) => tracing::warn!(%error, "the new TLS certificate cannot be used; the old one stays"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn data(name: &str) -> PathBuf {
        Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/data/tls").join(name)
    }

    #[test]
    fn files_that_cannot_be_used_are_named() {
        let good = TlsFiles { cert: data("cert.pem"), key: data("key.pem") };
        assert!(good.load().is_ok());
        for (files, flag) in [
            (TlsFiles { cert: data("none.pem"), ..good.clone() }, "--tls-cert"),
            (TlsFiles { key: data("none.pem"), ..good.clone() }, "--tls-key"),
            (TlsFiles { key: data("cert.pem"), ..good.clone() }, "--tls-key"),
            (TlsFiles { key: data("other-key.pem"), ..good.clone() }, "--tls-cert"),
        ] {
            assert!(files.load().unwrap_err().to_string().contains(flag), "{files:?}");
        }
    }

    #[test]
    fn a_new_certificate_replaces_the_old_and_a_broken_one_does_not() {
        let dir = tempfile::tempdir().unwrap();
        let put = |name: &str, text: &[u8], age: u64| {
            let path = dir.path().join(name);
            std::fs::write(&path, text).unwrap();
            let time = SystemTime::now() - Duration::from_secs(age);
            std::fs::File::options().write(true).open(&path).unwrap().set_modified(time).unwrap();
            path
        };
        let read = |name: &str| std::fs::read(data(name)).unwrap();
        let files = TlsFiles { cert: put("c", &read("cert.pem"), 90), key: put("k", &read("key.pem"), 90) };
        let config = files.load().unwrap();
        let mut identity = Identity { changed: files.changed(), files, config: config.clone(), looked: Instant::now() };
        identity.look();
        assert!(Arc::ptr_eq(&identity.config, &config), "nothing has changed");
        put("c", b"garbage", 60);
        identity.look();
        assert!(Arc::ptr_eq(&identity.config, &config), "a broken certificate is no certificate");
        put("c", &read("other-cert.pem"), 30);
        put("k", &read("other-key.pem"), 30);
        identity.look();
        assert!(!Arc::ptr_eq(&identity.config, &config));
    }
}
