//! One choice being generated: engine events in, pieces of text out.
//!
//! This is the one place where tokens become text. Streams send each [`Piece`]; whole answers append them, so that both
//! re-assemble to the same message. Stop strings act on the answer's text (in chat: on `content`, not on reasoning); a
//! match ends the choice and stops the token stream, which ends the sequence. Stop strings, like stop tokens, do not
//! act on the first `min_tokens` tokens.

use std::time::{Duration, Instant};

use futures_util::stream::{BoxStream, SelectAll, StreamExt, select_all, unfold};
use perilune_engine::{Fault, FinishReason, TokenEvent, TokenLogprobs, TokenRole, TokenStream, Usage};
use perilune_protocol::ErrorKind;
use perilune_tensor::TokenId;
use tokio::sync::watch;

use crate::aborts::AbortSignal;
use crate::app::{App, SharedApp};
use crate::error::ApiError;
use crate::journal::OpenTurn;
use crate::lifecycle::{Phase, cut};
use crate::output_text::{OutputText, TextStep};
use crate::request_log::LogEntry;

pub use perilune_tokenizer::{CallStep, Channel, ParsedToolCall};

/// What an event added to a choice.
#[derive(Debug, Clone, Default)]
pub struct Piece {
    /// Reasoning.
    pub reasoning: String,
    /// The answer.
    pub content: String,
    /// Tool calls that begin, go on, end.
    pub tool_calls: Vec<CallStep>,
    /// The model answered without closing its reasoning: all of it so far was content, and `content` brings it again.
    /// A stream cannot take back what it showed as reasoning; a whole answer forgets it.
    pub reasoning_was_content: bool,
    /// The tokens behind it, stop tokens included.
    pub tokens: Vec<GeneratedToken>,
    /// Log-probabilities of the prompt, once, before any token.
    pub prompt_logprobs: Option<Vec<Option<TokenLogprobs>>>,
    /// Tokens of the choice so far.
    pub counts: Counts,
    /// Set in the last piece of a choice.
    pub finish: Option<Finish>,
}

/// A generated token.
#[derive(Debug, Clone, PartialEq)]
pub struct GeneratedToken {
    /// Its id.
    pub id: TokenId,
    /// Where they were asked for.
    pub logprobs: Option<TokenLogprobs>,
    /// Characters of output text before it, whatever a stop string cuts off later.
    pub offset: usize,
    /// What it is part of.
    pub channel: Channel,
}

/// Tokens of a choice.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Counts {
    /// Generated.
    pub completion: usize,
    /// Of the reasoning.
    pub reasoning: usize,
    /// Of the prompt, not computed but reused.
    pub cached: usize,
    /// Drafted ahead and verified.
    pub drafted: usize,
    /// Of those, what became output.
    pub accepted: usize,
}

/// Why a choice ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Finish {
    /// The model ended its message.
    EndOfMessage,
    /// A stop token that the client named.
    StopToken(TokenId),
    /// A stop string.
    StopText(String),
    /// `max_tokens`, or the end of the context.
    Length,
    /// Somebody told the server to end it.
    Abort,
}

impl Piece {
    /// Puts a later piece of the same choice behind this one.
    pub fn append(&mut self, later: Piece) {
        self.reasoning.push_str(&later.reasoning);
        if later.reasoning_was_content {
            self.reasoning.clear();
            let thought = self.tokens.iter_mut().filter(|token| token.channel == Channel::Reasoning);
            thought.for_each(|token| token.channel = Channel::Content);
        }
        self.content.push_str(&later.content);
        self.tool_calls.extend(later.tool_calls);
        self.tokens.extend(later.tokens);
        self.prompt_logprobs = self.prompt_logprobs.take().or(later.prompt_logprobs);
        self.counts = later.counts;
        self.finish = self.finish.take().or(later.finish);
    }

    fn add_text(&mut self, step: TextStep) -> Option<String> {
        self.reasoning.push_str(&step.reasoning);
        self.content.push_str(&step.content);
        self.tool_calls.extend(step.tool_calls);
        self.reasoning_was_content |= step.reasoning_was_content;
        step.stopped_by
    }
}

/// A choice being generated.
pub struct Generation {
    app: SharedApp,
    phase: watch::Receiver<Phase>,
    abort: AbortSignal,
    /// `None` once the choice is over.
    tokens: Option<TokenStream>,
    text: OutputText,
    client_stops: Vec<TokenId>,
    counts: Counts,
    /// What a stop token brought; the finish that follows it goes into the same piece.
    held: Option<Piece>,
    last_token: Option<Instant>,
    /// What is noted of it.
    noted: OpenTurn,
    log: Option<LogEntry>,
}

/// What a choice is besides its tokens.
pub struct Choice {
    /// Its text, before the first token.
    pub text: OutputText,
    /// Ends it from elsewhere.
    pub abort: AbortSignal,
    /// Stop tokens that the client named.
    pub client_stops: Vec<TokenId>,
    /// What is noted of it.
    pub noted: OpenTurn,
    /// Its line of the request log, where there is one.
    pub(crate) log: Option<LogEntry>,
}

impl Generation {
    /// A choice over the tokens of `stream`.
    pub fn new(app: SharedApp, stream: TokenStream, choice: Choice) -> Self {
        let Choice { text, abort, client_stops, noted, log } = choice;
        Generation {
            phase: app.lifecycle.watch(),
            abort,
            app,
            tokens: Some(stream),
            text,
            client_stops,
            counts: Counts::default(),
            held: None,
            last_token: None,
            noted,
            log,
        }
    }

    /// Waits until the choice is being computed, or over.
    ///
    /// # Errors
    /// 503 where the server ends first.
    pub async fn turn(&mut self) -> Result<(), ApiError> {
        let Some(tokens) = self.tokens.as_mut() else { return Ok(()) };
        tokio::select! {
            biased;
            () = cut(&mut self.phase) => {
                self.close("abort");
                Err(shut_down())
            }
            () = self.abort.wait() => Ok(()),
            started = tokens.started() => {
                self.noted.turn.started = started;
                Ok(())
            }
        }
    }

    /// The next piece; `None` after the one that finishes the choice, or after an error.
    pub async fn next(&mut self) -> Option<Result<Piece, ApiError>> {
        loop {
            let tokens = self.tokens.as_mut()?;
            // The cut comes first: tokens may always be ready, and must not hold it off.
            let event = tokio::select! {
                biased;
                () = cut(&mut self.phase) => {
                    self.close("abort");
                    return Some(Err(shut_down()));
                }
                () = self.abort.wait() => {
                    let usage = Usage { cached_tokens: self.counts.cached, ..Usage::default() };
                    let piece = self.finished(FinishReason::Abort, usage);
                    return Some(Ok(Piece { counts: self.counts, ..piece }));
                }
                event = tokens.next() => event,
            };
            let piece = match event {
                Some(TokenEvent::PromptLogprobs(list)) => Piece { prompt_logprobs: Some(list), ..Piece::default() },
                Some(TokenEvent::Token { id, role, logprobs }) => {
                    let (offset, channel) = (self.text.num_chars(), Channel::default());
                    let token = GeneratedToken { id, logprobs, offset, channel };
                    match self.token(token, role) {
                        Some(piece) => piece,
                        None => continue,
                    }
                }
                Some(TokenEvent::Finished { reason, usage }) => self.finished(reason, usage),
                Some(TokenEvent::Failed { fault, message }) => return Some(Err(self.failed(fault, message))),
                None => return Some(Err(self.failed(Fault::Engine, "the engine has stopped".to_owned()))),
            };
            return Some(Ok(Piece { counts: self.counts, ..piece }));
        }
    }

    /// The pieces as a stream, each with the choice's number.
    pub fn pieces(self, index: usize) -> BoxStream<'static, (usize, Result<Piece, ApiError>)> {
        unfold(self, move |mut this| async move { this.next().await.map(|piece| ((index, piece), this)) }).boxed()
    }

    fn token(&mut self, mut token: GeneratedToken, role: TokenRole) -> Option<Piece> {
        self.observe_token();
        self.log.iter_mut().for_each(|log| log.push(token.id));
        self.counts.completion += 1;
        let mut piece = Piece::default();
        let step = match role {
            TokenRole::Content => self.text.push(token.id),
            TokenRole::Stop if self.client_stops.contains(&token.id) => TextStep::default(),
            TokenRole::Stop => self.text.end_of_message(token.id),
        };
        token.channel = step.channel;
        let stopped_by = piece.add_text(step);
        self.counts.reasoning = self.text.num_reasoning_tokens();
        piece.tokens.push(token);
        if let Some(stop) = stopped_by {
            self.end(&mut piece, Finish::StopText(stop));
        } else if role == TokenRole::Stop {
            self.held = Some(piece);
            return None;
        }
        Some(piece)
    }

    fn finished(&mut self, reason: FinishReason, usage: Usage) -> Piece {
        self.counts.cached = usage.cached_tokens;
        self.counts.drafted = usage.drafted_tokens;
        self.counts.accepted = usage.accepted_tokens.min(usage.drafted_tokens);
        let finish = match reason {
            FinishReason::Stop { token } if self.client_stops.contains(&token) => Finish::StopToken(token),
            FinishReason::Stop { .. } => Finish::EndOfMessage,
            FinishReason::Length => Finish::Length,
            FinishReason::Abort => Finish::Abort,
        };
        let mut piece = self.held.take().unwrap_or_default();
        let stopped_by = piece.add_text(self.text.finish());
        self.end(&mut piece, stopped_by.map_or(finish, Finish::StopText));
        piece
    }

    fn end(&mut self, piece: &mut Piece, finish: Finish) {
        self.close(match finish {
            Finish::EndOfMessage | Finish::StopToken(_) | Finish::StopText(_) => "stop",
            Finish::Length => "length",
            Finish::Abort => "abort",
        });
        self.app.metrics.end_to_end(self.noted.turn.submitted.elapsed());
        piece.finish = Some(finish);
    }

    fn failed(&mut self, fault: Fault, message: String) -> ApiError {
        self.close("error");
        match fault {
            Fault::Engine => ApiError::server(message),
            Fault::Request => {
                let message = format!("the output cannot be what the request demands: {message}");
                ApiError::invalid(message, None).with_code("impossible_output")
            }
            Fault::Limit => {
                let message = format!("what the request demands takes too much to follow: {message}");
                ApiError::invalid(message, None).with_code("grammar_limit")
            }
        }
    }

    fn close(&mut self, end: &'static str) {
        let started = self.tokens.as_mut().and_then(TokenStream::started_at);
        match self.tokens.take() {
            Some(tokens) if end == "stop" => tokens.stop(),
            tokens => drop(tokens),
        }
        let turn = &mut self.noted.turn;
        turn.started = turn.started.or(started);
        (turn.end, turn.cached_tokens) = (end, self.counts.cached.min(turn.prompt_tokens));
    }

    fn observe_token(&mut self) {
        let now = Instant::now();
        let turn = &mut self.noted.turn;
        turn.completion_tokens = self.counts.completion + 1;
        if let Some(last) = self.last_token.replace(now) {
            self.app.metrics.inter_token(now - last);
            return;
        }
        let started = self.tokens.as_mut().and_then(TokenStream::started_at).unwrap_or(now);
        (turn.started, turn.first_token) = (Some(started), Some(now));
        self.app.metrics.queue_time(started.saturating_duration_since(turn.submitted));
        self.app.metrics.first_token(now - turn.submitted);
    }
}

/// Waits until all choices are being computed.
///
/// # Errors
/// 503 where that takes longer than the server lets a request wait; the choices are to be dropped.
pub async fn await_turns(choices: &mut [Generation], app: &App) -> Result<(), ApiError> {
    let Some(limit) = app.settings.max_queue_time else { return Ok(()) };
    let turns = async {
        for choice in choices {
            choice.turn().await?;
        }
        Ok(())
    };
    tokio::time::timeout(limit, turns).await.unwrap_or_else(|_| {
        app.metrics.count_queue_timeout();
        let message = format!(
            "the request waited {} for its turn, longer than this server lets one wait (--max-queue-time); try again later",
            in_seconds(limit)
        );
        Err(ApiError::overloaded(app.settings.overload, message).with_code("queue_timeout"))
    })
}

fn in_seconds(time: Duration) -> String {
    format!("{} s", time.as_secs_f64())
}

/// Pieces of all choices of a request, as they come.
pub type Pieces = SelectAll<BoxStream<'static, (usize, Result<Piece, ApiError>)>>;

/// Runs the choices of a request side by side.
pub fn side_by_side(choices: Vec<Generation>) -> Pieces {
    select_all(choices.into_iter().enumerate().map(|(index, choice)| choice.pieces(index)))
}

/// Runs all choices to their ends; one finished piece per choice.
///
/// # Errors
/// The first failure; the other choices are dropped with it.
pub async fn collect(choices: Vec<Generation>) -> Result<Vec<Piece>, ApiError> {
    let mut whole: Vec<Piece> = choices.iter().map(|_| Piece::default()).collect();
    let mut pieces = side_by_side(choices);
    while let Some((index, piece)) = pieces.next().await {
        let piece = piece?;
        if let Some(choice) = whole.get_mut(index) {
            choice.append(piece);
        }
    }
    Ok(whole)
}

fn shut_down() -> ApiError {
    let message = "the server is shutting down and ended this request before it was finished";
    ApiError::new(axum::http::StatusCode::SERVICE_UNAVAILABLE, ErrorKind::ServerError, message).with_code("shutdown")
}
