//! What `POST /v1/responses` answers: one response, or the events of a stream.

use schemars::JsonSchema;
use serde::Serialize;
use serde_json::{Map, Value, json};

use crate::{ErrorDetail, ResponsesEcho, TokenLogprob, Usage};

/// Where a response or an item stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum ResponseStatus {
    /// More follows.
    InProgress,
    /// It is whole.
    Completed,
    /// It was cut off.
    Incomplete,
    /// Somebody told the server to end it.
    Cancelled,
    /// It ended by a fault.
    Failed,
}

/// One item of the output.
#[derive(Debug, Clone, PartialEq)]
pub enum OutputItem {
    /// What the model thought.
    Reasoning {
        /// `rs_…`.
        id: String,
        /// The text.
        text: String,
    },
    /// What it said.
    Message {
        /// `msg_…`.
        id: String,
        /// The text.
        text: String,
        /// Log-probabilities, where asked for.
        logprobs: Vec<TokenLogprob>,
    },
    /// A tool it calls.
    FunctionCall {
        /// `fc_…`.
        id: String,
        /// By which its result refers to it.
        call_id: String,
        /// The tool.
        name: String,
        /// JSON text.
        arguments: String,
    },
}

impl OutputItem {
    /// Its id.
    pub fn id(&self) -> &str {
        match self {
            OutputItem::Reasoning { id, .. } | OutputItem::Message { id, .. } | OutputItem::FunctionCall { id, .. } => {
                id
            }
        }
    }

    /// The item as JSON.
    pub fn to_json(&self, status: ResponseStatus) -> Value {
        match self {
            OutputItem::Reasoning { id, text } => {
                let content = json!([{"type": "reasoning_text", "text": text}]);
                json!({"type": "reasoning", "id": id, "summary": [], "content": content, "encrypted_content": null, "status": status})
            }
            OutputItem::Message { id, .. } => {
                json!({"type": "message", "id": id, "status": status, "role": "assistant", "content": [self.part()]})
            }
            OutputItem::FunctionCall { id, call_id, name, arguments } => json!({
                "type": "function_call", "id": id, "call_id": call_id, "name": name, "arguments": arguments, "status": status,
            }),
        }
    }

    /// The item as it is announced: with nothing in it.
    pub fn announced(&self) -> Value {
        let mut item = self.to_json(ResponseStatus::InProgress);
        match self {
            OutputItem::FunctionCall { .. } => item["arguments"] = json!(""),
            _ => item["content"] = json!([]),
        }
        item
    }

    /// Its content part; of a call, nothing.
    pub fn part(&self) -> Value {
        match self {
            OutputItem::Reasoning { text, .. } => json!({"type": "reasoning_text", "text": text}),
            OutputItem::Message { text, logprobs, .. } => {
                json!({"type": "output_text", "text": text, "annotations": [], "logprobs": logprobs})
            }
            OutputItem::FunctionCall { .. } => Value::Null,
        }
    }
}

/// A response.
#[derive(Debug, Clone, PartialEq)]
pub struct ResponseObject {
    /// `resp_…`.
    pub id: String,
    /// Seconds since 1970.
    pub created_at: u64,
    /// The model's name.
    pub model: String,
    /// What comes back as it was sent.
    pub echo: ResponsesEcho,
    /// Where it stands.
    pub status: ResponseStatus,
    /// Its items.
    pub output: Vec<OutputItem>,
    /// Token counts, once it has ended.
    pub usage: Option<Usage>,
    /// What went wrong.
    pub error: Option<ErrorDetail>,
}

impl ResponseObject {
    /// The response as JSON. Items other than the last are complete.
    pub fn to_json(&self) -> Value {
        let last = self.output.len().saturating_sub(1);
        let status = |i: usize| if i == last { self.status } else { ResponseStatus::Completed };
        let output: Vec<Value> = self.output.iter().enumerate().map(|(i, item)| item.to_json(status(i))).collect();
        let incomplete = (self.status == ResponseStatus::Incomplete).then(|| json!({"reason": "max_output_tokens"}));
        let error = self.error.as_ref().map(|error| json!({"code": "server_error", "message": error.message}));
        let mut body = json!({
            "id": self.id, "object": "response", "created_at": self.created_at, "status": self.status,
            "background": false, "error": error, "incomplete_details": incomplete, "model": self.model, "output": output,
            "previous_response_id": null, "store": false, "truncation": "disabled", "usage": self.usage.map(usage),
        });
        if let Some(body) = body.as_object_mut() {
            body.extend(echoed(&self.echo.fields));
        }
        body
    }
}

/// What was sent, with the values that absence means.
fn echoed(fields: &Map<String, Value>) -> Map<String, Value> {
    let meaning = |key: &str| match key {
        "parallel_tool_calls" => json!(true),
        "tool_choice" => json!("auto"),
        "tools" => json!([]),
        "metadata" => json!({}),
        "text" => json!({"format": {"type": "text"}}),
        "reasoning" => json!({"effort": null, "summary": null}),
        "temperature" | "top_p" => json!(1.0),
        "top_logprobs" => json!(0),
        _ => Value::Null,
    };
    let value =
        |(key, value): (&String, &Value)| (key.clone(), if value.is_null() { meaning(key) } else { value.clone() });
    fields.iter().map(value).collect()
}

fn usage(usage: Usage) -> Value {
    json!({
        "input_tokens": usage.prompt_tokens,
        "input_tokens_details": {"cached_tokens": usage.prompt_tokens_details.cached_tokens},
        "output_tokens": usage.completion_tokens,
        "output_tokens_details": {"reasoning_tokens": usage.completion_tokens_details.reasoning_tokens},
        "total_tokens": usage.total_tokens,
    })
}
