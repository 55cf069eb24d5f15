//! `POST /v1/chat/completions`: a conversation, rendered in the model's chat format.

use axum::body::Bytes;
use axum::extract::{Request, State};
use axum::response::Response;
use perilune_protocol::{ChatCompletion, ChatCompletionRequest, UsageReport};

use crate::app::{SharedApp, now_s};
use crate::chat_reply::{ChatChunks, ChatReply, ReasoningPlace};
use crate::error::ApiError;
use crate::generation::Piece;
use crate::output_text::OutputText;
use crate::ready_chat::{CHAT, ReadyChat, Voice};
use crate::routes::generate::{Answer, Prepared, answer};
use crate::sse::ChunkEvents;

/// The handler.
pub async fn create(State(app): State<SharedApp>, request: Request) -> Response {
    answer::<ChatAnswer>(app, request).await
}

/// The answer to a conversation.
struct ChatAnswer {
    reply: ChatReply,
    voice: Voice,
}

impl Answer for ChatAnswer {
    const ID_PREFIX: &'static str = "chatcmpl";
    const PROMPT_FIELD: &'static str = CHAT.prompt;
    type Whole = ChatCompletion;
    type Events = ChunkEvents<ChatChunks>;

    fn prepare(app: &SharedApp, id: String, body: &Bytes) -> Result<Prepared<Self>, ApiError> {
        let request = ChatCompletionRequest::parse(body)?;
        let model = request.model.clone().unwrap_or_else(|| app.model_name().to_owned());
        let (reasoning, prompt_logprobs) = (reasoning_place(&request), request.options.prompt_logprobs);
        let return_ids = request.options.return_token_ids;
        let ready = ReadyChat::new(app, request, CHAT)?;
        let reply = ChatReply {
            id,
            created: now_s(),
            model,
            tokenizer: ready.voice.tokenizer.clone(),
            reasoning,
            reasoning_names: app.settings.reasoning_names,
            prompt_tokens: ready.prompt.usage_tokens,
            prompt_logprobs,
            prompt_ids: return_ids.then(|| ready.ids().to_vec()),
        };
        Ok(ready.prepared(|voice| ChatAnswer { reply, voice }))
    }

    fn output(&self) -> Result<OutputText, ApiError> {
        self.voice.output()
    }

    fn scores_prompt(&self, choice: usize) -> bool {
        choice == 0
    }

    fn whole(&self, choices: Vec<Piece>) -> ChatCompletion {
        self.reply.whole(choices)
    }

    fn events(self, report: UsageReport, num_choices: usize) -> Self::Events {
        ChunkEvents::new(ChatChunks::new(self.reply, report, num_choices), num_choices)
    }
}

fn reasoning_place(request: &ChatCompletionRequest) -> ReasoningPlace {
    match (request.include_reasoning, request.separate_reasoning) {
        (false, _) => ReasoningPlace::Nowhere,
        (true, false) => ReasoningPlace::Inline,
        (true, true) => ReasoningPlace::Apart,
    }
}
