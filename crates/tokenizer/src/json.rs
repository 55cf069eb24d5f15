//! The two spellings of JSON that K3's prompts use.
//!
//! What: tool and response schemas appear with keys sorted and without spaces; argument values with the key order as
//! given and a space after every `,` and `:`. Non-ASCII characters stay as they are in both, and whole numbers keep their
//! digits, however many they are. What not: schemas' meaning.

use std::collections::HashMap;
use std::collections::hash_map::Entry;

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
        serde_json::from_str::<Value>(text)?;
        Reader { text, at: 0 }.value()
    }

    /// In the spelling of [`spaced_json`].
    pub(crate) fn spaced(&self) -> String {
        print(self, &Style { comma: ", ", colon: ": ", keys: Keys::AsGiven })
    }
}

/// Reads a text that is known to be JSON, of bounded depth; no type of `serde_json` that could be named here keeps digits.
struct Reader<'t> {
    text: &'t str,
    at: usize,
}

impl<'t> Reader<'t> {
    fn value(&mut self) -> Result<Json, serde_json::Error> {
        match self.next_byte() {
            b'{' => self.object(),
            b'[' => self.array(),
            b'"' => Ok(Json::String(serde_json::from_str(self.string())?)),
            _ => self.scalar(),
        }
    }

    fn object(&mut self) -> Result<Json, serde_json::Error> {
        let (mut members, mut places) = (Vec::<(String, Json)>::new(), HashMap::<String, usize>::new());
        self.at += 1;
        while self.next_byte() == b'"' {
            let key: String = serde_json::from_str(self.string())?;
            self.skip(b':');
            let value = self.value()?;
            self.skip(b',');
            match places.entry(key) {
                Entry::Occupied(place) => members[*place.get()].1 = value,
                Entry::Vacant(place) => {
                    members.push((place.key().clone(), value));
                    place.insert(members.len() - 1);
                }
            }
        }
        self.skip(b'}');
        Ok(Json::Object(members))
    }

    fn array(&mut self) -> Result<Json, serde_json::Error> {
        let mut items = Vec::new();
        self.at += 1;
        while self.next_byte() != b']' {
            items.push(self.value()?);
            self.skip(b',');
        }
        self.skip(b']');
        Ok(Json::Array(items))
    }

    fn scalar(&mut self) -> Result<Json, serde_json::Error> {
        let rest = &self.text[self.at..];
        let len = rest.find(|c: char| !c.is_ascii_alphanumeric() && !"+-.".contains(c)).unwrap_or(rest.len());
        let written = &rest[..len];
        self.at += len;
        Ok(match serde_json::from_str(written)? {
            Value::Bool(value) => Json::Bool(value),
            Value::Number(_) if written.trim_start_matches('-').bytes().all(|byte| byte.is_ascii_digit()) => {
                Json::Number(written.to_owned())
            }
            Value::Number(nearest) => Json::Number(nearest.to_string()),
            _ => Json::Null,
        })
    }

    /// A string as it is written, quotes included.
    fn string(&mut self) -> &'t str {
        let (begin, bytes) = (self.at, self.text.as_bytes());
        self.at += 1;
        while bytes.get(self.at).is_some_and(|byte| *byte != b'"') {
            self.at += if bytes[self.at] == b'\\' { 2 } else { 1 };
        }
        self.at += 1;
        &self.text[begin..self.at]
    }

    /// The next byte that is no space; 0 at the end.
    fn next_byte(&mut self) -> u8 {
        let rest = &self.text.as_bytes()[self.at..];
        self.at += rest.iter().take_while(|byte| byte.is_ascii_whitespace()).count();
        self.text.as_bytes().get(self.at).copied().unwrap_or(0)
    }

    /// Passes over a byte, if it is the next.
    fn skip(&mut self, byte: u8) {
        if self.next_byte() == byte {
            self.at += 1;
        }
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
    use proptest::prelude::*;

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

    /// JSON as somebody may write it.
    fn written() -> impl Strategy<Value = String> {
        let leaves = ["null", "true", "0", "-20", "2.50", "1e3", "\"\"", r#""\\""#, r#""]\"}""#, r#""\u00e9,""#];
        let keys = [r#""a""#, r#""b\\""#, r#""\":""#, r#""""#];
        let leaf = proptest::sample::select(leaves.to_vec()).prop_map(str::to_owned);
        leaf.prop_recursive(4, 40, 5, move |inner| {
            let member = (proptest::sample::select(keys.to_vec()), inner.clone());
            let member = member.prop_map(|(key, value)| format!("{key} :{value}"));
            prop_oneof![
                proptest::collection::vec(inner, 0..5).prop_map(|items| format!("[ {}]", items.join(" ,\n"))),
                proptest::collection::vec(member, 0..5).prop_map(|members| format!("{{{}\t}}", members.join(","))),
            ]
        })
    }

    proptest! {
        #[test]
        fn another_spelling_means_the_same(text in written()) {
            let meant: Value = serde_json::from_str(&text).unwrap();
            for spelling in [spaced_json(&text).unwrap(), canonical_json(&text).unwrap()] {
                prop_assert_eq!(&meant, &serde_json::from_str::<Value>(&spelling).unwrap(), "{}", spelling);
            }
            prop_assert_eq!(spaced_json(&meant.to_string()).unwrap(), spaced_json(&text).unwrap());
        }
    }

    #[test]
    fn broken_json_is_an_error_with_a_place() {
        assert!(canonical_json("{\"a\":}").unwrap_err().to_string().contains("column 6"));
        assert!(spaced_json("NaN").is_err());
        assert!(canonical_json(&"[".repeat(100_000)).is_err(), "depth is limited");
    }
}
