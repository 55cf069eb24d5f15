//! `POST /tokenize` and `POST /detokenize`, in vLLM's shapes.

use schemars::JsonSchema;
use serde::Serialize;

use crate::answer_start::AnswerStart;
use crate::chat::read_prompt_parts;
use crate::fields::Fields;
use crate::generation::read_ids;
use crate::{ChatCompletionRequest, ProtocolError, parse_object};

/// What changes the prompt of a conversation, and nothing about a text.
const OF_CHATS: &[&str] = &[
    "tools",
    "tool_choice",
    "response_format",
    "reasoning_effort",
    "thinking",
    "chat_template_kwargs",
    "continue_final_message",
    "add_generation_prompt",
];

/// What to tokenise.
#[derive(Debug, Clone, PartialEq)]
pub enum TokenizeInput {
    /// Plain text.
    Text(String),
    /// A conversation, rendered as chat completions would.
    Chat(Box<ChatCompletionRequest>),
    /// A conversation, rendered up to the end of its last message.
    Conversation(Box<ChatCompletionRequest>),
}

/// The body of `POST /tokenize`.
#[derive(Debug, Clone, PartialEq)]
pub struct TokenizeRequest {
    /// The model's name.
    pub model: Option<String>,
    /// `prompt`, or `messages` and what belongs to them.
    pub input: TokenizeInput,
    /// Whether the tokens' texts come back too.
    pub return_token_strs: bool,
}

impl TokenizeRequest {
    /// Reads a request body.
    ///
    /// # Errors
    /// What is wrong with it, by field, value and rule.
    pub fn parse(body: &[u8]) -> Result<Self, ProtocolError> {
        let fields = &mut Fields::root(parse_object(body)?);
        let return_token_strs = fields.boolean("return_token_strs")?.unwrap_or(false);
        if fields.contains("messages") {
            if let Some(prompt) = fields.take("prompt") {
                return Err(fields.refuse("prompt", &prompt, "`messages` are given: only one of the two is tokenized"));
            }
            let start = AnswerStart::read(fields)?;
            let chat = read_prompt_parts(fields, start)?;
            let model = chat.model.clone();
            let input = match start {
                AnswerStart::None => TokenizeInput::Conversation(Box::new(chat)),
                _ => TokenizeInput::Chat(Box::new(chat)),
            };
            return Ok(TokenizeRequest { model, input, return_token_strs });
        }
        for key in OF_CHATS {
            if let Some(value) = fields.take(key) {
                return Err(fields.refuse(
                    key,
                    &value,
                    "it belongs to `messages`, and would not count beside `prompt`",
                ));
            }
        }
        let input = TokenizeInput::Text(fields.required_string("prompt")?);
        Ok(TokenizeRequest { model: fields.string("model")?, input, return_token_strs })
    }
}

/// The answer of `POST /tokenize`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema)]
pub struct TokenizeResponse {
    /// Number of tokens.
    pub count: usize,
    /// Most tokens of prompt and answer together.
    pub max_model_len: usize,
    /// The ids.
    pub tokens: Vec<u32>,
    /// Their texts, where asked for.
    pub token_strs: Option<Vec<String>>,
}

/// The body of `POST /detokenize`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DetokenizeRequest {
    /// The model's name.
    pub model: Option<String>,
    /// The ids.
    pub tokens: Vec<u32>,
}

impl DetokenizeRequest {
    /// Reads a request body.
    ///
    /// # Errors
    /// What is wrong with it, by field, value and rule.
    pub fn parse(body: &[u8]) -> Result<Self, ProtocolError> {
        let fields = &mut Fields::root(parse_object(body)?);
        let tokens = read_ids(fields, "tokens")?;
        let tokens = tokens.ok_or_else(|| fields.missing("tokens", "it must be an array of token ids"))?;
        Ok(DetokenizeRequest { tokens, model: fields.string("model")? })
    }
}

/// The answer of `POST /detokenize`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema)]
pub struct DetokenizeResponse {
    /// The text.
    pub prompt: String,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_inputs_and_their_errors() {
        let text = TokenizeRequest::parse(br#"{"prompt": "a", "add_special_tokens": true}"#).unwrap();
        assert_eq!(text.input, TokenizeInput::Text("a".to_owned()));
        let chat = br#"{"model": "m", "messages": [{"role": "user", "content": "a"}], "return_token_strs": true}"#;
        let chat = TokenizeRequest::parse(chat).unwrap();
        assert!(matches!(chat.input, TokenizeInput::Chat(_)) && chat.return_token_strs);
        assert_eq!(chat.model.as_deref(), Some("m"));
        for (bad, param) in [
            (r#"{"prompt": "a", "messages": [{"role": "user", "content": "a"}]}"#, "prompt"),
            (r#"{"prompt": "a", "tools": []}"#, "tools"),
            (r#"{"prompt": "a", "chat_template_kwargs": {"thinking": false}}"#, "chat_template_kwargs"),
        ] {
            assert_eq!(TokenizeRequest::parse(bad.as_bytes()).unwrap_err().param(), Some(param));
        }
        assert_eq!(TokenizeRequest::parse(b"{}").unwrap_err().param(), Some("prompt"));
        assert_eq!(TokenizeRequest::parse(br#"{"prompt": 1}"#).unwrap_err().param(), Some("prompt"));
        assert_eq!(DetokenizeRequest::parse(br#"{"tokens": [1, 2]}"#).unwrap().tokens, [1, 2]);
        for (bad, param) in [
            ("{}", "tokens"),
            (r#"{"tokens": [1, "a"]}"#, "tokens[1]"),
            (r#"{"tokens": "a"}"#, "tokens"),
            (r#"{"tokens": null}"#, "tokens"),
        ] {
            assert_eq!(DetokenizeRequest::parse(bad.as_bytes()).unwrap_err().param(), Some(param));
        }
        assert!(DetokenizeRequest::parse(br#"{"tokens": []}"#).unwrap().tokens.is_empty());
        let null = TokenizeRequest::parse(br#"{"prompt": null}"#).unwrap_err().to_string();
        assert!(null.starts_with("`prompt` is null"), "{null}");
    }
}
