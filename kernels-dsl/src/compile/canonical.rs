//! Names of values in the order in which they first occur, so that equal kernels give equal text.
//!
//! CubeCL numbers values as its passes come to them, and some passes go over sets without an order.

use std::collections::HashMap;

/// The text with its values numbered anew.
pub(super) fn renumber(text: &str) -> String {
    let mut numbers: HashMap<&str, usize> = HashMap::new();
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(start) = rest.find(is_word) {
        out.push_str(&rest[..start]);
        rest = &rest[start..];
        let end = rest.find(|c| !is_word(c)).unwrap_or(rest.len());
        let word = &rest[..end];
        rest = &rest[end..];
        match value_number(word) {
            Some(number) => {
                let next = numbers.len();
                let renumbered = *numbers.entry(number).or_insert(next);
                let at = number.as_ptr() as usize - word.as_ptr() as usize;
                out.push_str(&word[..at]);
                out.push_str(&renumbered.to_string());
                out.push_str(&word[at + number.len()..]);
            }
            None => out.push_str(word),
        }
    }
    out.push_str(rest);
    out
}

fn is_word(c: char) -> bool {
    c.is_ascii_alphanumeric() || c == '_'
}

/// The digits of a value's name: `v12`, `v12_store`, `info_v12`.
fn value_number(word: &str) -> Option<&str> {
    let digits = word.strip_prefix("info_").unwrap_or(word).strip_prefix('v')?;
    let number = digits.split('_').next()?;
    let others = &digits[number.len()..];
    let plain = !number.is_empty() && number.bytes().all(|b| b.is_ascii_digit());
    (plain && (others.is_empty() || others == "_store")).then_some(number)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_numbered_by_first_occurrence() {
        let text = "float v7_store; float* v7 = &v7_store; f(v30, info_v2.x, v7, float_4, v8_r2, vec, v)";
        let wanted = "float v0_store; float* v0 = &v0_store; f(v1, info_v2.x, v0, float_4, v8_r2, vec, v)";
        assert_eq!(renumber(text), wanted);
        assert_eq!(renumber(&renumber(text)), wanted);
        assert_eq!(renumber(&text.replace("v30", "v99")), wanted);
    }
}
