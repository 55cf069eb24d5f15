//! The two spellings of JSON that K3's prompts use.
//!
//! What: tool and response schemas appear with keys sorted and without spaces; argument values with the key order as
//! given and a space after every `,` and `:`. Non-ASCII characters stay as they are in both, and whole numbers keep their
//! digits, however many they are. What not: schemas' meaning.

use std::cell::RefCell;
use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::fmt;

use serde::de::{DeserializeSeed, Deserializer, Error, MapAccess, SeqAccess, Visitor};
use serde_json::Value;

/// `text` with keys sorted recursively and no spaces, as tools and schemas appear in a prompt.
///
/// Errors: what is wrong with the JSON, and where. Source: `spec/kimi-k3.md` 5.3.
pub fn canonical_json(text: &str) -> Result<String, serde_json::Error> {
    Ok(print(&Json::read(text)?, &Style { comma: ",", colon: ":", keys: Keys::Sorted }))
}

/// `text` with `, ` and `: ` between its parts and keys in the order given, as argument values appear in a prompt.
///
/// Errors: what is wrong with the JSON, and where. Source: `spec/kimi-k3.md` 5.3.
pub fn spaced_json(text: &str) -> Result<String, serde_json::Error> {
    Ok(Json::read(text)?.spaced())
}

/// `text` as a JSON string, quotes included.
pub(crate) fn quoted(text: &str) -> String {
    Value::from(text).to_string()
}

/// A JSON value whose whole numbers may be longer than any machine type.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Json {
    Null,
    Bool(bool),
    /// A whole number as it was written, any other as the nearest double.
    Number(String),
    String(String),
    Array(Vec<Json>),
    /// The members in the order of their keys' first appearance; of a key given twice the last value counts.
    Object(Vec<(String, Json)>),
}

impl Json {
    /// Errors: what is wrong with the JSON, and where.
    pub(crate) fn read(text: &str) -> Result<Self, serde_json::Error> {
        let numbers = RefCell::new(Numbers { text, at: 0 });
        let mut deserializer = serde_json::Deserializer::from_str(text);
        let json = Reader { numbers: &numbers }.deserialize(&mut deserializer)?;
        deserializer.end().map(|()| json)
    }

    /// In the spelling of [`spaced_json`].
    pub(crate) fn spaced(&self) -> String {
        print(self, &Style { comma: ", ", colon: ": ", keys: Keys::AsGiven })
    }
}

/// The numbers of a JSON text, one after the other.
struct Numbers<'t> {
    text: &'t str,
    at: usize,
}

impl<'t> Iterator for Numbers<'t> {
    type Item = &'t str;

    fn next(&mut self) -> Option<&'t str> {
        let bytes = self.text.as_bytes();
        let (mut in_string, mut escaped) = (false, false);
        while let Some(byte) = bytes.get(self.at) {
            match byte {
                _ if escaped => escaped = false,
                b'\\' if in_string => escaped = true,
                b'"' => in_string = !in_string,
                b'-' | b'0'..=b'9' if !in_string => {
                    let rest = &self.text[self.at..];
                    let of_number = |byte: u8| byte.is_ascii_digit() || b"+-.eE".contains(&byte);
                    let len = rest.bytes().position(|byte| !of_number(byte)).unwrap_or(rest.len());
                    self.at += len;
                    return Some(&rest[..len]);
                }
                _ => {}
            }
            self.at += 1;
        }
        None
    }
}

/// Reads one value; meets the numbers in the order in which they are written.
#[derive(Clone, Copy)]
struct Reader<'a, 't> {
    numbers: &'a RefCell<Numbers<'t>>,
}

impl Reader<'_, '_> {
    fn number<E: Error>(self, nearest: impl Into<Value>) -> Result<Json, E> {
        let written = self.numbers.borrow_mut().next().ok_or_else(|| E::custom("a number that is not in the text"))?;
        let whole = written.trim_start_matches('-').bytes().all(|byte| byte.is_ascii_digit());
        Ok(Json::Number(if whole { written.to_owned() } else { nearest.into().to_string() }))
    }
}

impl<'de> DeserializeSeed<'de> for Reader<'_, '_> {
    type Value = Json;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Json, D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Reader<'_, '_> {
    type Value = Json;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a JSON value")
    }

    fn visit_unit<E: Error>(self) -> Result<Json, E> {
        Ok(Json::Null)
    }

    fn visit_bool<E: Error>(self, value: bool) -> Result<Json, E> {
        Ok(Json::Bool(value))
    }

    fn visit_i64<E: Error>(self, value: i64) -> Result<Json, E> {
        self.number(value)
    }

    fn visit_u64<E: Error>(self, value: u64) -> Result<Json, E> {
        self.number(value)
    }

    fn visit_f64<E: Error>(self, value: f64) -> Result<Json, E> {
        self.number(value)
    }

    fn visit_str<E: Error>(self, value: &str) -> Result<Json, E> {
        Ok(Json::String(value.to_owned()))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Json, A::Error> {
        let mut array = Vec::new();
        while let Some(item) = items.next_element_seed(self)? {
            array.push(item);
        }
        Ok(Json::Array(array))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut entries: A) -> Result<Json, A::Error> {
        let (mut members, mut places) = (Vec::<(String, Json)>::new(), HashMap::<String, usize>::new());
        while let Some(key) = entries.next_key::<String>()? {
            let value = entries.next_value_seed(self)?;
            match places.entry(key) {
                Entry::Occupied(place) => members[*place.get()].1 = value,
                Entry::Vacant(place) => {
                    members.push((place.key().clone(), value));
                    place.insert(members.len() - 1);
                }
            }
        }
        Ok(Json::Object(members))
    }
}

enum Keys {
    Sorted,
    AsGiven,
}

struct Style {
    comma: &'static str,
    colon: &'static str,
    keys: Keys,
}

fn print(value: &Json, style: &Style) -> String {
    let mut out = String::new();
    write(value, style, &mut out);
    out
}

fn write(value: &Json, style: &Style, out: &mut String) {
    match value {
        Json::Null => out.push_str("null"),
        Json::Bool(value) => out.push_str(if *value { "true" } else { "false" }),
        Json::Number(digits) => out.push_str(digits),
        Json::String(text) => out.push_str(&quoted(text)),
        Json::Array(items) => {
            out.push('[');
            for (index, item) in items.iter().enumerate() {
                out.push_str(if index == 0 { "" } else { style.comma });
                write(item, style, out);
            }
            out.push(']');
        }
        Json::Object(members) => {
            let mut members: Vec<&(String, Json)> = members.iter().collect();
            if let Keys::Sorted = style.keys {
                members.sort_by_key(|(key, _)| key);
            }
            out.push('{');
            for (index, (key, item)) in members.into_iter().enumerate() {
                out.push_str(if index == 0 { "" } else { style.comma });
                out.push_str(&quoted(key));
                out.push_str(style.colon);
                write(item, style, out);
            }
            out.push('}');
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = r#" {"b": [1, 2.0,{"z":null,"a":true}], "a": "\u4f60\u0001\"\\\/é", "B": {}, "é": [] } "#;

    #[test]
    fn canonical_sorts_keys_recursively_and_drops_spaces() {
        let expected = r#"{"B":{},"a":"你\u0001\"\\/é","b":[1,2.0,{"a":true,"z":null}],"é":[]}"#;
        assert_eq!(canonical_json(TEXT).unwrap(), expected);
    }

    #[test]
    fn spaced_keeps_the_order() {
        let expected = r#"{"b": [1, 2.0, {"z": null, "a": true}], "a": "你\u0001\"\\/é", "B": {}, "é": []}"#;
        assert_eq!(spaced_json(TEXT).unwrap(), expected);
    }

    #[test]
    fn whole_numbers_keep_their_digits() {
        let long = "123456789012345678901234567890";
        let text =
            format!(r#"{{"b":[{long},"{long}\"1",-{long}],"a":9007199254740993,"a":1e2,"c":{{"\\":1.50,"1":2}}}}"#);
        let expected = format!(r#"{{"b": [{long}, "{long}\"1", -{long}], "a": 100.0, "c": {{"\\": 1.5, "1": 2}}}}"#);
        assert_eq!(spaced_json(&text).unwrap(), expected);
        assert_eq!(canonical_json(&format!(" [ {long} ,-1 ]")).unwrap(), format!("[{long},-1]"));
        assert!(spaced_json("1e999").is_err() && spaced_json("[01]").is_err() && spaced_json("- 1").is_err());
    }

    #[test]
    fn broken_json_is_an_error_with_a_place() {
        assert!(canonical_json("{\"a\":}").unwrap_err().to_string().contains("column 6"));
        assert!(spaced_json("NaN").is_err());
        assert!(canonical_json(&"[".repeat(100_000)).is_err(), "depth is limited");
    }
}
