//! A validator for the JSON schemas that tests enforce: the keywords they use, and a fault for any other. Grammars meet an
//! independent one in `tests/schemas`.

use regex::Regex;
use serde_json::{Map, Value};

/// Longest chain of references.
const MAX_STEPS: usize = 64;
const ANNOTATIONS: &[&str] = &["$defs", "$id", "components", "default", "description", "format", "title"];

/// Whether `schema` allows `value`.
pub fn is_valid(schema: &Value, value: &Value) -> bool {
    allows((schema, schema), value, 0)
}

fn allows((root, schema): (&Value, &Value), value: &Value, steps: usize) -> bool {
    assert!(steps < MAX_STEPS, "references without end in {root}");
    let map = match schema {
        Value::Bool(allowed) => return *allowed,
        other => other.as_object().unwrap_or_else(|| panic!("no schema: {other}")),
    };
    let sub = |schema: &Value, value: &Value| allows((root, schema), value, steps + 1);
    let number =
        |limit: &Value, holds: fn(f64, f64) -> bool| value.as_f64().is_none_or(|n| holds(n, limit.as_f64().unwrap()));
    let length = |limit: &Value, holds: fn(usize, usize) -> bool| {
        let limit = limit.as_u64().unwrap() as usize;
        value.as_str().is_none_or(|text| holds(text.chars().count(), limit))
    };
    let count = |limit: &Value, holds: fn(usize, usize) -> bool| {
        value.as_array().is_none_or(|items| holds(items.len(), limit.as_u64().unwrap() as usize))
    };
    map.iter().all(|(key, rule)| match key.as_str() {
        "type" => {
            rule.as_array().map_or_else(|| is_of(value, rule), |types| types.iter().any(|kind| is_of(value, kind)))
        }
        "enum" => rule.as_array().unwrap().contains(value),
        "const" => rule == value,
        "oneOf" => rule.as_array().unwrap().iter().filter(|schema| sub(schema, value)).count() == 1,
        "prefixItems" => value
            .as_array()
            .is_none_or(|items| items.iter().zip(rule.as_array().unwrap()).all(|(item, schema)| sub(schema, item))),
        "anyOf" => rule.as_array().unwrap().iter().any(|schema| sub(schema, value)),
        "$ref" => {
            let pointer = rule.as_str().and_then(|target| target.strip_prefix('#')).unwrap();
            sub(root.pointer(pointer).unwrap(), value)
        }
        "minimum" => number(rule, |n, limit| n >= limit),
        "maximum" => number(rule, |n, limit| n <= limit),
        "minLength" => length(rule, |n, limit| n >= limit),
        "maxLength" => length(rule, |n, limit| n <= limit),
        "minItems" => count(rule, |n, limit| n >= limit),
        "maxItems" => count(rule, |n, limit| n <= limit),
        "pattern" => value.as_str().is_none_or(|text| Regex::new(rule.as_str().unwrap()).unwrap().is_match(text)),
        "items" => value.as_array().is_none_or(|items| {
            let before = map.get("prefixItems").and_then(Value::as_array).map_or(0, Vec::len);
            items.iter().skip(before).all(|item| sub(rule, item))
        }),
        "required" => value.as_object().is_none_or(|object| {
            rule.as_array().unwrap().iter().all(|name| object.contains_key(name.as_str().unwrap()))
        }),
        "properties" => value.as_object().is_none_or(|object| {
            rule.as_object()
                .unwrap()
                .iter()
                .all(|(name, schema)| object.get(name).is_none_or(|value| sub(schema, value)))
        }),
        "additionalProperties" => value.as_object().is_none_or(|object| {
            let named = |name: &str| map.get("properties").is_some_and(|known| known.get(name).is_some());
            let declared = |name: &str| named(name) || patterns(map).any(|(pattern, _)| pattern.is_match(name));
            object.iter().all(|(name, value)| declared(name) || sub(rule, value))
        }),
        "patternProperties" => value.as_object().is_none_or(|object| {
            let fits = |name: &str, value: &Value| {
                patterns(map).all(|(pattern, schema)| !pattern.is_match(name) || sub(schema, value))
            };
            object.iter().all(|(name, value)| fits(name, value))
        }),
        other => ANNOTATIONS.contains(&other) || panic!("`{other}` is not known here"),
    })
}

/// Patterns of names, and what values of such names must be.
fn patterns(schema: &Map<String, Value>) -> impl Iterator<Item = (Regex, &Value)> {
    let patterns = schema.get("patternProperties").and_then(Value::as_object);
    patterns.into_iter().flatten().map(|(pattern, schema)| (Regex::new(pattern).unwrap(), schema))
}

fn is_of(value: &Value, kind: &Value) -> bool {
    match kind.as_str().unwrap() {
        "string" => value.is_string(),
        "number" => value.is_number(),
        "integer" => value.as_f64().is_some_and(|number| number.fract() == 0.0),
        "boolean" => value.is_boolean(),
        "null" => value.is_null(),
        "object" => value.is_object(),
        "array" => value.is_array(),
        other => panic!("no type: {other}"),
    }
}
