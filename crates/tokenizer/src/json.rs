//! The two spellings of JSON that K3's prompts use.
//!
//! What: tool and response schemas appear with keys sorted and without spaces; argument values with the key order as
//! given and a space after every `,` and `:`. Non-ASCII characters stay as they are in both. What not: schemas'
//! meaning.

use serde_json::Value;

/// `text` with keys sorted recursively and no spaces, as tools and schemas appear in a prompt.
///
/// Errors: what is wrong with the JSON, and where. Source: `spec/kimi-k3.md` 5.3.
pub fn canonical_json(text: &str) -> Result<String, serde_json::Error> {
    let value = serde_json::from_str(text)?;
    Ok(print(&value, &Style { comma: ",", colon: ":", keys: Keys::Sorted }))
}

/// `text` with `, ` and `: ` between its parts and keys in the order given, as argument values appear in a prompt.
///
/// Errors: what is wrong with the JSON, and where. Source: `spec/kimi-k3.md` 5.3.
pub fn spaced_json(text: &str) -> Result<String, serde_json::Error> {
    Ok(spaced_value(&serde_json::from_str(text)?))
}

/// [`spaced_json`] of a value at hand.
pub(crate) fn spaced_value(value: &Value) -> String {
    print(value, &Style { comma: ", ", colon: ": ", keys: Keys::AsGiven })
}

/// `text` as a JSON string, quotes included.
pub(crate) fn quoted(text: &str) -> String {
    Value::from(text).to_string()
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

fn print(value: &Value, style: &Style) -> String {
    let mut out = String::new();
    write(value, style, &mut out);
    out
}

fn write(value: &Value, style: &Style, out: &mut String) {
    match value {
        Value::Array(items) => {
            out.push('[');
            for (index, item) in items.iter().enumerate() {
                out.push_str(if index == 0 { "" } else { style.comma });
                write(item, style, out);
            }
            out.push(']');
        }
        Value::Object(members) => {
            let mut members: Vec<(&String, &Value)> = members.iter().collect();
            if let Keys::Sorted = style.keys {
                members.sort_by_key(|(key, _)| *key);
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
        scalar => out.push_str(&scalar.to_string()),
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
    fn broken_json_is_an_error_with_a_place() {
        assert!(canonical_json("{\"a\":}").unwrap_err().to_string().contains("column 6"));
        assert!(spaced_json("NaN").is_err());
        assert!(canonical_json(&"[".repeat(100_000)).is_err(), "depth is limited");
    }
}
