//! Tools, the choice among them, and the format asked of the answer.
//!
//! What is checked here is the form of a request; whether a schema can be enforced is for the grammar to say.

use serde_json::Value;

use crate::ProtocolError;
use crate::fields::{Fields, invalid};

/// Longest name of a tool, in bytes.
const MAX_NAME_BYTES: usize = 256;
/// Most tools of a request.
const MAX_TOOLS: usize = 1024;

/// Declared tools, as the client wrote them.
#[derive(Debug, Clone, PartialEq)]
pub struct Tools {
    written: Vec<Value>,
    functions: Vec<Function>,
}

/// What a tool is called with.
#[derive(Debug, Clone, PartialEq)]
pub struct Function {
    /// The tool's name.
    pub name: String,
    /// The schema of its arguments; `None` where there are none.
    pub parameters: Option<Value>,
    /// Whether calls are held to the schema even where calling is up to the model.
    pub strict: Strictness,
}

/// Whether a schema is a promise.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Strictness {
    /// The model is told.
    #[default]
    Told,
    /// The output is held to it.
    Held,
}

impl Tools {
    pub(crate) fn read(fields: &mut Fields) -> Result<Option<Self>, ProtocolError> {
        let path = fields.path("tools");
        let Some(written) = fields.array("tools")?.filter(|items| !items.is_empty()) else { return Ok(None) };
        Self::of(&path, written).map(Some)
    }

    /// Tools at `path`, in the shape of chat completions.
    pub(crate) fn of(path: &str, written: Vec<Value>) -> Result<Self, ProtocolError> {
        if written.len() > MAX_TOOLS {
            return Err(invalid(path, &Value::Array(written), "at most 1024 tools fit in one request"));
        }
        let read = |(i, item): (usize, &Value)| read_tool(Fields::of(format!("{path}[{i}]"), item.clone())?);
        let functions: Vec<Function> = written.iter().enumerate().map(read).collect::<Result<_, _>>()?;
        Ok(Tools { written, functions })
    }

    /// The functions, in the order of the declarations.
    pub fn functions(&self) -> &[Function] {
        &self.functions
    }

    /// The declarations as one JSON array.
    pub fn into_value(self) -> Value {
        Value::Array(self.written)
    }
}

/// Which tools the answer may or must call.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum ToolChoice {
    /// As the model sees fit.
    #[default]
    Auto,
    /// None may be called.
    None,
    /// Some must be called.
    Required,
    /// This one must be called.
    Named(String),
}

impl ToolChoice {
    /// Reads `tool_choice`; what it demands must be among the tools that are `known`.
    pub(crate) fn read(fields: &mut Fields, known: &[&Function]) -> Result<Self, ProtocolError> {
        const RULE: &str = "it must be `auto`, `none`, `required` or name a function";
        let choice = match fields.take("tool_choice") {
            None => return Ok(ToolChoice::Auto),
            Some(Value::String(word)) => match word.as_str() {
                "auto" => ToolChoice::Auto,
                "none" => ToolChoice::None,
                "required" => ToolChoice::Required,
                _ => return Err(fields.refuse("tool_choice", &Value::String(word), RULE)),
            },
            Some(value @ Value::Object(_)) => Self::named(Fields::of(fields.path("tool_choice"), value)?)?,
            Some(other) => return Err(fields.refuse("tool_choice", &other, RULE)),
        };
        match &choice {
            ToolChoice::Required | ToolChoice::Named(_) if known.is_empty() => {
                let word = if choice == ToolChoice::Required { "required" } else { "a function" };
                Err(fields.refuse("tool_choice", &Value::from(word), "it needs `tools`"))
            }
            ToolChoice::Named(name) if known.iter().all(|known| known.name != *name) => {
                Err(fields.refuse("tool_choice", &Value::from(name.as_str()), "no tool of this name is declared"))
            }
            _ => Ok(choice),
        }
    }

    fn named(mut choice: Fields) -> Result<Self, ProtocolError> {
        let kind = choice.string("type")?.unwrap_or_else(|| "function".to_owned());
        if kind != "function" {
            return Err(choice.refuse("type", &Value::String(kind), "only `function` can be chosen by name"));
        }
        // The name stands in `function` in chat completions, beside the type in responses.
        let mut named = match choice.object("function")? {
            Some(function) => function,
            None => choice,
        };
        Ok(ToolChoice::Named(named.required_string("name")?))
    }
}

/// Whether one answer may hold several calls.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum ParallelCalls {
    /// As many as the model sees fit.
    #[default]
    Several,
    /// One at most.
    One,
}

impl ParallelCalls {
    pub(crate) fn read(fields: &mut Fields) -> Result<Self, ProtocolError> {
        Ok(if fields.boolean("parallel_tool_calls")? == Some(false) {
            ParallelCalls::One
        } else {
            ParallelCalls::Several
        })
    }
}

/// The format the answer is asked to have.
#[derive(Debug, Clone, PartialEq, Default)]
pub enum ResponseFormat {
    /// Any text.
    #[default]
    Text,
    /// A JSON object.
    JsonObject,
    /// JSON that matches a schema.
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
                let named = format.object("json_schema")?.ok_or_else(|| format.missing("json_schema", rule))?;
                read_schema(named)
            }
            _ => {
                let rule = "it must be `text`, `json_object` or `json_schema`";
                Err(format.refuse("type", &Value::String(kind), rule))
            }
        }
    }
}

/// A named schema. It is enforced whatever `strict` says: that is what a format is asked for.
pub(crate) fn read_schema(mut named: Fields) -> Result<ResponseFormat, ProtocolError> {
    named.boolean("strict")?;
    match named.take("schema") {
        Some(schema @ Value::Object(_)) => Ok(ResponseFormat::JsonSchema(schema)),
        Some(other) => Err(named.refuse("schema", &other, "it must be an object")),
        None => Err(named.missing("schema", "it must be an object")),
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

fn read_tool(mut tool: Fields) -> Result<Function, ProtocolError> {
    if let Some(kind) = tool.string("type")?.filter(|kind| kind != "function") {
        return Err(tool.refuse("type", &Value::String(kind), "only `function` tools are understood"));
    }
    let rule = "it must describe the function";
    let mut function = tool.object("function")?.ok_or_else(|| tool.missing("function", rule))?;
    let name = function.required_string("name")?;
    check_name(&function.path("name"), &name)?;
    function.string("description")?;
    let parameters = match function.take("parameters") {
        Some(schema @ Value::Object(_)) => Some(schema),
        Some(other) => return Err(function.refuse("parameters", &other, "it must be an object")),
        None => None,
    };
    let strict = match function.boolean("strict")? {
        Some(true) => Strictness::Held,
        _ => Strictness::Told,
    };
    Ok(Function { name, parameters, strict })
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
    fn strict_tools_and_named_choices() {
        let strict = json!({"tools": [{"type": "function", "function": {"name": "f", "strict": true}}]});
        let tools = Tools::read(&mut fields(strict)).unwrap().unwrap();
        let expected = Function { name: "f".to_owned(), parameters: None, strict: Strictness::Held };
        assert_eq!(tools.functions(), [expected]);
        let known = [&tools.functions()[0]];
        let choose = |choice: Value| ToolChoice::read(&mut fields(json!({"tool_choice": choice})), &known);
        let named = Ok(ToolChoice::Named("f".to_owned()));
        assert_eq!(choose(json!({"type": "function", "function": {"name": "f"}})), named);
        assert_eq!(choose(json!({"type": "function", "name": "f"})), named);
        for (bad, param) in [
            (json!({"type": "function", "function": {"name": "g"}}), "tool_choice"),
            (json!({"type": "function", "function": {}}), "tool_choice.function.name"),
            (json!({"type": "custom", "name": "f"}), "tool_choice.type"),
            (json!({"function": "f"}), "tool_choice.function"),
        ] {
            assert_eq!(choose(bad.clone()).unwrap_err().param(), Some(param), "{bad}");
        }
        let named = json!({"tool_choice": {"type": "function", "function": {"name": "f"}}});
        assert_eq!(ToolChoice::read(&mut fields(named), &[]).unwrap_err().param(), Some("tool_choice"));
    }

    #[test]
    fn formats_and_choices() {
        let format = |value| ResponseFormat::read(&mut fields(json!({"response_format": value})));
        assert_eq!(format(json!(null)), Ok(ResponseFormat::Text));
        assert_eq!(format(json!({"type": "json_object"})), Ok(ResponseFormat::JsonObject));
        let schema = json!({"type": "object"});
        let named = json!({"type": "json_schema", "json_schema": {"name": "x", "strict": true, "schema": schema}});
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
            let tools = Tools::of("tools", vec![json!({"function": {"name": "f"}})]).unwrap();
            let known = [&tools.functions()[0]];
            assert_eq!(ToolChoice::read(&mut fields(json!({"tool_choice": word})), &known), Ok(choice));
        }
        assert!(ToolChoice::read(&mut fields(json!({"tool_choice": "maybe"})), &[]).is_err());
    }
}
