//! Tools, the choice among them, and the format asked of the answer.
//!
//! `tool_choice: required` and `response_format` become the instructions Kimi K3 is trained on. Enforcement by grammar
//! is not offered yet, so what only makes sense enforced (`strict: true`, a named tool) is refused, not pretended.

use serde_json::Value;

use crate::ProtocolError;
use crate::fields::{Fields, invalid};

/// Longest name of a tool, in bytes.
const MAX_NAME_BYTES: usize = 256;
/// What is said where enforcement is asked for.
const NOT_ENFORCED: &str = "output is not enforced by a grammar here; leave it out or set it to false";

/// Declared tools, as the client wrote them.
#[derive(Debug, Clone, PartialEq)]
pub struct Tools(Vec<Value>);

impl Tools {
    pub(crate) fn read(fields: &mut Fields) -> Result<Option<Self>, ProtocolError> {
        let path = fields.path("tools");
        let Some(items) = fields.array("tools")?.filter(|items| !items.is_empty()) else { return Ok(None) };
        for (i, item) in items.iter().enumerate() {
            check_tool(Fields::of(format!("{path}[{i}]"), item.clone())?)?;
        }
        Ok(Some(Tools(items)))
    }

    /// The declarations as one JSON array.
    pub fn into_value(self) -> Value {
        Value::Array(self.0)
    }
}

/// Which tools the answer may or must call.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum ToolChoice {
    /// As the model sees fit.
    #[default]
    Auto,
    /// It is told to call none.
    None,
    /// It is told to call some.
    Required,
}

impl ToolChoice {
    pub(crate) fn read(fields: &mut Fields) -> Result<Self, ProtocolError> {
        const RULE: &str = "it must be `auto`, `none` or `required`";
        match fields.take("tool_choice") {
            None => Ok(ToolChoice::Auto),
            Some(Value::String(word)) => match word.as_str() {
                "auto" => Ok(ToolChoice::Auto),
                "none" => Ok(ToolChoice::None),
                "required" => Ok(ToolChoice::Required),
                _ => Err(fields.refuse("tool_choice", &Value::String(word), RULE)),
            },
            Some(other @ Value::Object(_)) => {
                let rule = "forcing one named tool needs a grammar, which is not offered here; use `required`";
                Err(fields.refuse("tool_choice", &other, rule))
            }
            Some(other) => Err(fields.refuse("tool_choice", &other, RULE)),
        }
    }
}

/// The format the answer is asked to have.
#[derive(Debug, Clone, PartialEq, Default)]
pub enum ResponseFormat {
    /// Any text.
    #[default]
    Text,
    /// It is told to be JSON.
    JsonObject,
    /// It is told to match a schema.
    JsonSchema(Value),
}

impl ResponseFormat {
    pub(crate) fn read(fields: &mut Fields) -> Result<Self, ProtocolError> {
        let Some(mut format) = fields.object("response_format")? else { return Ok(ResponseFormat::Text) };
        let kind = format.required_string("type")?;
        match kind.as_str() {
            "text" => Ok(ResponseFormat::Text),
            "json_object" => Ok(ResponseFormat::JsonObject),
            "json_schema" => {
                let rule = "it must hold the schema";
                let mut named = format.object("json_schema")?.ok_or_else(|| format.missing("json_schema", rule))?;
                refuse_strict(&mut named)?;
                match named.take("schema") {
                    Some(schema @ Value::Object(_)) => Ok(ResponseFormat::JsonSchema(schema)),
                    Some(other) => Err(named.refuse("schema", &other, "it must be an object")),
                    None => Err(named.missing("schema", "it must be an object")),
                }
            }
            _ => {
                let rule = "it must be `text`, `json_object` or `json_schema`";
                Err(format.refuse("type", &Value::String(kind), rule))
            }
        }
    }
}

/// A tool's name: `[A-Za-z_][A-Za-z0-9_]*`, at most 256 bytes.
pub(crate) fn check_name(path: &str, name: &str) -> Result<(), ProtocolError> {
    let first = |c: char| c.is_ascii_alphabetic() || c == '_';
    let rest = |c: char| c.is_ascii_alphanumeric() || c == '_';
    if name.starts_with(first) && name.chars().all(rest) && name.len() <= MAX_NAME_BYTES {
        return Ok(());
    }
    let rule = "names are letters, digits and underscores, not starting with a digit, at most 256";
    Err(invalid(path, &Value::from(name), rule))
}

fn check_tool(mut tool: Fields) -> Result<(), ProtocolError> {
    if let Some(kind) = tool.string("type")?.filter(|kind| kind != "function") {
        return Err(tool.refuse("type", &Value::String(kind), "only `function` tools are understood"));
    }
    let rule = "it must describe the function";
    let mut function = tool.object("function")?.ok_or_else(|| tool.missing("function", rule))?;
    let name = function.required_string("name")?;
    check_name(&function.path("name"), &name)?;
    function.string("description")?;
    function.object("parameters")?;
    refuse_strict(&mut function)
}

fn refuse_strict(fields: &mut Fields) -> Result<(), ProtocolError> {
    match fields.boolean("strict")? {
        Some(true) => Err(fields.refuse("strict", &Value::Bool(true), NOT_ENFORCED)),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn fields(value: Value) -> Fields {
        Fields::of(String::new(), value).unwrap()
    }

    #[test]
    fn tool_names_follow_the_rule() {
        let tool = |name: &str| json!({"tools": [{"type": "function", "function": {"name": name, "parameters": {}}}]});
        for good in ["f", "_f", "get_weather2", &"x".repeat(256)] {
            assert!(Tools::read(&mut fields(tool(good))).unwrap().is_some(), "{good}");
        }
        for bad in ["", "a<b", "2f", "get-weather", "é", &"x".repeat(257)] {
            let error = Tools::read(&mut fields(tool(bad))).unwrap_err();
            assert_eq!(error.param(), Some("tools[0].function.name"), "{bad}");
        }
    }

    #[test]
    fn tools_are_kept_as_written() {
        let tools = json!([{"function": {"name": "f", "extra": [1]}, "type": "function"}]);
        let read = Tools::read(&mut fields(json!({"tools": tools}))).unwrap().unwrap();
        assert_eq!(read.into_value().to_string(), tools.to_string());
        assert_eq!(Tools::read(&mut fields(json!({"tools": []}))), Ok(None));
    }

    #[test]
    fn what_only_a_grammar_could_keep_is_refused() {
        let strict = json!({"tools": [{"type": "function", "function": {"name": "f", "strict": true}}]});
        assert_eq!(Tools::read(&mut fields(strict)).unwrap_err().param(), Some("tools[0].function.strict"));
        let named = json!({"tool_choice": {"type": "function", "function": {"name": "f"}}});
        assert_eq!(ToolChoice::read(&mut fields(named)).unwrap_err().param(), Some("tool_choice"));
        let schema = json!({"response_format":
            {"type": "json_schema", "json_schema": {"strict": true, "schema": {"type": "object"}}}});
        let error = ResponseFormat::read(&mut fields(schema)).unwrap_err();
        assert_eq!(error.param(), Some("response_format.json_schema.strict"));
    }

    #[test]
    fn formats_and_choices() {
        let format = |value| ResponseFormat::read(&mut fields(json!({"response_format": value})));
        assert_eq!(format(json!(null)), Ok(ResponseFormat::Text));
        assert_eq!(format(json!({"type": "json_object"})), Ok(ResponseFormat::JsonObject));
        let schema = json!({"type": "object"});
        let named = json!({"type": "json_schema", "json_schema": {"name": "x", "strict": false, "schema": schema}});
        assert_eq!(format(named), Ok(ResponseFormat::JsonSchema(schema)));
        for bad in [json!({"type": "xml"}), json!({}), json!("json"), json!({"type": "json_schema"})] {
            assert!(format(bad).is_err());
        }
        for bad in [json!(true), json!(false), json!([]), json!("x"), json!(5), json!(null)] {
            assert!(format(json!({"type": "json_schema", "json_schema": {"schema": bad}})).is_err());
        }
        for (word, choice) in
            [("auto", ToolChoice::Auto), ("none", ToolChoice::None), ("required", ToolChoice::Required)]
        {
            assert_eq!(ToolChoice::read(&mut fields(json!({"tool_choice": word}))), Ok(choice));
        }
        assert!(ToolChoice::read(&mut fields(json!({"tool_choice": "maybe"}))).is_err());
    }
}
