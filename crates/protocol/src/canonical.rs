//! JSON text as Kimi's chat format writes it.
//!
//! Tool declarations and schemas are compact with sorted keys; arguments of calls in the history keep their order and
//! have Python's default spacing. Both keep non-ASCII characters. Source: `spec/kimi-k3.md` 5.3.

use serde_json::{Number, Value};

/// Compact JSON with keys sorted at every level (by code point), non-ASCII characters kept.
pub fn canonical_json(value: &Value) -> String {
    let mut out = String::new();
    write(value, &Style { item: ",", colon: ":", keys: Keys::Sorted }, &mut out);
    out
}

/// JSON with Python's default separators `, ` and `: `, keys in their order, non-ASCII characters kept.
pub fn python_json(value: &Value) -> String {
    let mut out = String::new();
    write(value, &Style { item: ", ", colon: ": ", keys: Keys::AsGiven }, &mut out);
    out
}

enum Keys {
    Sorted,
    AsGiven,
}

struct Style {
    item: &'static str,
    colon: &'static str,
    keys: Keys,
}

fn write(value: &Value, style: &Style, out: &mut String) {
    match value {
        Value::Null | Value::Bool(_) => out.push_str(&value.to_string()),
        Value::Number(number) => out.push_str(&python_number(number)),
        Value::String(text) => write_string(text, out),
        Value::Array(items) => {
            out.push('[');
            for (i, item) in items.iter().enumerate() {
                if i > 0 {
                    out.push_str(style.item);
                }
                write(item, style, out);
            }
            out.push(']');
        }
        Value::Object(map) => {
            let mut entries: Vec<_> = map.iter().collect();
            if let Keys::Sorted = style.keys {
                entries.sort_unstable_by_key(|(key, _)| *key);
            }
            out.push('{');
            for (i, (key, item)) in entries.into_iter().enumerate() {
                if i > 0 {
                    out.push_str(style.item);
                }
                write_string(key, out);
                out.push_str(style.colon);
                write(item, style, out);
            }
            out.push('}');
        }
    }
}

/// A JSON string with Python's escapes: as `serde_json`, but DEL and everything above stays as it is in both.
fn write_string(text: &str, out: &mut String) {
    out.push_str(&Value::from(text).to_string());
}

/// A number as Python prints it: floats in `repr` form (`1e-05`, `1e+16`, `2.0`), integers plainly.
fn python_number(number: &Number) -> String {
    let float = match number.as_f64() {
        Some(float) if number.is_f64() => float,
        _ => return number.to_string(),
    };
    let scientific = format!("{float:e}");
    let Some((digits, exponent)) = scientific.split_once('e') else { return scientific };
    let exponent: i32 = exponent.parse().unwrap_or(0);
    if !(-4..16).contains(&exponent) {
        let sign = if exponent < 0 { '-' } else { '+' };
        return format!("{digits}e{sign}{:02}", exponent.abs());
    }
    let plain = float.to_string();
    if plain.contains('.') { plain } else { plain + ".0" }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn sorts_compacts_and_keeps_non_ascii() {
        let value = json!({"b": [1, {"z": "é\n\"", "a": null}], "a": true, "中": "\u{7f}\u{1}"});
        assert_eq!(
            canonical_json(&value),
            "{\"a\":true,\"b\":[1,{\"a\":null,\"z\":\"é\\n\\\"\"}],\"中\":\"\u{7f}\\u0001\"}"
        );
    }

    #[test]
    fn python_spacing_keeps_the_order() {
        let value = json!({"b": [1, 2.5, []], "a": {"y": "x", "x": {}}});
        assert_eq!(python_json(&value), "{\"b\": [1, 2.5, []], \"a\": {\"y\": \"x\", \"x\": {}}}");
    }

    #[test]
    fn floats_print_as_python_prints_them() {
        let cases = [
            (1.0, "1.0"),
            (-0.0, "-0.0"),
            (0.0001, "0.0001"),
            (0.00001, "1e-05"),
            (1.25e-7, "1.25e-07"),
            (1e15, "1000000000000000.0"),
            (1e16, "1e+16"),
            (-1.5e300, "-1.5e+300"),
            (123456.789, "123456.789"),
        ];
        for (value, text) in cases {
            assert_eq!(python_json(&json!(value)), text);
        }
        assert_eq!(python_json(&json!(u64::MAX)), "18446744073709551615");
    }
}
