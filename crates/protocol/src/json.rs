//! Guarded JSON parsing: bounded depth, no repeated keys, no non-finite numbers.
//!
//! `serde_json` refuses `NaN`, numbers beyond f64 and more than 128 levels by itself; a repeated key it would accept
//! silently, so that two readers of one body may disagree on what it says. This parser refuses it.

use std::cell::RefCell;
use std::fmt;

use serde::de::{DeserializeSeed, Deserializer, Error, MapAccess, SeqAccess, Visitor};
use serde_json::{Map, Number, Value};

use crate::ProtocolError;

/// Parses a request body that must be one JSON object.
///
/// # Errors
/// `EmptyBody`, `NotUtf8`, or `Json` for anything malformed, deeper than 127 levels, with a repeated key, with a number
/// outside f64, or not an object.
pub fn parse_object(body: &[u8]) -> Result<Map<String, Value>, ProtocolError> {
    if body.iter().all(u8::is_ascii_whitespace) {
        return Err(ProtocolError::EmptyBody);
    }
    let text = std::str::from_utf8(body).map_err(|e| ProtocolError::NotUtf8 { offset: e.valid_up_to() })?;
    match parse_value(text)? {
        Value::Object(map) => Ok(map),
        other => {
            Err(ProtocolError::Json { field: None, reason: format!("it must be an object, not {}", kind_of(&other)) })
        }
    }
}

fn parse_value(text: &str) -> Result<Value, ProtocolError> {
    let trail = RefCell::new(Vec::new());
    let mut deserializer = serde_json::Deserializer::from_str(text);
    let value = Guarded { trail: &trail }.deserialize(&mut deserializer);
    let value = value.and_then(|value| deserializer.end().map(|()| value));
    // A body that was cut off is the fault of no field.
    value.map_err(|error| {
        let field = if error.is_eof() { None } else { path(trail.take()) };
        let reason = field.as_ref().map_or_else(|| error.to_string(), |field| format!("in `{field}`: {error}"));
        ProtocolError::Json { field, reason }
    })
}

/// The path of a value, from its steps, the innermost first.
fn path(steps: Vec<Step>) -> Option<String> {
    let mut path = String::new();
    for step in steps.into_iter().rev() {
        match step {
            Step::Item(index) => path.push_str(&format!("[{index}]")),
            Step::Field(key) if path.is_empty() => path = key,
            Step::Field(key) => path = format!("{path}.{key}"),
        }
    }
    (!path.is_empty()).then_some(path)
}

/// The kind of a value, with its article.
pub(crate) fn kind_of(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "a boolean",
        Value::Number(_) => "a number",
        Value::String(_) => "a string",
        Value::Array(_) => "an array",
        Value::Object(_) => "an object",
    }
}

/// A step towards a value.
enum Step {
    Field(String),
    Item(usize),
}

/// Reads one value; where it is at fault, notes the way to it.
#[derive(Clone, Copy)]
struct Guarded<'t> {
    trail: &'t RefCell<Vec<Step>>,
}

impl Guarded<'_> {
    /// Notes one more step of the way out.
    fn blame<T, E>(self, read: Result<T, E>, step: impl FnOnce() -> Step) -> Result<T, E> {
        read.inspect_err(|_| self.trail.borrow_mut().push(step()))
    }
}

impl<'de> DeserializeSeed<'de> for Guarded<'_> {
    type Value = Value;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Value, D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Guarded<'_> {
    type Value = Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a JSON value")
    }

    fn visit_unit<E: Error>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_bool<E: Error>(self, value: bool) -> Result<Value, E> {
        Ok(Value::Bool(value))
    }

    fn visit_i64<E: Error>(self, value: i64) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_u64<E: Error>(self, value: u64) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_f64<E: Error>(self, value: f64) -> Result<Value, E> {
        Number::from_f64(value).map(Value::Number).ok_or_else(|| E::custom("number is not finite"))
    }

    fn visit_str<E: Error>(self, value: &str) -> Result<Value, E> {
        Ok(Value::String(value.to_owned()))
    }

    fn visit_string<E: Error>(self, value: String) -> Result<Value, E> {
        Ok(Value::String(value))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Value, A::Error> {
        let mut array = Vec::new();
        while let Some(item) = self.blame(items.next_element_seed(self), || Step::Item(array.len()))? {
            array.push(item);
        }
        Ok(Value::Array(array))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut entries: A) -> Result<Value, A::Error> {
        let mut map = Map::new();
        while let Some(key) = entries.next_key::<String>()? {
            let value = self.blame(entries.next_value_seed(self), || Step::Field(shortened(&key)))?;
            if map.contains_key(&key) {
                return Err(A::Error::custom(format_args!("key {key:?} occurs twice in one object")));
            }
            map.insert(key, value);
        }
        Ok(Value::Object(map))
    }
}

/// A key for people.
fn shortened(key: &str) -> String {
    key.chars().take(40).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn reason(body: &[u8]) -> String {
        parse_object(body).unwrap_err().to_string()
    }

    #[test]
    fn broken_bodies_are_named() {
        assert_eq!(parse_object(b""), Err(ProtocolError::EmptyBody));
        assert_eq!(parse_object(b" \n"), Err(ProtocolError::EmptyBody));
        assert_eq!(parse_object(b"{\"a\": \"\xff\"}"), Err(ProtocolError::NotUtf8 { offset: 7 }));
        for body in ["{", "{} x", "{\"a\": NaN}", "{\"a\": Infinity}", "{\"a\": 1e400}", "{\"a\" 1}", "nul", "{'a': 1}"]
        {
            assert!(reason(body.as_bytes()).contains("not acceptable JSON"), "{body}");
        }
        for (body, kind) in [("[]", "an array"), ("3", "a number"), ("\"x\"", "a string"), ("null", "null")] {
            assert!(reason(body.as_bytes()).ends_with(&format!("must be an object, not {kind}")), "{body}");
        }
    }

    #[test]
    fn depth_is_bounded_without_a_stack_overflow() {
        for (open, close) in [("[", "]"), ("{\"a\":", "}")] {
            let deep = format!("{{\"a\": {}1{}}}", open.repeat(100_000), close.repeat(100_000));
            assert!(reason(deep.as_bytes()).contains("recursion limit"), "{open}");
            let fine = format!("{{\"a\": {}1{}}}", open.repeat(100), close.repeat(100));
            assert!(parse_object(fine.as_bytes()).is_ok(), "{open}");
        }
    }

    #[test]
    fn repeated_keys_are_refused_at_any_depth_and_order_is_kept() {
        assert!(reason(br#"{"a": 1, "a": 2}"#).contains("key \"a\" occurs twice"));
        assert!(reason(br#"{"b": [{"c": {"a": 1, "a": 1}}]}"#).contains("occurs twice"));
        let map = parse_object(br#"{"b": 1, "a": {"z": 1, "y": -2, "x": 1.5, "w": [null, true]}}"#).unwrap();
        assert_eq!(Value::Object(map).to_string(), r#"{"b":1,"a":{"z":1,"y":-2,"x":1.5,"w":[null,true]}}"#);
    }

    #[test]
    fn a_fault_inside_a_field_names_the_field_and_the_place() {
        let lone = reason(br#"{"model": "m", "prompt": "a\udc00"}"#);
        assert!(lone.contains("in `prompt`: ") && lone.contains("surrogate"), "{lone}");
        assert_eq!(lone.matches("line 1 column").count(), 1, "{lone}");
        let nested = reason(br#"{"messages": [{"content": "\udc00"}]}"#);
        assert!(nested.contains("in `messages[0].content`: "), "{nested}");
    }

    #[test]
    fn a_number_that_is_none_is_the_fault_of_its_field() {
        for number in ["1e999", "-1e400", "NaN", "Infinity", "1.", ".5", "+1"] {
            for (body, field) in [
                (format!("{{\"n\": 1, \"temperature\": {number}}}"), "temperature"),
                (format!("{{\"stop_token_ids\": [1, {number}]}}"), "stop_token_ids[1]"),
                (format!("{{\"logit_bias\": {{\"7\": {number}}}, \"n\": 1}}"), "logit_bias.7"),
            ] {
                let error = parse_object(body.as_bytes()).unwrap_err();
                assert_eq!(error.param(), Some(field), "{body}: {error}");
                assert!(error.to_string().contains(&format!("in `{field}`: ")), "{error}");
            }
        }
        assert_eq!(parse_object(br#"{"a": [1, "#).unwrap_err().param(), None);
    }
}
