//! Checks a JSON schema before it is compiled: its size and depth, and that every keyword is understood, by path.

use serde_json::{Map, Value};

use crate::keywords::{ENFORCED, FORMATS, REFUSED, TYPES};
use crate::numbers::{is_inexact, number_format, wrong_bound, wrong_exclusive_bound, wrong_step};
use crate::pattern::wrong_pattern;
use crate::{GrammarError, Limits};

/// Keywords that hold schemas to refer to.
pub(crate) const DEFINITIONS: [&str; 2] = ["$defs", "definitions"];
/// Longest excerpt of a value in an error, in characters.
const EXCERPT_CHARS: usize = 80;

/// Checks a whole schema.
///
/// # Errors
/// `Limit`, `Keyword`, `Schema`.
pub(crate) fn check(schema: &Value, limits: &Limits) -> Result<(), GrammarError> {
    let bytes = schema.to_string().len();
    if bytes > limits.max_schema_bytes {
        let (what, limit) = ("the schema's size in bytes is".to_owned(), limits.max_schema_bytes);
        return Err(GrammarError::Limit { what, found: bytes, limit });
    }
    Checker { root: schema, max_depth: limits.max_schema_depth }.schema(schema, &mut Vec::new(), 1)
}

/// The members of a schema that are schemas themselves, with their places.
pub(crate) fn children(map: &Map<String, Value>) -> Vec<(Vec<String>, &Value)> {
    let mut found = Vec::new();
    for (key, value) in map {
        match (key.as_str(), value) {
            ("properties" | "patternProperties" | "$defs" | "definitions", Value::Object(members)) => {
                found.extend(members.iter().map(|(name, schema)| (vec![key.clone(), name.clone()], schema)));
            }
            ("anyOf" | "oneOf" | "allOf" | "prefixItems" | "items", Value::Array(items)) => {
                found.extend(items.iter().enumerate().map(|(i, schema)| (vec![key.clone(), i.to_string()], schema)));
            }
            ("items" | "additionalItems" | "additionalProperties", schema) => found.push((vec![key.clone()], schema)),
            _ => {}
        }
    }
    found
}

/// Whether a keyword means the same without those beside it.
pub(crate) fn stands_alone(key: &str) -> bool {
    matches!(key, "pattern" | "format" | "multipleOf" | "minimum" | "maximum" | "enum" | "const")
        || matches!(key, "minLength" | "maxLength" | "minItems" | "maxItems" | "minProperties" | "maxProperties")
}

/// A place in words: `properties.a.anyOf.0`.
pub(crate) fn path(place: &[String]) -> String {
    place.join(".")
}

struct Checker<'a> {
    root: &'a Value,
    max_depth: usize,
}

impl Checker<'_> {
    fn schema(&self, schema: &Value, place: &mut Vec<String>, depth: usize) -> Result<(), GrammarError> {
        if depth > self.max_depth {
            let what = format!(
                "the depth of schemas within schemas below `{}` is at least",
                path(&place[..2.min(place.len())])
            );
            return Err(GrammarError::Limit { what, found: depth, limit: self.max_depth });
        }
        let map = match schema {
            Value::Bool(_) => return Ok(()),
            Value::Object(map) => map,
            other => return Err(wrong(place, None, other, "it must be a schema: an object, true or false")),
        };
        for (key, value) in map {
            self.keyword((place, map), (key, value))?;
        }
        for (steps, child) in children(map) {
            let len = place.len();
            place.extend(steps);
            self.schema(child, place, depth + 1)?;
            place.truncate(len);
        }
        Ok(())
    }

    fn keyword(
        &self,
        (place, schema): (&[String], &Map<String, Value>),
        (key, value): (&str, &Value),
    ) -> Result<(), GrammarError> {
        let harmless = key == "uniqueItems" && value == &Value::Bool(false);
        if let Some((keyword, rule)) = REFUSED.iter().find(|(keyword, _)| *keyword == key && !harmless) {
            let path = path(&[place, &[key.to_owned()]].concat());
            return Err(GrammarError::Keyword { path, keyword: (*keyword).to_owned(), rule });
        }
        if !ENFORCED.contains(&key) {
            return Ok(());
        }
        let problem = match key {
            "type" => wrong_type(value),
            "enum" if value.as_array().is_none_or(Vec::is_empty) => Some("it must be an array, not empty"),
            "enum" | "const" => {
                is_inexact(value).then_some("numbers from 2^53 on would be rounded; send them as strings")
            }
            "required" => {
                let names = value.as_array().is_some_and(|items| items.iter().all(Value::is_string));
                (!names).then_some("it must be an array of strings")
            }
            "properties" | "patternProperties" if !value.is_object() => Some("it must be an object of schemas"),
            "patternProperties" => value.as_object().and_then(|all| all.keys().find_map(|name| wrong_pattern(name))),
            "anyOf" | "oneOf" | "allOf" => {
                let items = value.as_array().is_some_and(|items| !items.is_empty());
                (!items).then_some("it must be an array of schemas, not empty")
            }
            "prefixItems" => (!value.is_array()).then_some("it must be an array of schemas"),
            "minItems" | "maxItems" | "minLength" | "maxLength" | "minProperties" | "maxProperties" => {
                (!is_count(value)).then_some("it must be an integer from 0")
            }
            "minimum" | "maximum" => wrong_bound(key, value),
            // Draft 4 has a boolean here, which the library refuses with its reason.
            "exclusiveMinimum" | "exclusiveMaximum" => wrong_exclusive_bound(value),
            "multipleOf" => wrong_step(value),
            "pattern" => value.as_str().map_or(Some("it must be a string"), wrong_pattern),
            "format" => {
                let known = value.as_str().is_some_and(|name| FORMATS.contains(&name));
                (!known && number_format(schema).is_none()).then_some("it is no format that can be enforced")
            }
            "$ref" => self.wrong_reference(value),
            _ => None,
        };
        problem.map_or(Ok(()), |rule| Err(wrong(place, Some(key), value, rule)))
    }

    fn wrong_reference(&self, value: &Value) -> Option<&'static str> {
        let Some(target) = value.as_str() else { return Some("it must be a string") };
        let Some(pointer) = target.strip_prefix('#') else {
            return Some("only references within the schema (`#/…`) are followed");
        };
        let found = self.root.pointer(&pointer.replace("%25", "%").replace("%22", "\""));
        found.is_none().then_some("nothing stands at that place of the schema")
    }
}

fn wrong_type(value: &Value) -> Option<&'static str> {
    let known = |value: &Value| value.as_str().is_some_and(|name| TYPES.contains(&name));
    let fine = match value {
        Value::Array(items) => !items.is_empty() && items.iter().all(known),
        other => known(other),
    };
    (!fine).then_some("it must be one or more of array, boolean, integer, null, number, object, string")
}

fn is_count(value: &Value) -> bool {
    value.as_u64().is_some() || value.as_f64().is_some_and(|number| number >= 0.0 && number.fract() == 0.0)
}

/// A place, what stands there, and what may.
pub(crate) fn wrong(place: &[String], key: Option<&str>, value: &Value, rule: &str) -> GrammarError {
    let steps: Vec<String> = place.iter().cloned().chain(key.map(str::to_owned)).collect();
    let text = value.to_string();
    let found = match text.char_indices().nth(EXCERPT_CHARS) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text,
    };
    GrammarError::Schema { path: path(&steps), found, rule: rule.to_owned() }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn problem(schema: Value) -> String {
        check(&schema, &Limits::default()).unwrap_err().to_string()
    }

    #[test]
    fn each_problem_names_its_place() {
        let cases = [
            (json!([]), "`` in it is []"),
            (json!({"type": "objekt"}), "`type` in it is \"objekt\""),
            (json!({"type": 5}), "`type` in it is 5"),
            (json!({"type": []}), "`type` in it is []"),
            (json!({"properties": {"a": {"anyOf": [{}, {"not": {}}]}}}), "it uses `not` at `properties.a.anyOf.1.not`"),
            (json!({"items": {"uniqueItems": true}}), "it uses `uniqueItems` at `items.uniqueItems`"),
            (json!({"$defs": {"x": {"format": "isbn"}}}), "`$defs.x.format` in it is \"isbn\""),
            (json!({"items": {"$ref": "#/$defs/x"}}), "`items.$ref`"),
            (json!({"$ref": "https://example.com/a.json"}), "`$ref`"),
            (json!({"properties": {"a": 5}}), "`properties.a` in it is 5"),
            (json!({"required": "a"}), "`required`"),
            (json!({"enum": []}), "`enum`"),
            (json!({"minLength": -1}), "`minLength`"),
            (json!({"items": {"multipleOf": 0}}), "`items.multipleOf` in it is 0; it must be a number greater than 0"),
            (json!({"type": "string", "format": "int64"}), "`format` in it is \"int64\""),
            (json!({"type": ["integer", "string"], "format": "int32"}), "`format` in it is \"int32\""),
            (json!({"x-guidance": {"lenient": true}}), "it uses `x-guidance` at `x-guidance`"),
        ];
        for (schema, expected) in cases {
            let found = problem(schema.clone());
            assert!(found.starts_with(expected), "{schema}: {found}");
        }
    }

    #[test]
    fn what_says_nothing_is_ignored() {
        let schema = json!({"title": "t", "x-order": 1, "nullable": true, "uniqueItems": false, "default": {"not": 1},
            "properties": {"not": {"type": "string"}, "n": {"type": ["integer", "null"], "format": "uint32"}}, "$defs": {"a": {"$ref": "#"}}});
        assert_eq!(check(&schema, &Limits::default()), Ok(()));
        assert_eq!(check(&json!(true), &Limits::default()), Ok(()));
    }

    #[test]
    fn size_and_depth_are_limited() {
        let long = json!({"enum": vec!["x".repeat(1000); 1000]});
        assert!(problem(long).contains("bytes"));
        let mut nested = json!({});
        for _ in 0..70 {
            nested = json!({"anyOf": [nested]});
        }
        assert!(problem(nested).contains("depth"));
    }
}
