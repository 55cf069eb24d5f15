//! Servers in this process, each on a port and threads of its own.

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::mpsc::{Receiver, channel};
use std::sync::{Arc, LazyLock, Mutex};
use std::time::{Duration, Instant};

use perilune_engine::{CheckpointRules, Engine, EngineConfig, EngineStats, Prefixes, StepRunner};
use perilune_server::app::SharedApp;
use perilune_server::drafting::DraftOptions;
use perilune_server::lifecycle::Phase;
use perilune_server::load::{LoadOptions, WeightCheck, load};
use perilune_server::progress::Show;
use perilune_server::{Served, Server, ServerError, Settings, Shutdown, TextSide};
use perilune_tests::{demo_dir, room};
use perilune_tokenizer::Tokenizer;

/// What must happen soon has not happened if it takes longer.
pub const PATIENCE: Duration = Duration::from_secs(60);

/// A running server. Dropping it ends it at once.
pub struct TestServer {
    pub addr: SocketAddr,
    pub shutdown: Shutdown,
    app: SharedApp,
    outcome: Mutex<Receiver<Result<(), ServerError>>>,
}

impl Drop for TestServer {
    fn drop(&mut self) {
        self.shutdown.request();
        self.shutdown.request();
    }
}

impl TestServer {
    /// A server whose model comes from `load`; does not wait for it.
    pub fn start<L>(settings: Settings, load: L) -> Self
    where
        L: FnOnce() -> Result<Served, ServerError> + Send + 'static,
    {
        let (send, receive) = channel();
        let (ended, outcome) = channel();
        std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
            let addr = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
            let server = runtime.block_on(Server::bind(addr, settings)).unwrap();
            send.send((server.local_addr(), server.shutdown(), server.app())).unwrap();
            let result = runtime.block_on(server.run(load));
            runtime.shutdown_background();
            // Most tests do not ask how it ended.
            let _ = ended.send(result);
        });
        let (addr, shutdown, app) = receive.recv().unwrap();
        TestServer { addr, shutdown, app, outcome: Mutex::new(outcome) }
    }

    /// The demo, ready.
    pub fn demo(change: impl FnOnce(&mut LoadOptions)) -> Self {
        let mut options = demo_options();
        change(&mut options);
        let server = Self::start(demo_settings(), move || load(&options, Show::Nothing));
        server.wait_for(|phase| *phase == Phase::Ready);
        server
    }

    /// A server over any runner, with the demo's tokenizer, ready.
    pub fn over<R: StepRunner>(runner: R, settings: Settings, change: impl FnOnce(&mut EngineConfig)) -> Self {
        let mut config = engine_config();
        change(&mut config);
        let server = Self::start(settings, move || {
            let engine = Engine::start(runner, config).unwrap();
            let context_length = engine.context_length();
            let text = Some(TextSide::new(tokenizer()));
            Ok(Served { engine, text, defaults: Default::default(), context_length })
        });
        server.wait_for(|phase| *phase == Phase::Ready);
        server
    }

    /// Waits for a phase.
    pub fn wait_for(&self, wanted: impl FnMut(&Phase) -> bool) {
        let mut phase = self.app.lifecycle.watch();
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
        let reached = runtime.block_on(async { tokio::time::timeout(PATIENCE, phase.wait_for(wanted)).await.is_ok() });
        assert!(reached, "still {:?}", self.app.lifecycle.phase());
    }

    /// How the server ended.
    pub fn outcome(&self) -> Result<(), ServerError> {
        self.outcome.lock().unwrap().recv_timeout(PATIENCE).expect("the server did not end")
    }

    /// The engine's figures.
    pub fn stats(&self) -> EngineStats {
        self.app.served().expect("the model is loaded").engine.stats()
    }

    /// Requests in flight, as the drain counts them.
    pub fn num_in_flight(&self) -> usize {
        self.app.lifecycle.num_in_flight()
    }

    /// Waits until nothing is held: no request runs or waits, all pools are whole. How long that took.
    pub fn wait_until_idle(&self) -> Duration {
        let begin = Instant::now();
        eventually("all requests, blocks and slots are given back", || {
            let stats = self.stats();
            stats.running + stats.waiting + stats.usage.blocks_used + stats.usage.slots_used + self.num_in_flight() == 0
        });
        begin.elapsed()
    }
}

/// Waits, yielding, until `condition` holds.
pub fn eventually(what: &str, mut condition: impl FnMut() -> bool) {
    let deadline = Instant::now() + PATIENCE;
    while !condition() {
        assert!(Instant::now() < deadline, "never: {what}");
        std::thread::park_timeout(Duration::from_millis(1));
    }
}

/// One demo server for all tests that only ask.
pub fn shared_demo() -> SocketAddr {
    static DEMO: LazyLock<TestServer> = LazyLock::new(|| TestServer::demo(|_| {}));
    DEMO.addr
}

/// The demo's tokenizer.
pub fn tokenizer() -> Arc<Tokenizer> {
    static DEMO: LazyLock<Arc<Tokenizer>> = LazyLock::new(|| Arc::new(Tokenizer::from_dir(&demo_dir()).unwrap()));
    DEMO.clone()
}

pub fn demo_settings() -> Settings {
    Settings { model_names: vec!["demo".to_owned()], ..Settings::default() }
}

pub fn demo_options() -> LoadOptions {
    LoadOptions {
        dir: demo_dir(),
        backend: perilune_server::backend::BackendKind::Cpu,
        kernels: None,
        threads: Some(2),
        context_length: Some(16_384),
        mem_fraction: 0.5,
        chunked_prefill_size: 256,
        max_running_requests: 16,
        drafts: DraftOptions::off(),
        max_queued_requests: 64,
        random_seed: None,
        block_size: 32,
        prefixes: Prefixes::Keep,
        host_cache_bytes: None,
        disk_cache: None,
        state_format: perilune_engine::StateFormat::F32,
        checkpoint_interval: None,
        quantize: None,
        weight_check: WeightCheck::Off,
        token_ids_only: false,
    }
}

fn engine_config() -> EngineConfig {
    EngineConfig {
        max_running_requests: 16,
        max_queued_requests: 64,
        random_seed: None,
        chunked_prefill_size: 4096,
        max_prompt_logit_rows: 64,
        max_drafts: 0,
        context_length: 16_384,
        cache: room(64, (4096, 16)),
        checkpoints: CheckpointRules { interval: 0, least_gap: 64 },
        eos_ids: tokenizer().stop_ids().to_vec(),
    }
}
