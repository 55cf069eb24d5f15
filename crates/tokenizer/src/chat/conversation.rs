//! What a prompt is made of, as plain data.
//!
//! What not: JSON shapes of any API; whoever speaks one converts its requests into these.

use crate::json::{self, Json};

/// Everything that shapes a prompt.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Conversation {
    /// The messages, oldest first.
    pub messages: Vec<ChatMessage>,
    /// The request's tools as one JSON array in the spelling of [`crate::canonical_json`]; `None` without tools.
    pub tools_json: Option<String>,
    /// Whether the model thinks before it answers.
    pub thinking: Thinking,
    /// How much to think. `None` emits no directive, as the bare encoder does; a server's default is `Max`. Ignored
    /// when thinking is off.
    pub effort: Option<Effort>,
    /// Whether tools must or must not be called.
    pub tool_choice: ToolChoice,
    /// What the answer must be.
    pub response_format: ResponseFormat,
    /// What the answer has said already: the model goes on from there. Empty for an answer of its own; only without
    /// thinking.
    pub answer_begin: String,
}

/// Whether the model thinks before it answers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum Thinking {
    /// The answer begins in the think channel.
    #[default]
    On,
    /// The answer begins in the response channel, and history shows no think channel.
    Off,
}

/// How much to think; K3 was trained on these three.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Effort {
    /// `low`
    Low,
    /// `high`
    High,
    /// `max`
    Max,
}

impl Effort {
    /// The word in requests and in the prompt.
    pub fn name(self) -> &'static str {
        match self {
            Self::Low => "low",
            Self::High => "high",
            Self::Max => "max",
        }
    }
}

/// Whether tools must or must not be called. A choice of one named tool is `Required` in the prompt; that it is this
/// tool is for constrained decoding to enforce.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum ToolChoice {
    /// The model decides; the prompt says nothing.
    #[default]
    Auto,
    /// The prompt forbids calls.
    None,
    /// The prompt demands a call.
    Required,
}

/// What the answer must be.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum ResponseFormat {
    /// Anything; the prompt says nothing.
    #[default]
    Text,
    /// A JSON object.
    JsonObject,
    /// JSON that satisfies this schema, given in the spelling of [`crate::canonical_json`].
    JsonSchema(String),
}

/// Who speaks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Role {
    /// Instructions.
    System,
    /// The user.
    User,
    /// The model, in earlier turns.
    Assistant,
    /// The result of a tool call.
    Tool,
}

impl Role {
    /// The word in the prompt.
    pub fn name(self) -> &'static str {
        match self {
            Self::System => "system",
            Self::User => "user",
            Self::Assistant => "assistant",
            Self::Tool => "tool",
        }
    }
}

/// One message of a conversation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ChatMessage {
    /// Who speaks.
    pub role: Role,
    /// The speaker's name; for a tool result, the tool's, used when no call matches.
    pub name: Option<String>,
    /// The text, in parts; each part is tokenised alone.
    pub content: Vec<String>,
    /// What the assistant thought. `None` is rendered as empty; whitespace is kept.
    pub reasoning: Option<String>,
    /// What the assistant called, in order.
    pub tool_calls: Vec<ToolCall>,
    /// Which call a tool result answers.
    pub tool_call_id: Option<String>,
    /// Tools that a system message adds, as one JSON array in the spelling of [`crate::canonical_json`].
    pub tools_json: Option<String>,
}

impl ChatMessage {
    /// A message with one part of text and nothing else.
    pub fn new(role: Role, content: impl Into<String>) -> Self {
        Self {
            role,
            name: None,
            content: vec![content.into()],
            reasoning: None,
            tool_calls: Vec::new(),
            tool_call_id: None,
            tools_json: None,
        }
    }
}

/// A call the assistant made in an earlier turn.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ToolCall {
    /// The id by which a tool result refers to it, such as `call_abc`; never part of K3's prompt.
    pub id: String,
    /// The tool.
    pub name: String,
    /// What it was called with.
    pub arguments: Arguments,
}

/// What a tool was called with.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Arguments {
    /// The members of a JSON object, in order.
    Typed(Vec<Argument>),
    /// Text that is not a JSON object, as the model once wrote it.
    Raw(String),
}

impl Arguments {
    /// Reads an API's argument string: a JSON object becomes typed arguments (of a key given twice the last value
    /// counts), anything else stays raw.
    pub fn from_json(text: &str) -> Self {
        match Json::read(text) {
            Ok(Json::Object(members)) => {
                Self::Typed(members.into_iter().map(|(key, value)| Argument::new(key, value)).collect())
            }
            _ => Self::Raw(text.to_owned()),
        }
    }

    /// The argument string of an API: typed arguments as a JSON object, raw text as it is.
    pub fn to_json(&self) -> String {
        match self {
            Self::Raw(text) => text.clone(),
            Self::Typed(arguments) => {
                let member = |argument: &Argument| match argument.kind {
                    ArgumentKind::String => {
                        format!("{}: {}", json::quoted(&argument.key), json::quoted(&argument.text))
                    }
                    _ => format!("{}: {}", json::quoted(&argument.key), argument.text),
                };
                format!("{{{}}}", arguments.iter().map(member).collect::<Vec<_>>().join(", "))
            }
        }
    }
}

/// One argument of a call.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Argument {
    /// Its name.
    pub key: String,
    /// The JSON type of its value.
    pub kind: ArgumentKind,
    /// Its value: a string's own text, anything else as JSON in the spelling of [`crate::spaced_json`].
    pub text: String,
}

impl Argument {
    fn new(key: String, value: Json) -> Self {
        let kind = match value {
            Json::String(text) => return Self { key, kind: ArgumentKind::String, text },
            Json::Number(_) => ArgumentKind::Number,
            Json::Bool(_) => ArgumentKind::Boolean,
            Json::Null => ArgumentKind::Null,
            Json::Object(_) => ArgumentKind::Object,
            Json::Array(_) => ArgumentKind::Array,
        };
        Self { key, kind, text: value.spaced() }
    }
}

/// The JSON type of an argument.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ArgumentKind {
    /// Raw text.
    String,
    /// A number.
    Number,
    /// `true` or `false`.
    Boolean,
    /// `null`.
    Null,
    /// A JSON object.
    Object,
    /// A JSON array.
    Array,
}

impl ArgumentKind {
    /// The word in the prompt.
    pub fn name(self) -> &'static str {
        match self {
            Self::String => "string",
            Self::Number => "number",
            Self::Boolean => "boolean",
            Self::Null => "null",
            Self::Object => "object",
            Self::Array => "array",
        }
    }

    /// The type with this name, if there is one.
    pub fn from_name(name: &str) -> Option<Self> {
        use ArgumentKind::{Array, Boolean, Null, Number, Object, String};
        [String, Number, Boolean, Null, Object, Array].into_iter().find(|kind| kind.name() == name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn argument(key: &str, kind: ArgumentKind, text: &str) -> Argument {
        Argument { key: key.to_owned(), kind, text: text.to_owned() }
    }

    #[test]
    fn an_argument_string_is_typed_in_its_own_order() {
        let text = r#"{"z":"a\nb","n":1.5,"t":true,"e":null,"o":{"y":1,"x":[]},"l":[1,"2"],"z":"é"}"#;
        let expected = [
            argument("z", ArgumentKind::String, "é"),
            argument("n", ArgumentKind::Number, "1.5"),
            argument("t", ArgumentKind::Boolean, "true"),
            argument("e", ArgumentKind::Null, "null"),
            argument("o", ArgumentKind::Object, r#"{"y": 1, "x": []}"#),
            argument("l", ArgumentKind::Array, r#"[1, "2"]"#),
        ];
        let arguments = Arguments::from_json(text);
        assert_eq!(arguments, Arguments::Typed(expected.to_vec()));
        let back = r#"{"z": "é", "n": 1.5, "t": true, "e": null, "o": {"y": 1, "x": []}, "l": [1, "2"]}"#;
        assert_eq!(arguments.to_json(), back);
        assert_eq!(Arguments::from_json(back), arguments);
    }

    #[test]
    fn anything_else_stays_raw() {
        for text in ["", "{\"a\": ", "[1]", "3", "plain"] {
            assert_eq!(Arguments::from_json(text), Arguments::Raw(text.to_owned()));
            assert_eq!(Arguments::from_json(text).to_json(), text);
        }
    }

    #[test]
    fn kinds_are_found_by_name() {
        assert_eq!(ArgumentKind::from_name("array"), Some(ArgumentKind::Array));
        assert_eq!(ArgumentKind::from_name("integer"), None);
    }
}
