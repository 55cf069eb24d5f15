//! The OpenAPI document (3.1) of the server's routes, from the Rust types of their bodies, and a page that shows it.
//!
//! A route is registered together with its [`Operation`] (`http`), so that none can be without one. Schemas come from the
//! types of `perilune-protocol`; what those types mean is said there.

mod document;
pub(crate) mod operations;
mod page;

use schemars::{JsonSchema, Schema, SchemaGenerator};
use serde_json::Value;

pub(crate) use document::{Documentation, Documented};

/// Makes a schema, and leaves those it refers to in the generator.
pub(crate) type SchemaOf = fn(&mut SchemaGenerator) -> Schema;

/// The media type of JSON.
const JSON: &str = "application/json";
/// The media type of streams.
const EVENTS: &str = "text/event-stream";

/// What one route takes and answers.
#[derive(Debug, Clone)]
pub(crate) struct Operation {
    /// The group it is shown in.
    tag: &'static str,
    /// What it does, in a few words.
    summary: &'static str,
    /// More of that.
    about: &'static str,
    body: Option<Body>,
    answers: Vec<Answer>,
    /// The body of refusals.
    refusal: SchemaOf,
}

#[derive(Debug, Clone)]
struct Body {
    schema: SchemaOf,
    /// A request that the demo answers.
    example: Value,
}

#[derive(Debug, Clone)]
struct Answer {
    status: u16,
    says: &'static str,
    media: &'static str,
    /// Of the body, or of the data of each event; `None` for text.
    schema: Option<SchemaOf>,
    /// How a stream ends; `None` where it is none.
    stream: Option<StreamEnd>,
}

/// How a stream ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum StreamEnd {
    /// With `[DONE]`, before it an error where something went wrong.
    Done,
    /// With an event of its own, also where something went wrong.
    Named,
}

impl Operation {
    fn new(tag: &'static str, summary: &'static str) -> Self {
        let refusal: SchemaOf = |generator| generator.subschema_for::<perilune_protocol::ErrorBody>();
        Operation { tag, summary, about: "", body: None, answers: Vec::new(), refusal }
    }

    fn about(mut self, about: &'static str) -> Self {
        self.about = about;
        self
    }

    /// The body, and one that the demo answers.
    fn takes<T: JsonSchema>(mut self, example: Value) -> Self {
        self.body = Some(Body { schema: |generator| generator.subschema_for::<T>(), example });
        self
    }

    fn answers<T: JsonSchema>(self, status: u16, says: &'static str) -> Self {
        let schema: SchemaOf = |generator| generator.subschema_for::<T>();
        self.with(Answer { status, says, media: JSON, schema: Some(schema), stream: None })
    }

    fn text(self, status: u16, media: &'static str, says: &'static str) -> Self {
        self.with(Answer { status, says, media, schema: None, stream: None })
    }

    /// Streams, whose events hold JSON of `T` each, or an error; then `[DONE]`.
    fn streams<T: JsonSchema>(self, says: &'static str) -> Self {
        let schema: SchemaOf = |generator| generator.subschema_for::<T>();
        self.with(Answer { status: 200, says, media: EVENTS, schema: Some(schema), stream: Some(StreamEnd::Done) })
    }

    /// Streams of events that have names, which `T` tells apart, errors and ends among them.
    fn streams_named<T: JsonSchema>(self, says: &'static str) -> Self {
        let schema: SchemaOf = |generator| generator.subschema_for::<T>();
        self.with(Answer { status: 200, says, media: EVENTS, schema: Some(schema), stream: Some(StreamEnd::Named) })
    }

    /// Refusals have this body.
    fn refusing<T: JsonSchema>(mut self) -> Self {
        self.refusal = |generator| generator.subschema_for::<T>();
        self
    }

    /// Refusals with these statuses.
    fn refuses(mut self, statuses: &[u16]) -> Self {
        for status in statuses {
            let (says, schema) = (meaning(*status), Some(self.refusal));
            let answer = Answer { status: *status, says, media: JSON, schema, stream: None };
            self = self.with(answer);
        }
        self
    }

    fn with(mut self, answer: Answer) -> Self {
        self.answers.push(answer);
        self
    }
}

/// What a refusal means.
fn meaning(status: u16) -> &'static str {
    match status {
        400 => "The request is wrong; the message names field, value and rule.",
        401 => "No API key, or a wrong one.",
        403 => "An administrator's key is needed, or a web page of another server asks.",
        404 => "There is no such model.",
        408 => "The body did not come in time (--body-timeout).",
        413 => "The body is too large (--max-body-bytes).",
        415 => "The body does not say that it is JSON, or is compressed.",
        429 => "No room for the request now, where --overload-status says so.",
        500 => "A fault of the server.",
        501 => "Not offered.",
        503 => {
            "The model is being loaded, the server is shutting down or has failed, or there is no room for the request now."
        }
        529 => "No room for the request now, where --overload-status says so.",
        _ => "",
    }
}
