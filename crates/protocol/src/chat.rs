//! The body of `POST /v1/chat/completions`.

use serde_json::Value;

use crate::answer_start::{AnswerStart, begun_answer, check_forms};
use crate::fields::Fields;
use crate::generation::MAX_TOP_LOGPROBS;
use crate::message::read_messages;
use crate::{
    Function, GenerationOptions, Message, ParallelCalls, ProtocolError, ResponseFormat, StreamMode, ThinkingOptions,
    ToolChoice, Tools, parse_object,
};

/// A chat completion as the client asks for it.
#[derive(Debug, Clone, PartialEq)]
pub struct ChatCompletionRequest {
    /// The model's name; absent means the one served.
    pub model: Option<String>,
    /// The conversation.
    pub messages: Vec<Message>,
    /// What the answer has said already; what is asked for is what follows. Empty for an answer of its own.
    pub answer_begin: String,
    /// Tools available from the start.
    pub tools: Option<Tools>,
    /// Which of them to call.
    pub tool_choice: ToolChoice,
    /// Whether there may be several calls.
    pub parallel_calls: ParallelCalls,
    /// The format asked for.
    pub response_format: ResponseFormat,
    /// Thinking and its effort.
    pub thinking: ThinkingOptions,
    /// Whether reasoning is part of the answer; `true` where absent.
    pub include_reasoning: bool,
    /// Whether reasoning comes apart from the content; `true` where absent.
    pub separate_reasoning: bool,
    /// Alternatives to report per generated token; `None` for no log-probabilities.
    pub logprobs: Option<usize>,
    /// Sampling, stopping, choices.
    pub options: GenerationOptions,
    /// Streaming.
    pub stream: StreamMode,
}

impl ChatCompletionRequest {
    /// Reads a request body.
    ///
    /// # Errors
    /// What is wrong with it, by field, value and rule.
    pub fn parse(body: &[u8]) -> Result<Self, ProtocolError> {
        let fields = &mut Fields::root(parse_object(body)?);
        let start = AnswerStart::read(fields)?;
        if start == AnswerStart::None {
            return Err(fields.refuse("add_generation_prompt", &Value::Bool(false), "an answer is asked for"));
        }
        Self::read(fields, start)
    }

    /// The tools that may be called: those of the request, then those that system messages add. Of two with one name the
    /// later counts.
    pub fn known_tools(&self) -> Vec<&Function> {
        known_tools(self.tools.as_ref(), &self.messages)
    }

    fn read(fields: &mut Fields, start: AnswerStart) -> Result<Self, ProtocolError> {
        let mut options = GenerationOptions::read(fields)?;
        if let Some(limit) = fields.count("max_completion_tokens", 1, u32::MAX as usize)? {
            options.max_tokens = Some(limit);
        }
        if options.max_tokens == Some(0) {
            return Err(fields.refuse("max_tokens", &Value::from(0), "it must be an integer from 1"));
        }
        let tools = Tools::read(fields)?;
        let mut messages = read_messages(fields)?;
        let tool_choice = ToolChoice::read(fields, &known_tools(tools.as_ref(), &messages))?;
        let response_format = ResponseFormat::read(fields)?;
        if response_format != ResponseFormat::Text && options.structured.is_some() {
            return Err(fields.refuse(
                "structured_outputs",
                &Value::from("given"),
                "it cannot be joined with `response_format`",
            ));
        }
        let thinking = ThinkingOptions::read(fields)?;
        let mut answer_begin = String::new();
        if start == AnswerStart::Continued {
            answer_begin = begun_answer(&mut messages, thinking)?;
            check_forms("continue_final_message", (&response_format, &options, &tool_choice))?;
        }
        Ok(ChatCompletionRequest {
            model: fields.string("model")?,
            messages,
            answer_begin,
            tools,
            tool_choice,
            response_format,
            parallel_calls: ParallelCalls::read(fields)?,
            thinking,
            include_reasoning: fields.boolean("include_reasoning")?.unwrap_or(true),
            separate_reasoning: fields.boolean("separate_reasoning")?.unwrap_or(true),
            logprobs: read_logprobs(fields)?,
            options,
            stream: StreamMode::read(fields)?,
        })
    }
}

fn known_tools<'a>(tools: Option<&'a Tools>, messages: &'a [Message]) -> Vec<&'a Function> {
    let added = messages.iter().filter_map(|message| match message {
        Message::System { tools, .. } => tools.as_ref(),
        _ => None,
    });
    let mut known: Vec<&Function> = Vec::new();
    for function in tools.into_iter().chain(added).flat_map(Tools::functions) {
        match known.iter_mut().find(|earlier| earlier.name == function.name) {
            Some(earlier) => *earlier = function,
            None => known.push(function),
        }
    }
    known
}

/// The parts of a chat request that make its prompt; for `/tokenize`.
pub(crate) fn read_prompt_parts(
    fields: &mut Fields,
    start: AnswerStart,
) -> Result<ChatCompletionRequest, ProtocolError> {
    ChatCompletionRequest::read(fields, start)
}

fn read_logprobs(fields: &mut Fields) -> Result<Option<usize>, ProtocolError> {
    let wanted = fields.boolean("logprobs")?.unwrap_or(false);
    let top = fields.count("top_logprobs", 0, MAX_TOP_LOGPROBS)?;
    match (wanted, top) {
        (false, Some(count)) if count > 0 => {
            Err(fields.refuse("top_logprobs", &Value::from(count), "it needs `logprobs: true`"))
        }
        (wanted, top) => Ok(wanted.then(|| top.unwrap_or(0))),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn parse(extra: Value) -> Result<ChatCompletionRequest, ProtocolError> {
        let mut body = json!({"messages": [{"role": "user", "content": "hi"}]});
        body.as_object_mut().unwrap().extend(extra.as_object().unwrap().clone());
        ChatCompletionRequest::parse(body.to_string().as_bytes())
    }

    #[test]
    fn top_logprobs_of_any_wrong_kind_are_refused() {
        for bad in [json!(1_000_000), json!(-1), json!(21), json!(true), json!("5"), json!(1.5), json!([])] {
            for logprobs in [true, false] {
                let error = parse(json!({"logprobs": logprobs, "top_logprobs": bad})).unwrap_err();
                assert_eq!(error.param(), Some("top_logprobs"), "{bad}");
            }
        }
        assert_eq!(parse(json!({"top_logprobs": 1})).unwrap_err().param(), Some("top_logprobs"));
        assert_eq!(parse(json!({"logprobs": true, "top_logprobs": 20})).unwrap().logprobs, Some(20));
        assert_eq!(parse(json!({"logprobs": true})).unwrap().logprobs, Some(0));
        assert_eq!(parse(json!({"logprobs": false, "top_logprobs": 0})).unwrap().logprobs, None);
    }

    #[test]
    fn unknown_fields_are_ignored() {
        let extra = json!({"foo": {"bar": [1]}, "store": true, "metadata": {"a": "b"}, "service_tier": "auto",
            "user": "u", "parallel_tool_calls": true});
        assert_eq!(parse(extra), parse(json!({})));
    }

    #[test]
    fn the_newer_token_limit_wins() {
        let limit = |value| parse(value).unwrap().options.max_tokens;
        assert_eq!(limit(json!({"max_tokens": 5})), Some(5));
        assert_eq!(limit(json!({"max_tokens": 5, "max_completion_tokens": 7})), Some(7));
        assert_eq!(parse(json!({"max_tokens": 0})).unwrap_err().param(), Some("max_tokens"));
        assert_eq!(parse(json!({"max_completion_tokens": 0})).unwrap_err().param(), Some("max_completion_tokens"));
    }

    #[test]
    fn required_needs_tools() {
        assert_eq!(parse(json!({"tool_choice": "required"})).unwrap_err().param(), Some("tool_choice"));
        assert!(parse(json!({"tool_choice": "none"})).is_ok());
    }
}
