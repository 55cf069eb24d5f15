//! What plain text an output must be, in the words of vLLM (`structured_outputs`, and `guided_*` of older versions) and of
//! SGLang (`json_schema`, `regex`, `ebnf`).

use serde_json::Value;

use crate::ProtocolError;
use crate::fields::{Fields, invalid};

/// Most alternatives of a choice.
const MAX_CHOICES: usize = 10_000;

/// What the output must be, and the field that asked for it.
#[derive(Debug, Clone, PartialEq)]
pub struct StructuredOutput {
    /// The field, for messages.
    pub field: String,
    /// What it must be.
    pub form: OutputForm,
}

/// What an output must be.
#[derive(Debug, Clone, PartialEq)]
pub enum OutputForm {
    /// JSON of this schema.
    Json(Value),
    /// Text that this expression matches.
    Regex(String),
    /// Text of this grammar.
    Grammar(String),
    /// One of these texts.
    Choice(Vec<String>),
}

/// The fields beside `structured_outputs`, and which of its members each stands for.
const PLAIN: &[(&str, &str)] = &[
    ("guided_json", "json"),
    ("guided_regex", "regex"),
    ("guided_choice", "choice"),
    ("guided_grammar", "grammar"),
    ("json_schema", "json"),
    ("regex", "regex"),
    ("ebnf", "grammar"),
];

impl StructuredOutput {
    /// Reads whichever field is there; two are refused.
    pub(crate) fn read(fields: &mut Fields) -> Result<Option<Self>, ProtocolError> {
        let mut found: Vec<StructuredOutput> = Vec::new();
        if let Some(mut object) = fields.object("structured_outputs")? {
            for kind in ["json", "regex", "choice", "grammar"] {
                let path = object.path(kind);
                found.extend(object.take(kind).map(|value| read(kind, path, value)).transpose()?);
            }
            let field = object.path("json_object");
            if object.boolean("json_object")? == Some(true) {
                found.push(StructuredOutput { field, form: OutputForm::Json(any_object()) });
            }
            if let Some(value) = object.take("structural_tag") {
                return Err(object.refuse("structural_tag", &value, "structural tags are not offered; use `grammar`"));
            }
            if found.is_empty() {
                let rule = "it must hold one of `json`, `json_object`, `regex`, `choice`, `grammar`";
                return Err(fields.refuse("structured_outputs", &Value::Object(Default::default()), rule));
            }
        }
        for (key, kind) in PLAIN {
            let path = fields.path(key);
            found.extend(fields.take(key).map(|value| read(kind, path, value)).transpose()?);
        }
        match found.len() {
            0 => Ok(None),
            1 => Ok(found.pop()),
            _ => Err(ProtocolError::Invalid {
                field: found[1].field.clone(),
                value: "given".to_owned(),
                rule: format!("it cannot be joined with `{}`", found[0].field),
            }),
        }
    }
}

fn any_object() -> Value {
    serde_json::json!({"type": "object"})
}

fn read(kind: &str, field: String, value: Value) -> Result<StructuredOutput, ProtocolError> {
    let form = match (kind, value) {
        ("json", Value::Object(map)) => OutputForm::Json(Value::Object(map)),
        ("json", Value::String(text)) => match serde_json::from_str(&text) {
            Ok(schema @ Value::Object(_)) => OutputForm::Json(schema),
            _ => return Err(invalid(&field, &Value::String(text), "it must be the JSON text of a schema")),
        },
        ("json", other) => return Err(invalid(&field, &other, "it must be a schema or its JSON text")),
        ("choice", Value::Array(items)) if !items.is_empty() && items.len() <= MAX_CHOICES => {
            let text = |(i, item)| match item {
                Value::String(text) if !text.is_empty() => Ok(text),
                other => Err(invalid(&format!("{field}[{i}]"), &other, "it must be a string, not empty")),
            };
            OutputForm::Choice(items.into_iter().enumerate().map(text).collect::<Result<_, _>>()?)
        }
        ("choice", other) => return Err(invalid(&field, &other, "it must be an array of 1 to 10000 strings")),
        ("regex", Value::String(text)) if !text.is_empty() => OutputForm::Regex(text),
        ("grammar", Value::String(text)) if !text.is_empty() => OutputForm::Grammar(text),
        (_, other) => return Err(invalid(&field, &other, "it must be a string, not empty")),
    };
    Ok(StructuredOutput { field, form })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn read(value: Value) -> Result<Option<StructuredOutput>, ProtocolError> {
        StructuredOutput::read(&mut Fields::of(String::new(), value)?)
    }

    #[test]
    fn every_spelling_is_read() {
        let schema = json!({"type": "integer"});
        for (body, field, form) in [
            (
                json!({"structured_outputs": {"json": schema}}),
                "structured_outputs.json",
                OutputForm::Json(schema.clone()),
            ),
            (
                json!({"structured_outputs": {"json": schema.to_string()}}),
                "structured_outputs.json",
                OutputForm::Json(schema.clone()),
            ),
            (
                json!({"structured_outputs": {"json_object": true}}),
                "structured_outputs.json_object",
                OutputForm::Json(any_object()),
            ),
            (
                json!({"structured_outputs": {"regex": "a+"}}),
                "structured_outputs.regex",
                OutputForm::Regex("a+".to_owned()),
            ),
            (
                json!({"guided_choice": ["a", "b"]}),
                "guided_choice",
                OutputForm::Choice(vec!["a".to_owned(), "b".to_owned()]),
            ),
            (json!({"ebnf": "root ::= \"a\""}), "ebnf", OutputForm::Grammar("root ::= \"a\"".to_owned())),
            (json!({"json_schema": schema.to_string()}), "json_schema", OutputForm::Json(schema.clone())),
        ] {
            assert_eq!(read(body).unwrap(), Some(StructuredOutput { field: field.to_owned(), form }));
        }
        assert_eq!(read(json!({"regex": null, "structured_outputs": null})), Ok(None));
    }

    #[test]
    fn wrong_and_doubled_ones_name_their_field() {
        for (body, param) in [
            (json!({"structured_outputs": {}}), "structured_outputs"),
            (json!({"structured_outputs": {"json": "{"}}), "structured_outputs.json"),
            (json!({"structured_outputs": {"structural_tag": "x"}}), "structured_outputs.structural_tag"),
            (json!({"structured_outputs": {"regex": "a", "choice": ["b"]}}), "structured_outputs.choice"),
            (json!({"regex": "a", "ebnf": "b"}), "ebnf"),
            (json!({"regex": 5}), "regex"),
            (json!({"guided_choice": []}), "guided_choice"),
            (json!({"guided_choice": ["a", 5]}), "guided_choice[1]"),
            (json!({"guided_json": [1]}), "guided_json"),
        ] {
            assert_eq!(read(body.clone()).unwrap_err().param(), Some(param), "{body}");
        }
    }
}
