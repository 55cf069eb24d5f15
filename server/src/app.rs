//! What every request handler shares: settings, the loaded model, the process's phase, metrics.

use std::sync::{Arc, OnceLock};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use axum::http::StatusCode;
use perilune_config::GenerationConfig;
use perilune_engine::EngineHandle;
use perilune_grammar::{Grammars, Limits as GrammarLimits};
use perilune_protocol::ErrorKind;
use perilune_tokenizer::{ChatRenderer, Tokenizer};

use crate::aborts::Aborts;
use crate::access::Keys;
use crate::body_room::BodyRoom;
use crate::chat_reply::ReasoningNames;
use crate::error::{ApiError, Overload, ServerError};
use crate::journal::{Journal, JournalSettings};
use crate::lifecycle::{InFlight, Lifecycle, Phase};
use crate::metrics::Metrics;
use crate::metrics_compat::MetricsCompat;
use crate::places::Places;
use crate::profile::ApiProfile;
use crate::request_id::RequestIds;
use crate::request_log::RequestLog;
use crate::tls::TlsFiles;

/// The application, shared by all handlers.
pub type SharedApp = Arc<App>;

/// What the operator chose.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Settings {
    /// Names the model answers to; the first is the one reported.
    pub model_names: Vec<String>,
    /// Largest request body, in bytes.
    pub max_body_bytes: usize,
    /// How long the head of a request may take to come, and its body; `None` for ever.
    pub body_timeout: Option<Duration>,
    /// Most requests with a body that are answered or streamed at once; `None` for any number.
    pub max_concurrent_requests: Option<usize>,
    /// How long a request may wait for its first step; `None` for ever.
    pub max_queue_time: Option<Duration>,
    /// What a refusal for want of room looks like.
    pub overload: Overload,
    /// How long requests may go on once the process was told to end.
    pub drain_timeout: Duration,
    /// Silence after which a stream gets a comment; `None` for never.
    pub ping_interval: Option<Duration>,
    /// Time without a finished step after which the server calls itself stalled.
    pub stall_timeout: Duration,
    /// Whose rules requests must keep.
    pub profile: ApiProfile,
    /// Under which names chat completions send reasoning.
    pub reasoning_names: ReasoningNames,
    /// Under whose names `/metrics` shows its figures once more.
    pub metrics_compat: Option<MetricsCompat>,
    /// What is written down of requests.
    pub journal: JournalSettings,
    /// Who may ask.
    pub keys: Keys,
    /// Where requests are logged.
    pub request_log: Option<RequestLog>,
    /// Certificate and key; `None` for plain HTTP.
    pub tls: Option<TlsFiles>,
}

impl Settings {
    /// The name reported for the model.
    pub fn model_name(&self) -> &str {
        self.model_names.first().map_or("perilune", String::as_str)
    }
}

impl Default for Settings {
    fn default() -> Self {
        Settings {
            model_names: vec!["perilune".to_owned()],
            max_body_bytes: 64 << 20,
            body_timeout: Some(Duration::from_secs(60)),
            max_concurrent_requests: None,
            max_queue_time: None,
            overload: Overload { status: StatusCode::SERVICE_UNAVAILABLE, retry_after_s: 1 },
            drain_timeout: Duration::from_secs(30),
            ping_interval: Some(Duration::from_secs(10)),
            stall_timeout: Duration::from_secs(120),
            profile: ApiProfile::Open,
            reasoning_names: ReasoningNames::default(),
            metrics_compat: None,
            journal: JournalSettings::default(),
            keys: Keys::default(),
            request_log: None,
            tls: None,
        }
    }
}

/// A loaded model: its engine, and its text side unless it is served on token ids alone.
#[derive(Debug)]
pub struct Served {
    /// The engine.
    pub engine: EngineHandle,
    /// Tokens to text and back; `None` on token ids alone.
    pub text: Option<TextSide>,
    /// Sampling where a request says nothing.
    pub defaults: GenerationConfig,
    /// Most tokens of prompt and answer together.
    pub context_length: usize,
}

/// What turns text into tokens and back.
#[derive(Debug)]
pub struct TextSide {
    /// The vocabulary.
    pub tokenizer: Arc<Tokenizer>,
    /// The chat format, or why there is none.
    pub chat: Result<ChatRenderer, String>,
    /// What holds outputs to a form.
    pub grammars: Grammars,
}

/// The application.
#[derive(Debug)]
pub struct App {
    /// What the operator chose.
    pub settings: Settings,
    /// Phase and requests in flight.
    pub lifecycle: Lifecycle,
    /// Measurements.
    pub metrics: Metrics,
    /// Writes down requests.
    pub journal: Journal,
    /// Places for requests that are answered or streamed at once.
    pub places: Places,
    /// Memory for bodies that are being read.
    pub(crate) body_room: BodyRoom,
    /// Requests that can be ended by their id.
    pub aborts: Aborts,
    /// Ids for requests that bring none.
    pub request_ids: RequestIds,
    /// Seconds since 1970 at the start.
    pub created: u64,
    served: Arc<OnceLock<Arc<Served>>>,
}

/// Leave to run one request.
#[derive(Debug)]
pub struct Admission {
    /// The model.
    pub served: Arc<Served>,
    /// The place taken.
    pub in_flight: InFlight,
}

impl App {
    /// An application whose model is still to come.
    ///
    /// # Errors
    /// `Io` where the system refuses a thread.
    pub fn new(settings: Settings) -> Result<Self, ServerError> {
        let served = Arc::new(OnceLock::new());
        let compat = settings.metrics_compat.map(|names| (names, settings.model_name()));
        Ok(App {
            journal: Journal::open(&settings.journal)?,
            places: Places::new(settings.max_concurrent_requests),
            body_room: BodyRoom::new(settings.max_body_bytes),
            metrics: Metrics::new(served.clone(), compat),
            settings,
            lifecycle: Lifecycle::default(),
            aborts: Aborts::default(),
            request_ids: RequestIds::default(),
            created: now_s(),
            served,
        })
    }

    /// Hands the loaded model over; requests are served from now on.
    pub fn publish(&self, served: Served) {
        if self.served.set(Arc::new(served)).is_ok() {
            self.lifecycle.ready();
        }
    }

    /// The model, once it is loaded.
    pub fn served(&self) -> Option<&Arc<Served>> {
        self.served.get()
    }

    /// The name reported for the model.
    pub fn model_name(&self) -> &str {
        self.settings.model_name()
    }

    /// Lets a request for `model` in.
    ///
    /// # Errors
    /// 503 while loading, draining or after a failure; 404 for an unknown model.
    pub fn admit(&self, model: Option<&str>) -> Result<Admission, ApiError> {
        let in_flight = self.lifecycle.enter();
        let served = self.serving()?.clone();
        if let Some(name) = model {
            self.check_model(name)?;
        }
        Ok(Admission { served, in_flight })
    }

    /// The model, if requests are served now.
    ///
    /// # Errors
    /// 503 with the reason.
    pub fn serving(&self) -> Result<&Arc<Served>, ApiError> {
        let overload = Overload { status: StatusCode::SERVICE_UNAVAILABLE, ..self.settings.overload };
        match (self.lifecycle.phase(), self.served.get()) {
            (Phase::Ready, Some(served)) => Ok(served),
            (Phase::Loading | Phase::Ready, _) => Err(ApiError::overloaded(overload, "the model is being loaded")),
            (Phase::Draining | Phase::Cut, _) => {
                Err(ApiError::overloaded(overload, "the server is shutting down and takes no new requests"))
            }
            (Phase::Failed(reason), _) => Err(ApiError::new(overload.status, ErrorKind::ServerError, reason)),
        }
    }

    /// Checks a model's name.
    ///
    /// # Errors
    /// 404 naming it and what is served.
    pub fn check_model(&self, name: &str) -> Result<(), ApiError> {
        if self.settings.model_names.iter().any(|known| known == name) {
            return Ok(());
        }
        let known = self.settings.model_names.join("`, `");
        let short: String = name.chars().take(100).collect();
        let message = format!("`model` is {short:?}; served here: `{known}`");
        Err(ApiError::not_found(message).about(Some("model")).with_code("model_not_found"))
    }

    /// Whether there is work that has not moved for too long.
    pub fn is_stalled(&self) -> bool {
        let stalled_for = self.served.get().and_then(|served| served.engine.stats().stalled_for);
        stalled_for.is_some_and(|time| time > self.settings.stall_timeout)
    }
}

impl Served {
    /// The text side.
    ///
    /// # Errors
    /// 400 where the model is served on token ids alone.
    pub fn text(&self, field: &str) -> Result<&TextSide, ApiError> {
        self.text.as_ref().ok_or_else(|| {
            let message = format!(
                "`{field}` needs a tokenizer; this server runs on token ids alone (--skip-tokenizer-init): \
                 send `prompt` as token ids to /v1/completions"
            );
            ApiError::invalid(message, Some(field))
        })
    }
}

impl TextSide {
    /// A text side over `tokenizer`, with the chat format its vocabulary has.
    pub fn new(tokenizer: Arc<Tokenizer>) -> Self {
        let chat = ChatRenderer::new(tokenizer.clone()).map_err(|error| error.to_string());
        let grammars = Grammars::new(tokenizer.clone(), GrammarLimits::default());
        TextSide { tokenizer, chat, grammars }
    }
}

/// Seconds since 1970.
pub fn now_s() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs())
}
