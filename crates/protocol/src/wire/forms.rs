//! What an output must be.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde_json::Value;

/// A JSON schema, or its text.
#[derive(Debug, JsonSchema)]
#[schemars(untagged)]
pub enum SchemaForm {
    /// The schema.
    Schema(BTreeMap<String, Value>),
    /// Its JSON text.
    Text(String),
}

/// Exactly one of these.
#[derive(Debug, JsonSchema)]
pub struct StructuredForm {
    /// JSON of this schema.
    pub json: Option<SchemaForm>,
    /// Any JSON object.
    pub json_object: Option<bool>,
    /// Text that this expression matches as a whole.
    #[schemars(length(min = 1))]
    pub regex: Option<String>,
    /// One of these texts.
    #[schemars(length(min = 1, max = 10_000))]
    pub choice: Option<Vec<String>>,
    /// Text of this grammar: GBNF or Lark.
    #[schemars(length(min = 1))]
    pub grammar: Option<String>,
}

/// The format of the answer; enforced, whatever `strict` says.
#[derive(Debug, JsonSchema)]
#[schemars(tag = "type", rename_all = "snake_case")]
pub enum ResponseFormatForm {
    /// Any text.
    Text,
    /// A JSON object.
    JsonObject,
    /// JSON of a schema.
    JsonSchema {
        /// The schema.
        json_schema: NamedSchema,
    },
}

/// A schema with a name.
#[derive(Debug, JsonSchema)]
pub struct NamedSchema {
    /// Its name.
    pub name: Option<String>,
    /// JSON Schema, draft 2020-12, within what can be enforced while a model writes.
    pub schema: BTreeMap<String, Value>,
    /// Without effect.
    pub strict: Option<bool>,
}
