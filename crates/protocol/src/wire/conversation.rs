//! Messages and tools, as chat completions have them.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde_json::Value;

/// Text, whole or in parts.
#[derive(Debug, JsonSchema)]
#[schemars(untagged)]
pub enum ContentForm {
    /// One text.
    Text(String),
    /// Parts.
    Parts(Vec<TextPart>),
}

/// A part of a content; other kinds than text are refused: this is a text model.
#[derive(Debug, JsonSchema)]
#[schemars(tag = "type", rename_all = "snake_case")]
pub enum TextPart {
    /// Text.
    Text {
        /// The text.
        text: String,
    },
}

/// One message.
#[derive(Debug, JsonSchema)]
#[schemars(tag = "role", rename_all = "snake_case")]
pub enum WrittenMessage {
    /// Instructions.
    System {
        /// The text; may be absent only where `tools` are given.
        content: Option<ContentForm>,
        /// The speaker's name.
        name: Option<String>,
        /// Tools that become available at this point.
        tools: Option<Vec<DeclaredTool>>,
    },
    /// Instructions; the same as `system`.
    Developer {
        /// The text; may be absent only where `tools` are given.
        content: Option<ContentForm>,
        /// The speaker's name.
        name: Option<String>,
        /// Tools that become available at this point.
        tools: Option<Vec<DeclaredTool>>,
    },
    /// The user's words.
    User {
        /// The text.
        content: ContentForm,
        /// The speaker's name.
        name: Option<String>,
    },
    /// What the model said before.
    Assistant {
        /// The answer.
        content: Option<ContentForm>,
        /// The reasoning before it.
        reasoning_content: Option<String>,
        /// The same, where `reasoning_content` is absent.
        reasoning: Option<String>,
        /// The tools it called.
        tool_calls: Option<Vec<AssistantCall>>,
        /// The speaker's name.
        name: Option<String>,
    },
    /// The result of a tool call.
    Tool {
        /// The result.
        content: ContentForm,
        /// Which call it answers.
        tool_call_id: String,
        /// The tool's name.
        name: Option<String>,
    },
}

/// A tool call in the history.
#[derive(Debug, JsonSchema)]
pub struct AssistantCall {
    /// Its id.
    pub id: Option<String>,
    /// `function`.
    #[schemars(rename = "type")]
    pub kind: Option<String>,
    /// What was called.
    pub function: NamedTool,
}

/// What was called, and with what.
#[derive(Debug, JsonSchema)]
pub struct NamedTool {
    /// The tool's name.
    #[schemars(regex(pattern = "^[A-Za-z_][A-Za-z0-9_]*$"), length(max = 256))]
    pub name: String,
    /// JSON text, or an object.
    pub arguments: Option<SchemaLike>,
}

/// JSON text, or an object.
#[derive(Debug, JsonSchema)]
#[schemars(untagged)]
pub enum SchemaLike {
    /// Text.
    Text(String),
    /// An object.
    Object(BTreeMap<String, Value>),
}

/// A tool that may be called.
#[derive(Debug, JsonSchema)]
pub struct DeclaredTool {
    /// Only `function`.
    #[schemars(rename = "type", extend("const" = "function"))]
    pub kind: String,
    /// The function.
    pub function: DeclaredFunction,
}

/// A function that may be called.
#[derive(Debug, JsonSchema)]
pub struct DeclaredFunction {
    /// Its name.
    #[schemars(regex(pattern = "^[A-Za-z_][A-Za-z0-9_]*$"), length(max = 256))]
    pub name: String,
    /// What it does.
    pub description: Option<String>,
    /// The JSON schema of its arguments.
    pub parameters: Option<BTreeMap<String, Value>>,
    /// Hold calls to the schema.
    pub strict: Option<bool>,
}

/// Which tools may or must be called.
#[derive(Debug, JsonSchema)]
#[schemars(untagged)]
pub enum ToolChoiceForm {
    /// `auto`, `none` or `required`.
    Word(ToolChoiceWord),
    /// This one.
    Named(ToolName),
}

/// A word for a choice.
#[derive(Debug, JsonSchema)]
#[schemars(rename_all = "snake_case")]
pub enum ToolChoiceWord {
    /// As the model sees fit.
    Auto,
    /// None.
    None,
    /// At least one.
    Required,
}

/// A tool by its name: in `function` in chat completions, beside the type in responses.
#[derive(Debug, JsonSchema)]
pub struct ToolName {
    /// `function`.
    #[schemars(rename = "type")]
    pub kind: Option<String>,
    /// The tool, in chat completions.
    pub function: Option<NamedFunction>,
    /// The tool's name, in responses.
    pub name: Option<String>,
}

/// A function's name.
#[derive(Debug, JsonSchema)]
pub struct NamedFunction {
    /// The name.
    pub name: String,
}
