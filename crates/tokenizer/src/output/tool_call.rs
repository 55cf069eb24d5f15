//! Tool calls as the model writes them, in steps.
//!
//! What: the argument string of an API, as JSON, piece by piece. String arguments are taken raw and come as they are
//! written; others come when they are complete, kept where they are valid JSON and strings where they are not, so that
//! the whole of a call that ended is always valid JSON. What came cannot be taken back: of a key given twice the first
//! value counts, and of elements and raw arguments in one call the form that came first. What not: whether arguments
//! satisfy the tool's schema.

use std::collections::BTreeSet;

use crate::chat::ArgumentKind;
use crate::decoder::Utf8Stream;
use crate::json::{self, Json};

/// What a token added to the calls of an answer. Calls follow one another: the steps of each stand between its start and
/// its end.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum CallStep {
    /// A call of this tool begins.
    Start {
        /// The tool's name, whole.
        name: String,
    },
    /// More of the argument string: a JSON object in the spelling of [`crate::spaced_json`]. Never empty.
    Arguments(String),
    /// More of an argument string that the model wrote itself and that need not be JSON. Never empty.
    RawArguments(String),
    /// The call is complete. One without this step was cut off.
    End,
}

/// Who wrote an argument string.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum ArgumentsForm {
    /// A JSON object put together from elements; a call without arguments has this form, too.
    #[default]
    Typed,
    /// The model; it need not be JSON.
    Raw,
}

/// A call, as far as it came.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ParsedToolCall {
    /// Number of the call in this answer, from 0.
    pub index: usize,
    /// The tool's name.
    pub name: String,
    /// The arguments as an API's string.
    pub arguments: String,
    /// What this string is.
    pub form: ArgumentsForm,
    /// Whether the call is complete; otherwise the string stops somewhere.
    pub ended: bool,
}

impl ParsedToolCall {
    /// Adds a step to the calls of an answer so far.
    pub fn apply(calls: &mut Vec<Self>, step: CallStep) {
        let (form, text) = match step {
            CallStep::Start { name } => {
                let (index, form) = (calls.len(), ArgumentsForm::default());
                calls.push(Self { index, name, arguments: String::new(), form, ended: false });
                return;
            }
            CallStep::End => {
                calls.iter_mut().last().into_iter().for_each(|call| call.ended = true);
                return;
            }
            CallStep::Arguments(text) => (ArgumentsForm::Typed, text),
            CallStep::RawArguments(text) => (ArgumentsForm::Raw, text),
        };
        if let Some(call) = calls.last_mut() {
            call.arguments.push_str(&text);
            call.form = form;
        }
    }

    /// The calls that steps make.
    pub fn all(steps: impl IntoIterator<Item = CallStep>) -> Vec<Self> {
        let mut calls = Vec::new();
        steps.into_iter().for_each(|step| Self::apply(&mut calls, step));
        calls
    }
}

/// A call that has begun. Its functions give what they add.
#[derive(Debug, Clone, Default)]
pub(super) struct OpenCall {
    /// `None` until something of an argument has come.
    form: Option<ArgumentsForm>,
    /// Of the elements so far.
    keys: BTreeSet<String>,
    current: Current,
}

/// The argument that is being written.
#[derive(Debug, Clone, Default)]
enum Current {
    /// None, or one that does not count.
    #[default]
    Nothing,
    /// A string.
    Text(Utf8Stream),
    /// Any other value; what it is shows when it is complete.
    Value(Vec<u8>),
    /// The raw arguments.
    Raw(Utf8Stream),
}

impl OpenCall {
    pub(super) fn start_argument(&mut self, key: &str, kind: &str) -> Option<CallStep> {
        if self.form == Some(ArgumentsForm::Raw) || !self.keys.insert(key.to_owned()) {
            self.current = Current::Nothing;
            return None;
        }
        let before = if self.form.replace(ArgumentsForm::Typed).is_none() { "{" } else { ", " };
        let is_string = ArgumentKind::from_name(kind) == Some(ArgumentKind::String);
        self.current = if is_string { Current::Text(Utf8Stream::default()) } else { Current::Value(Vec::new()) };
        self.step(format!("{before}{}: {}", json::quoted(key), if is_string { "\"" } else { "" }))
    }

    pub(super) fn start_raw_arguments(&mut self) {
        self.current = match self.form {
            None => Current::Raw(Utf8Stream::default()),
            Some(_) => Current::Nothing,
        };
    }

    /// Raw arguments without any text are none.
    fn raw(&mut self, text: String) -> String {
        if !text.is_empty() {
            self.form = Some(ArgumentsForm::Raw);
        }
        text
    }

    pub(super) fn push(&mut self, bytes: &[u8]) -> Option<CallStep> {
        let text = match &mut self.current {
            Current::Nothing => return None,
            Current::Text(decoder) => escaped(&decoder.push(bytes)),
            Current::Raw(decoder) => {
                let text = decoder.push(bytes);
                self.raw(text)
            }
            Current::Value(value) => {
                value.extend_from_slice(bytes);
                return None;
            }
        };
        self.step(text)
    }

    pub(super) fn end_argument(&mut self) -> Option<CallStep> {
        let text = match std::mem::take(&mut self.current) {
            Current::Nothing => return None,
            Current::Text(mut decoder) => format!("{}\"", escaped(&decoder.finish())),
            Current::Raw(mut decoder) => self.raw(decoder.finish()),
            Current::Value(bytes) => value(&String::from_utf8_lossy(&bytes)),
        };
        self.step(text)
    }

    /// What stands after the last argument.
    pub(super) fn finish(self) -> Option<CallStep> {
        let text = match self.form {
            None => "{}",
            Some(ArgumentsForm::Typed) => "}",
            Some(ArgumentsForm::Raw) => "",
        };
        self.step(text.to_owned())
    }

    fn step(&self, text: String) -> Option<CallStep> {
        let step = if self.form == Some(ArgumentsForm::Raw) { CallStep::RawArguments } else { CallStep::Arguments };
        (!text.is_empty()).then(|| step(text))
    }
}

/// A part of a string as JSON has it between quotes.
fn escaped(text: &str) -> String {
    let quoted = json::quoted(text);
    quoted[1..quoted.len() - 1].to_owned()
}

/// An argument that is no string, as JSON.
fn value(text: &str) -> String {
    match Json::read(text) {
        // as the model wrote it, with zeros behind the point
        Ok(Json::Number(_)) => text.trim().to_owned(),
        Ok(value) => value.spaced(),
        // a number beyond any machine type is a number all the same
        Err(_) if is_number(text.trim()) => text.trim().to_owned(),
        Err(_) => json::quoted(text),
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
    use proptest::prelude::*;

    use super::*;
    use crate::tokenizer::tests::fixed_cases;

    /// The steps of a call, its arguments pushed in pieces of so many bytes.
    fn steps(arguments: &[(&str, &str, &str)], piece: usize) -> Vec<CallStep> {
        let mut steps = vec![CallStep::Start { name: "f".to_owned() }];
        let mut call = OpenCall::default();
        for (key, kind, text) in arguments {
            match *kind {
                "raw" => call.start_raw_arguments(),
                kind => steps.extend(call.start_argument(key, kind)),
            }
            text.as_bytes().chunks(piece).for_each(|bytes| steps.extend(call.push(bytes)));
            steps.extend(call.end_argument());
        }
        steps.extend(call.finish());
        steps.push(CallStep::End);
        steps
    }

    fn parsed(arguments: &[(&str, &str, &str)]) -> ParsedToolCall {
        ParsedToolCall::all(steps(arguments, 1)).remove(0)
    }

    fn call(arguments: &[(&str, &str, &str)]) -> String {
        parsed(arguments).arguments
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
    fn strings_come_as_they_are_written_and_other_values_when_they_are_complete() {
        let arguments = [("s", "string", "añb"), ("o", "object", "{\"x\":1}"), ("t", "string", "")];
        let text = |text: &str| CallStep::Arguments(text.to_owned());
        let expected = [
            CallStep::Start { name: "f".to_owned() },
            text("{\"s\": \""),
            text("a"),
            text("ñ"),
            text("b"),
            text("\""),
            text(", \"o\": "),
            text("{\"x\": 1}"),
            text(", \"t\": \""),
            text("\""),
            text("}"),
            CallStep::End,
        ];
        assert_eq!(steps(&arguments, 1), expected);
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
    fn what_came_first_counts() {
        assert_eq!(call(&[("a", "number", "1"), ("b", "number", "2"), ("a", "string", "3")]), r#"{"a": 1, "b": 2}"#);
        assert_eq!(call(&[("a", "number", "1"), ("", "raw", "x"), ("b", "null", "null")]), r#"{"a": 1, "b": null}"#);
        assert_eq!(call(&[("", "raw", "x"), ("a", "number", "1"), ("", "raw", "y")]), "x");
        assert_eq!(call(&[("", "raw", ""), ("a", "number", "1")]), r#"{"a": 1}"#);
        assert_eq!(call(&[("", "raw", "")]), "{}");
    }

    #[test]
    fn raw_arguments_stay_as_written() {
        let found = parsed(&[("", "raw", "{\"a\": broken é")]);
        let (name, arguments) = ("f".to_owned(), "{\"a\": broken é".to_owned());
        assert_eq!(found, ParsedToolCall { index: 0, name, arguments, form: ArgumentsForm::Raw, ended: true });
    }

    #[test]
    fn any_pieces_make_the_same_call_and_every_call_that_ends_is_json() {
        let text = proptest::sample::select(vec![
            "", "a", "\"", "\\", "\n", "\u{7f}", "\u{1}", "é", "😀", "{\"x\":", "7", "null", "[1,2]",
        ]);
        let text = proptest::collection::vec(text, 0..6).prop_map(|parts| parts.concat());
        let kind = proptest::sample::select(vec!["string", "number", "object", "", "unknown"]);
        let arguments = proptest::collection::vec((text.clone(), kind, text), 0..5);
        proptest!(fixed_cases(500), |(arguments in arguments, piece in 1usize..9)| {
            let arguments: Vec<(&str, &str, &str)> =
                arguments.iter().map(|(key, kind, text)| (key.as_str(), *kind, text.as_str())).collect();
            let whole = ParsedToolCall::all(steps(&arguments, usize::MAX));
            prop_assert_eq!(&ParsedToolCall::all(steps(&arguments, piece)), &whole);
            let value: serde_json::Value = serde_json::from_str(&whole[0].arguments).unwrap();
            for (place, (key, kind, text)) in arguments.iter().enumerate() {
                let is_first = arguments.iter().position(|(other, ..)| other == key) == Some(place);
                prop_assert!(!is_first || *kind != "string" || value[key] == **text);
            }
        });
    }
}
