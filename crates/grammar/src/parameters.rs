//! The arguments of a tool call as K3 writes them: one element per argument, strings raw, everything else as JSON.
//!
//! Where a schema is an object of declared properties whose types are plain, arguments come in the declared order and
//! additional ones do not come: some of what the schema allows, never anything else. Any other schema (alternatives at
//! the top, patterns of names, references to itself, patterns and formats of strings …) is enforced on K3's other form,
//! one `json` element that holds all arguments.

use serde_json::{Map, Value, json};

use crate::chat::{Arguments, Markup};
use crate::lark::{Lark, literal};

/// Longest chain of references and alternatives that is followed.
const MAX_STEPS: usize = 16;
/// Words that say nothing about what is valid.
const ANNOTATIONS: &[&str] = &["$comment", "$defs", "default", "definitions", "description", "examples", "title"];

/// A way to write the value of an argument.
struct Variant {
    /// K3's word for its type.
    kind: &'static str,
    value: Form,
}

enum Form {
    /// Raw text, of so many characters.
    Text { least: u64, most: Option<u64> },
    /// Raw text, one of these.
    Texts(Vec<String>),
    /// JSON of this schema.
    Json(Value),
}

/// The body of a rule for all arguments of a tool.
pub(crate) fn write(lark: &mut Lark, markup: &Markup<'_>, arguments: &Arguments) -> String {
    match arguments {
        Arguments::Any => any(lark, markup),
        Arguments::Schema(schema) => {
            let elements = properties(schema).map(|list| elements(lark, markup, list));
            elements.unwrap_or_else(|| whole(lark, markup, schema))
        }
    }
}

/// Any arguments of the right form.
fn any(lark: &mut Lark, markup: &Markup<'_>) -> String {
    let variants = variants((&Value::Bool(true), &Value::Bool(true)), 0).unwrap_or_default();
    let forms: Vec<String> = variants.into_iter().map(|variant| value(lark, variant).1).collect();
    // The head is free text here: which key, and which of the types.
    let head = "/argument key=\"[^\"<>]{1,256}\" type=\"(string|number|boolean|null|object|array)\"/";
    let [open, sep] = [markup.tokens.open, markup.tokens.sep].map(|id| format!("<[{id}]>"));
    format!("({open} {head} {sep} ({}) {})*", forms.join(" | "), markup.close("argument"))
}

/// All arguments in one element.
fn whole(lark: &mut Lark, markup: &Markup<'_>, schema: &Value) -> String {
    let json = lark.json(schema);
    format!("{} {json} {}", markup.open("json", &[("type", "object")]), markup.close("json"))
}

/// One element per argument, optional ones with a question mark.
fn elements(lark: &mut Lark, markup: &Markup<'_>, list: Vec<Property>) -> String {
    let mut body = String::new();
    for Property { name, required, variants } in list {
        let forms: Vec<String> = variants
            .into_iter()
            .map(|variant| {
                let (kind, form) = value(lark, variant);
                format!("{} {form}", markup.open("argument", &[("key", &name), ("type", kind)]))
            })
            .collect();
        let mark = if required { "" } else { "?" };
        body.push_str(&format!(" (({}) {}){mark}", forms.join(" | "), markup.close("argument")));
    }
    if body.is_empty() { "\"\"".to_owned() } else { body }
}

fn value(lark: &mut Lark, variant: Variant) -> (&'static str, String) {
    let form = match variant.value {
        Form::Text { least: 0, most: None } => "/(?s:.*)/".to_owned(),
        Form::Text { least, most } => {
            format!("/(?s:.{{{least},{}}})/", most.map_or_else(String::new, |most| most.to_string()))
        }
        Form::Texts(texts) => {
            let texts: Vec<String> = texts.iter().map(|text| literal(text)).collect();
            format!("({})", texts.join(" | "))
        }
        Form::Json(schema) => lark.json(&schema),
    };
    (variant.kind, form)
}

struct Property {
    name: String,
    required: bool,
    variants: Vec<Variant>,
}

/// The properties of a schema that is nothing but an object of them, each of a plain type.
fn properties(schema: &Value) -> Option<Vec<Property>> {
    let map = schema.as_object()?;
    let known = ["type", "properties", "required", "additionalProperties", "$schema"];
    if map.keys().any(|key| !known.contains(&key.as_str()) && !ANNOTATIONS.contains(&key.as_str())) {
        return None;
    }
    let is_object = match map.get("type") {
        None => map.contains_key("properties"),
        Some(kind) => kind == "object" || kind == &json!(["object"]),
    };
    let closed = map.get("additionalProperties") == Some(&Value::Bool(false));
    let none = Map::new();
    let declared = map.get("properties").and_then(Value::as_object).unwrap_or(&none);
    let open = map.get("additionalProperties").is_some_and(Value::is_object);
    if !is_object || open || (declared.is_empty() && !closed) || !refers_to_definitions(schema) {
        return None;
    }
    let required: Vec<&str> =
        map.get("required").and_then(Value::as_array).into_iter().flatten().filter_map(Value::as_str).collect();
    if required.iter().any(|name| !declared.contains_key(*name)) {
        return None;
    }
    let property = |(name, of): (&String, &Value)| {
        let variants = variants((schema, of), 0)?;
        // A key that the head of an element cannot hold.
        let plain = !name.is_empty() && !name.chars().any(char::is_control);
        plain.then(|| Property { name: name.clone(), required: required.contains(&name.as_str()), variants })
    };
    declared.iter().map(property).collect()
}

/// Whether every reference is to a definition, so that parts of the schema can be taken out with those.
fn refers_to_definitions(value: &Value) -> bool {
    match value {
        Value::Array(items) => items.iter().all(refers_to_definitions),
        Value::Object(map) => map.iter().all(|(key, value)| match (key.as_str(), value) {
            ("$ref", Value::String(target)) => target.starts_with("#/$defs/") || target.starts_with("#/definitions/"),
            _ => refers_to_definitions(value),
        }),
        _ => true,
    }
}

/// The ways to write a value, by its types; `None` where its schema is not plain.
fn variants((root, schema): (&Value, &Value), steps: usize) -> Option<Vec<Variant>> {
    let map = match schema {
        Value::Bool(true) => return Some(all_types(root)),
        Value::Object(map) if steps < MAX_STEPS => map,
        _ => return None,
    };
    let words: Vec<&str> = map.keys().map(String::as_str).filter(|key| !ANNOTATIONS.contains(key)).collect();
    match words.as_slice() {
        [] => Some(all_types(root)),
        ["$ref"] => {
            let pointer = map["$ref"].as_str()?.strip_prefix("#/")?;
            let target = root.pointer(&format!("/{pointer}"))?;
            variants((root, target), steps + 1)
        }
        ["anyOf"] => {
            let lists = map["anyOf"].as_array()?.iter().map(|of| variants((root, of), steps + 1));
            Some(lists.collect::<Option<Vec<_>>>()?.into_iter().flatten().collect())
        }
        ["enum"] | ["const"] => listed(map, None),
        ["type", "enum"] | ["enum", "type"] | ["type", "const"] | ["const", "type"] => listed(map, map.get("type")),
        words if words.contains(&"type") => typed(root, map),
        _ => None,
    }
}

fn all_types(root: &Value) -> Vec<Variant> {
    let text = Variant { kind: "string", value: Form::Text { least: 0, most: None } };
    let others = ["number", "boolean", "null", "object", "array"];
    let json = |kind| Variant { kind, value: Form::Json(within(root, &json!({"type": kind}))) };
    std::iter::once(text).chain(others.map(json)).collect()
}

/// Values that are listed, of the types asked for, grouped by type.
fn listed(map: &Map<String, Value>, types: Option<&Value>) -> Option<Vec<Variant>> {
    let values: Vec<Value> = match (map.get("enum"), map.get("const")) {
        (Some(Value::Array(values)), None) => values.clone(),
        (None, Some(value)) => vec![value.clone()],
        _ => return None,
    };
    let allowed = |value: &&Value| types.is_none_or(|types| has_type(value, types));
    let mut variants = Vec::new();
    for kind in ["string", "number", "boolean", "null", "object", "array"] {
        let of_kind: Vec<Value> = values.iter().filter(|v| kind_of(v) == kind).filter(allowed).cloned().collect();
        if of_kind.is_empty() {
            continue;
        }
        let value = match kind {
            "string" => Form::Texts(of_kind.iter().filter_map(|v| v.as_str().map(str::to_owned)).collect()),
            _ => Form::Json(json!({"enum": of_kind})),
        };
        variants.push(Variant { kind, value });
    }
    (!variants.is_empty()).then_some(variants)
}

fn kind_of(value: &Value) -> &'static str {
    match value {
        Value::String(_) => "string",
        Value::Number(_) => "number",
        Value::Bool(_) => "boolean",
        Value::Null => "null",
        Value::Object(_) => "object",
        Value::Array(_) => "array",
    }
}

fn has_type(value: &Value, types: &Value) -> bool {
    let fits = |name: &str| match name {
        "integer" => value.is_number() && value.as_f64().is_some_and(|number| number.fract() == 0.0),
        name => kind_of(value) == name,
    };
    match types {
        Value::String(name) => fits(name),
        Value::Array(names) => names.iter().filter_map(Value::as_str).any(fits),
        _ => false,
    }
}

/// A schema with `type`, one or several.
fn typed(root: &Value, map: &Map<String, Value>) -> Option<Vec<Variant>> {
    let names: Vec<&str> = match map.get("type")? {
        Value::String(name) => vec![name],
        Value::Array(names) => names.iter().map(Value::as_str).collect::<Option<_>>()?,
        _ => return None,
    };
    let variant = |name: &str| {
        if name == "string" {
            return Some(Variant { kind: "string", value: text(map)? });
        }
        let kind = match name {
            "integer" | "number" => "number",
            "boolean" => "boolean",
            "null" => "null",
            "object" => "object",
            "array" => "array",
            _ => return None,
        };
        let mut schema = map.clone();
        schema.insert("type".to_owned(), Value::from(name));
        Some(Variant { kind, value: Form::Json(within(root, &Value::Object(schema))) })
    };
    names.into_iter().map(variant).collect()
}

/// A string's raw text, where nothing but its length is bounded.
fn text(map: &Map<String, Value>) -> Option<Form> {
    if map.contains_key("pattern")
        || map.contains_key("format")
        || map.contains_key("enum")
        || map.contains_key("const")
    {
        return None;
    }
    let combined = ["anyOf", "oneOf", "allOf", "$ref"];
    if combined.iter().any(|key| map.contains_key(*key)) {
        return None;
    }
    let count = |key: &str| map.get(key).and_then(|value| value.as_f64()).map(|value| value as u64);
    let (least, most) = (count("minLength").unwrap_or(0), count("maxLength"));
    most.is_none_or(|most| most >= least).then_some(Form::Text { least, most })
}

/// A part of a schema on its own, with the definitions that it may refer to.
fn within(root: &Value, schema: &Value) -> Value {
    let mut schema = schema.clone();
    if let (Some(part), Some(root)) = (schema.as_object_mut(), root.as_object()) {
        for key in crate::schema::DEFINITIONS {
            if let Some(definitions) = root.get(key) {
                part.insert(key.to_owned(), definitions.clone());
            }
        }
    }
    schema
}
