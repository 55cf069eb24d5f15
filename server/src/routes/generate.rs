//! What the routes that generate share: a prepared request becomes one engine request per choice, all or none, and the
//! choices become the answer, whole or streamed.

use std::sync::Arc;
use std::time::Instant;

use axum::Json;
use axum::body::Bytes;
use axum::extract::Request;
use axum::response::{IntoResponse, Response};
use perilune_engine::{GenerateRequest, SamplingParams, SharedGrammar};
use perilune_protocol::{StreamMode, UsageReport};
use perilune_tensor::TokenId;
use serde::Serialize;

use crate::aborts::AbortSignal;
use crate::app::{Admission, SharedApp};
use crate::error::ApiError;
use crate::generation::{Choice, Generation, Piece, await_turns, collect};
use crate::journal::{OpenTurn, RequestRecord};
use crate::output_text::OutputText;
use crate::routes::{off_reactor, read_body, request_id};
use crate::sampling::for_choice;
use crate::sse::{EventWriter, Streamed, respond};
use crate::token_limit::TokenLimit;

/// What is particular to one route.
pub(crate) trait Answer: Sized + Send + 'static {
    /// Begins the ids of its answers.
    const ID_PREFIX: &'static str;
    /// The field of the prompt.
    const PROMPT_FIELD: &'static str;
    /// The answer that is not streamed.
    type Whole: Serialize;
    /// The events of one that is.
    type Events: EventWriter;

    /// Reads, checks and tokenises a request.
    fn prepare(app: &SharedApp, id: String, body: &Bytes) -> Result<Prepared<Self>, ApiError>;

    /// The text of one choice, before its first token.
    fn output(&self) -> Result<OutputText, ApiError>;

    /// Whether this choice of a prompt reports the prompt's log-probabilities.
    fn scores_prompt(&self, _choice: usize) -> bool {
        true
    }

    /// The whole answer.
    fn whole(&self, choices: Vec<Piece>) -> Self::Whole;

    /// The events of a streamed answer.
    fn events(self, report: UsageReport, num_choices: usize) -> Self::Events;

    /// A refusal in the words of this API.
    fn refusal(error: ApiError) -> Response {
        error.into_response()
    }
}

/// A request that was read, checked and tokenised.
pub(crate) struct Prepared<A> {
    /// Leave to run it.
    pub admission: Admission,
    /// Its prompts, at least one.
    pub prompts: Vec<PreparedPrompt>,
    /// Whom it shares stored prefixes with.
    pub cache_salt: Option<String>,
    /// What its output must be.
    pub grammar: Option<SharedGrammar>,
    /// The id by which it can be ended, where it is not that of the HTTP request.
    pub rid: Option<String>,
    /// Choices per prompt.
    pub n: usize,
    /// Sampling of the first choice, but for `max_tokens`.
    pub params: SamplingParams,
    /// Where `max_tokens` comes from.
    pub limit: TokenLimit,
    /// How the answer is delivered.
    pub stream: StreamMode,
    /// What the choices become.
    pub answer: A,
}

/// A prompt as the engine takes it.
pub(crate) struct PreparedPrompt {
    /// Its tokens.
    pub tokens: Vec<TokenId>,
    /// How many of them count as the prompt's: a chat's generation opener does not.
    pub usage_tokens: usize,
    /// Places at which later prompts may part from it, the best first.
    pub save_at: Vec<usize>,
}

impl PreparedPrompt {
    /// A prompt of which nothing but its tokens is known; all of them count.
    pub(crate) fn plain(tokens: &[TokenId]) -> Self {
        PreparedPrompt { tokens: tokens.to_vec(), usage_tokens: tokens.len(), save_at: Vec::new() }
    }
}

/// Answers a request.
pub(crate) async fn answer<A: Answer>(app: SharedApp, request: Request) -> Response {
    try_answer::<A>(app, request).await.unwrap_or_else(A::refusal)
}

async fn try_answer<A: Answer>(app: SharedApp, request: Request) -> Result<Response, ApiError> {
    app.serving()?;
    let rid = request_id(&request);
    let record = request.extensions().get::<Arc<RequestRecord>>().cloned();
    let id = format!("{}-{rid}", A::ID_PREFIX);
    let body = read_body(&app, request).await?;
    let prepared = off_reactor({
        let app = app.clone();
        move || A::prepare(&app, id, &body)
    })
    .await?;
    let mut choices = prepared.submit(&Submission {
        abort: app.aborts.signal(prepared.rid.as_ref().unwrap_or(&rid)),
        app: app.clone(),
        record,
    })?;
    await_turns(&mut choices, &app).await?;
    let Prepared { answer, admission, stream, .. } = prepared;
    match stream {
        StreamMode::Whole => {
            let whole = answer.whole(collect(choices).await?);
            drop(admission);
            Ok(Json(whole).into_response())
        }
        StreamMode::Events(report) => {
            let writer = answer.events(report, choices.len());
            let streamed = Streamed { choices, writer, in_flight: admission.in_flight };
            Ok(respond(streamed, app.settings.ping_interval))
        }
    }
}

/// What the choices of a request share.
struct Submission {
    app: SharedApp,
    abort: AbortSignal,
    /// What is noted of them; `None` for nothing.
    record: Option<Arc<RequestRecord>>,
}

impl<A: Answer> Prepared<A> {
    /// Hands every choice of every prompt to the engine; if one is refused, those before it are dropped with it.
    fn submit(&self, shared: &Submission) -> Result<Vec<Generation>, ApiError> {
        self.check_count()?;
        let choices = self.prompts.iter().flat_map(|prompt| (0..self.n).map(move |index| (prompt, index)));
        choices.map(|(prompt, index)| self.submit_choice(shared, prompt, index)).collect()
    }

    /// A request that no queue could ever take is wrong, not early.
    fn check_count(&self) -> Result<(), ApiError> {
        let room = self.admission.served.engine.config().max_queued_requests;
        let (prompts, n) = (self.prompts.len(), self.n);
        if prompts.saturating_mul(n) <= room {
            return Ok(());
        }
        let field = if n > 1 { "n" } else { A::PROMPT_FIELD };
        let message = format!(
            "prompts times `n` is {prompts} times {n}: at most {room} choices fit into the queue (--max-queued-requests)"
        );
        Err(ApiError::invalid(message, Some(field)))
    }

    fn submit_choice(
        &self,
        Submission { app, abort, record }: &Submission,
        prompt: &PreparedPrompt,
        index: usize,
    ) -> Result<Generation, ApiError> {
        let engine = &self.admission.served.engine;
        let text = self.answer.output()?;
        let mut params = for_choice(&self.params, index);
        params.max_tokens = self.limit.max_tokens(prompt.tokens.len(), engine.context_length());
        if self.grammar.is_some() {
            // The grammar says when the output may end, and when it must.
            params.min_tokens = 0;
        }
        if !self.answer.scores_prompt(index) {
            params.prompt_logprobs = None;
        }
        let submitted = Instant::now();
        let stream = engine.submit(GenerateRequest {
            cache_salt: self.cache_salt.clone(),
            checkpoint_hints: prompt.save_at.clone(),
            grammar: self.grammar.clone(),
            ..GenerateRequest::new(prompt.tokens.clone(), params)
        });
        let asked = (self.limit, A::PROMPT_FIELD);
        let stream = stream.map_err(|error| ApiError::from_submit(&error, asked, app.settings.overload))?;
        let choice = Choice {
            text,
            abort: abort.clone(),
            client_stops: self.params.stop_token_ids.clone(),
            noted: OpenTurn::begin(record.clone(), submitted, prompt.usage_tokens),
            log: app
                .settings
                .request_log
                .as_ref()
                .map(|log| log.entry((&prompt.tokens, &prompt.save_at), self.cache_salt.as_deref())),
        };
        Ok(Generation::new(app.clone(), stream, choice))
    }
}
