//! `POST /tokenize` and `POST /detokenize`, in vLLM's shapes.

use axum::Json;
use axum::extract::{Request, State};
use perilune_protocol::{DetokenizeRequest, DetokenizeResponse, TokenizeInput, TokenizeRequest, TokenizeResponse};

use crate::app::SharedApp;
use crate::error::ApiError;
use crate::logprobs::TokenNames;
use crate::ready_chat::{CHAT, render, renderer};
use crate::routes::{off_reactor, read_body, token_ids};
use crate::usage::raw_ids;

/// Text or a conversation to ids. A conversation's ids are the whole prompt, the generation opener included unless
/// it is not wanted.
pub async fn tokenize(State(app): State<SharedApp>, request: Request) -> Result<Json<TokenizeResponse>, ApiError> {
    app.serving()?;
    let body = read_body(&app, request).await?;
    off_reactor(move || {
        let request = TokenizeRequest::parse(&body)?;
        let served = app.admit(request.model.as_deref())?.served;
        let text = match &request.input {
            TokenizeInput::Text(_) => served.text("prompt")?,
            TokenizeInput::Chat(_) | TokenizeInput::Conversation(_) => served.text("messages")?,
        };
        let ids = match request.input {
            TokenizeInput::Text(prompt) => text.tokenizer.encode_text(&prompt),
            TokenizeInput::Chat(chat) => render(renderer(text, CHAT)?, *chat, CHAT)?.tokens,
            TokenizeInput::Conversation(chat) => render(renderer(text, CHAT)?, *chat, CHAT)?.conversation(),
        };
        let names = TokenNames(Some(&text.tokenizer));
        let token_strs = request.return_token_strs.then(|| ids.iter().map(|id| names.text(*id)).collect());
        let tokens = raw_ids(&ids);
        Ok(Json(TokenizeResponse { count: tokens.len(), max_model_len: served.context_length, tokens, token_strs }))
    })
    .await
}

/// Ids to text. Bytes that are no characters become U+FFFD.
pub async fn detokenize(State(app): State<SharedApp>, request: Request) -> Result<Json<DetokenizeResponse>, ApiError> {
    app.serving()?;
    let body = read_body(&app, request).await?;
    off_reactor(move || {
        let request = DetokenizeRequest::parse(&body)?;
        let served = app.admit(request.model.as_deref())?.served;
        let text = served.text("tokens")?;
        let bytes = text.tokenizer.decode_bytes(&token_ids(request.tokens));
        let bytes = bytes.map_err(|error| ApiError::invalid(error.to_string(), Some("tokens")))?;
        Ok(Json(DetokenizeResponse { prompt: String::from_utf8_lossy(&bytes).into_owned() }))
    })
    .await
}
