//! Anthropic's `POST /v1/messages` and `/v1/messages/count_tokens`.

use axum::Json;
use axum::body::Bytes;
use axum::extract::{Request, State};
use axum::response::{IntoResponse, Response};
use perilune_protocol::{UsageReport, parse_count_request, parse_messages_request};
use serde_json::json;

use crate::app::SharedApp;
use crate::error::ApiError;
use crate::generation::Piece;
use crate::messages_reply::{MessagesEvents, MessagesReply, WholeMessage, error_body};
use crate::output_text::OutputText;
use crate::ready_chat::{FieldNames, ReadyChat, Voice, render, renderer};
use crate::routes::generate::{Answer, Prepared, answer};
use crate::routes::{off_reactor, read_body};

const NAMES: FieldNames =
    FieldNames { prompt: "messages", parameters: "input_schema", schema: "output_config.format.schema" };

/// The handler.
pub async fn create(State(app): State<SharedApp>, request: Request) -> Response {
    answer::<MessagesAnswer>(app, request).await
}

/// `POST /v1/messages/count_tokens`: how many tokens a prompt would have.
pub async fn count_tokens(State(app): State<SharedApp>, request: Request) -> Response {
    match count(app, request).await {
        Ok(count) => Json(json!({"input_tokens": count})).into_response(),
        Err(error) => MessagesAnswer::refusal(error),
    }
}

async fn count(app: SharedApp, request: Request) -> Result<usize, ApiError> {
    app.serving()?;
    let body = read_body(&app, request).await?;
    off_reactor(move || {
        let request = parse_count_request(&body)?;
        let served = app.admit(request.model.as_deref())?.served;
        Ok(render(renderer(served.text(NAMES.prompt)?, NAMES)?, request, NAMES)?.usage_tokens)
    })
    .await
}

struct MessagesAnswer {
    reply: MessagesReply,
    voice: Voice,
}

impl Answer for MessagesAnswer {
    const ID_PREFIX: &'static str = "msg";
    const PROMPT_FIELD: &'static str = NAMES.prompt;
    type Whole = WholeMessage;
    type Events = MessagesEvents;

    fn prepare(app: &SharedApp, id: String, body: &Bytes) -> Result<Prepared<Self>, ApiError> {
        let request = parse_messages_request(body)?;
        let model = request.model.clone().unwrap_or_else(|| app.model_name().to_owned());
        let ready = ReadyChat::new(app, request, NAMES)?;
        let reply = MessagesReply { id: id.replacen('-', "_", 1), model, prompt_tokens: ready.prompt.usage_tokens };
        Ok(ready.prepared(|voice| MessagesAnswer { reply, voice }))
    }

    fn output(&self) -> Result<OutputText, ApiError> {
        self.voice.output()
    }

    fn whole(&self, choices: Vec<Piece>) -> WholeMessage {
        self.reply.whole(choices)
    }

    fn events(self, _report: UsageReport, _num_choices: usize) -> MessagesEvents {
        MessagesEvents::new(self.reply)
    }

    fn refusal(error: ApiError) -> Response {
        let body = error_body(&error);
        error.with_body(&body)
    }
}
