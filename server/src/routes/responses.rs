//! `POST /v1/responses`: a conversation in the items of OpenAI's newer API. Nothing is kept between requests.

use axum::body::Bytes;
use axum::extract::{Request, State};
use axum::response::Response;
use perilune_protocol::{ResponsesRequest, UsageReport};
use serde_json::Value;

use crate::app::{SharedApp, now_s};
use crate::error::ApiError;
use crate::generation::Piece;
use crate::output_text::OutputText;
use crate::ready_chat::{FieldNames, ReadyChat, Voice};
use crate::responses_reply::{ResponsesEvents, ResponsesReply};
use crate::routes::generate::{Answer, Prepared, answer};

const NAMES: FieldNames = FieldNames { prompt: "input", parameters: "parameters", schema: "text.format.schema" };

/// The handler.
pub async fn create(State(app): State<SharedApp>, request: Request) -> Response {
    answer::<ResponsesAnswer>(app, request).await
}

struct ResponsesAnswer {
    reply: ResponsesReply,
    voice: Voice,
}

impl Answer for ResponsesAnswer {
    const ID_PREFIX: &'static str = "resp";
    const PROMPT_FIELD: &'static str = NAMES.prompt;
    type Whole = Value;
    type Events = ResponsesEvents;

    fn prepare(app: &SharedApp, id: String, body: &Bytes) -> Result<Prepared<Self>, ApiError> {
        let ResponsesRequest { chat, echo } = ResponsesRequest::parse(body)?;
        let model = chat.model.clone().unwrap_or_else(|| app.model_name().to_owned());
        let ready = ReadyChat::new(app, chat, NAMES)?;
        let reply = ResponsesReply {
            id: id.replacen('-', "_", 1),
            created: now_s(),
            model,
            tokenizer: ready.voice.tokenizer.clone(),
            prompt_tokens: ready.prompt.usage_tokens,
            echo,
        };
        Ok(ready.prepared(|voice| ResponsesAnswer { reply, voice }))
    }

    fn output(&self) -> Result<OutputText, ApiError> {
        self.voice.output()
    }

    fn whole(&self, choices: Vec<Piece>) -> Value {
        self.reply.whole(choices)
    }

    fn events(self, _report: UsageReport, _num_choices: usize) -> ResponsesEvents {
        ResponsesEvents::new(self.reply)
    }
}
