//! Puts a tool call together from its events.
//!
//! What: the argument string of an API, as JSON. String arguments are taken raw; others are kept where they are valid
//! JSON and become strings where they are not, so that the whole is always valid JSON. What not: whether arguments
//! satisfy the tool's schema.

use serde_json::Value;

use crate::chat::{Argument, ArgumentKind, Arguments};

/// A complete call.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ParsedToolCall {
    /// Number of the call in this answer, from 0.
    pub index: usize,
    /// The tool's name.
    pub name: String,
    /// The arguments as an API's string: a JSON object in the spelling of [`crate::spaced_json`], or the text the
    /// model wrote in place of one.
    pub arguments: String,
}

/// A call that has begun.
#[derive(Debug, Clone)]
pub(super) struct OpenCall {
    index: usize,
    name: String,
    arguments: Vec<Argument>,
    raw: Option<String>,
    current: Option<OpenArgument>,
}

#[derive(Debug, Clone)]
struct OpenArgument {
    /// `None`: the raw arguments.
    key: Option<String>,
    kind: String,
    bytes: Vec<u8>,
}

impl OpenCall {
    pub(super) fn new(index: usize, name: String) -> Self {
        Self { index, name, arguments: Vec::new(), raw: None, current: None }
    }

    /// Begins an argument, or with `None` for a key the raw arguments.
    pub(super) fn start_argument(&mut self, key: Option<String>, kind: String) {
        self.current = Some(OpenArgument { key, kind, bytes: Vec::new() });
    }

    pub(super) fn push(&mut self, bytes: &[u8]) {
        if let Some(current) = &mut self.current {
            current.bytes.extend_from_slice(bytes);
        }
    }

    pub(super) fn end_argument(&mut self) {
        let Some(OpenArgument { key, kind, bytes }) = self.current.take() else { return };
        let text = String::from_utf8_lossy(&bytes).into_owned();
        match key {
            None => self.raw = Some(text),
            Some(key) => self.set(typed(key, &kind, text)),
        }
    }

    /// Of a key given twice the last value counts, in the place of the first.
    fn set(&mut self, argument: Argument) {
        match self.arguments.iter_mut().find(|other| other.key == argument.key) {
            Some(other) => *other = argument,
            None => self.arguments.push(argument),
        }
    }

    pub(super) fn finish(self) -> ParsedToolCall {
        let arguments = match self.raw {
            Some(raw) => Arguments::Raw(raw),
            None => Arguments::Typed(self.arguments),
        };
        ParsedToolCall { index: self.index, name: self.name, arguments: arguments.to_json() }
    }
}

fn typed(key: String, kind: &str, text: String) -> Argument {
    let is_string = ArgumentKind::from_name(kind) == Some(ArgumentKind::String);
    match serde_json::from_str::<Value>(&text) {
        // the model's own digits: a number may be longer than any machine type
        Ok(Value::Number(_)) if !is_string => {
            Argument { key, kind: ArgumentKind::Number, text: text.trim().to_owned() }
        }
        Ok(value) if !is_string => Argument::from_value(key, &value),
        // a number beyond any machine type is a number all the same
        Err(_) if !is_string && is_number(text.trim()) => {
            Argument { key, kind: ArgumentKind::Number, text: text.trim().to_owned() }
        }
        _ => Argument { key, kind: ArgumentKind::String, text },
    }
}

/// Whether a text is a number of JSON, of any size.
fn is_number(text: &str) -> bool {
    let digits = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    let (mantissa, exponent) = match text.split_once(['e', 'E']) {
        Some((mantissa, exponent)) => (mantissa, Some(exponent)),
        None => (text, None),
    };
    let unsigned = mantissa.strip_prefix('-').unwrap_or(mantissa);
    let (whole, fraction) = unsigned.split_once('.').map_or((unsigned, None), |(whole, part)| (whole, Some(part)));
    digits(whole)
        && (whole == "0" || !whole.starts_with('0'))
        && fraction.is_none_or(digits)
        && exponent.is_none_or(|text| digits(text.strip_prefix(['+', '-']).unwrap_or(text)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn call(arguments: &[(&str, &str, &str)]) -> String {
        let mut call = OpenCall::new(0, "f".to_owned());
        for (key, kind, text) in arguments {
            call.start_argument(Some((*key).to_owned()), (*kind).to_owned());
            call.push(text.as_bytes());
            call.end_argument();
        }
        call.finish().arguments
    }

    #[test]
    fn arguments_become_one_json_object() {
        let arguments = [
            ("s", "string", "a \"b\"\n7"),
            ("n", "number", "-1.50"),
            ("b", "boolean", "true"),
            ("e", "null", "null"),
            ("o", "object", "{\"x\":[1,2]}"),
            ("é\"", "string", "7"),
        ];
        let expected = r#"{"s": "a \"b\"\n7", "n": -1.50, "b": true, "e": null, "o": {"x": [1, 2]}, "é\"": "7"}"#;
        assert_eq!(call(&arguments), expected);
        assert_eq!(call(&[]), "{}");
    }

    #[test]
    fn values_that_are_not_json_become_strings() {
        assert_eq!(call(&[("n", "number", "NaN"), ("o", "object", "{\"x\":")]), r#"{"n": "NaN", "o": "{\"x\":"}"#);
        assert_eq!(call(&[("k", "", "7"), ("j", "", "seven")]), r#"{"k": 7, "j": "seven"}"#);
        assert_eq!(call(&[("n", "number", " -1.5E+999 ")]), r#"{"n": -1.5E+999}"#);
        for no in ["01e999", "1e", ".5e999", "1.e999", "1e9e9", "-"] {
            assert_eq!(call(&[("n", "number", no)]), format!(r#"{{"n": "{no}"}}"#));
        }
    }

    #[test]
    fn the_last_of_equal_keys_counts() {
        assert_eq!(call(&[("a", "number", "1"), ("b", "number", "2"), ("a", "number", "3")]), r#"{"a": 3, "b": 2}"#);
    }

    #[test]
    fn raw_arguments_stay_as_written() {
        let mut call = OpenCall::new(2, "f".to_owned());
        call.start_argument(None, String::new());
        call.push(b"{\"a\": ");
        call.push(b"broken");
        call.end_argument();
        let expected = ParsedToolCall { index: 2, name: "f".to_owned(), arguments: "{\"a\": broken".to_owned() };
        assert_eq!(call.finish(), expected);
    }
}
