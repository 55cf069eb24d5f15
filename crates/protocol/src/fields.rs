//! Reads typed fields out of a JSON object; every refusal names the field's path, its value and the rule.

use serde_json::{Map, Value};

use crate::ProtocolError;

/// Longest excerpt of a value in an error, in characters.
const EXCERPT_CHARS: usize = 80;

/// The fields of one object that have not been taken yet. `null` counts as absent throughout.
pub(crate) struct Fields {
    path: String,
    map: Map<String, Value>,
}

impl Fields {
    /// The fields of a request body.
    pub(crate) fn root(map: Map<String, Value>) -> Self {
        Fields { path: String::new(), map }
    }

    /// The fields of an object at `path`.
    pub(crate) fn of(path: String, value: Value) -> Result<Self, ProtocolError> {
        match value {
            Value::Object(map) => Ok(Fields { path, map }),
            other => Err(invalid(&path, &other, "it must be an object")),
        }
    }

    /// The full path of a field of this object.
    pub(crate) fn path(&self, key: &str) -> String {
        if self.path.is_empty() { key.to_owned() } else { format!("{}.{key}", self.path) }
    }

    /// Takes a value out; `null` is nothing, and stays.
    pub(crate) fn take(&mut self, key: &str) -> Option<Value> {
        self.note(key);
        if self.is_null(key) { None } else { self.map.remove(key) }
    }

    /// Whether a key is there, `null` included.
    pub(crate) fn contains(&self, key: &str) -> bool {
        self.note(key);
        self.map.contains_key(key)
    }

    /// A refusal of a value of this object.
    pub(crate) fn refuse(&self, key: &str, value: &Value, rule: &str) -> ProtocolError {
        invalid(&self.path(key), value, rule)
    }

    /// The error for a field that is absent or `null`.
    pub(crate) fn missing(&self, key: &str, rule: &str) -> ProtocolError {
        if self.is_null(key) {
            return self.refuse(key, &Value::Null, rule);
        }
        ProtocolError::Missing { field: self.path(key), rule: rule.to_owned() }
    }

    /// For tests that compare what is asked for with what is documented.
    fn note(&self, _key: &str) {
        #[cfg(test)]
        asked::note(&self.path, _key);
    }

    fn is_null(&self, key: &str) -> bool {
        self.map.get(key).is_some_and(Value::is_null)
    }

    pub(crate) fn boolean(&mut self, key: &str) -> Result<Option<bool>, ProtocolError> {
        match self.take(key) {
            None => Ok(None),
            Some(Value::Bool(value)) => Ok(Some(value)),
            Some(other) => Err(self.refuse(key, &other, "it must be true or false")),
        }
    }

    pub(crate) fn string(&mut self, key: &str) -> Result<Option<String>, ProtocolError> {
        match self.take(key) {
            None => Ok(None),
            Some(Value::String(value)) => Ok(Some(value)),
            Some(other) => Err(self.refuse(key, &other, "it must be a string")),
        }
    }

    pub(crate) fn required_string(&mut self, key: &str) -> Result<String, ProtocolError> {
        self.string(key)?.ok_or_else(|| self.missing(key, "it must be a string"))
    }

    pub(crate) fn number(&mut self, key: &str) -> Result<Option<f64>, ProtocolError> {
        match self.take(key) {
            None => Ok(None),
            Some(value) => match value.as_f64() {
                Some(number) => Ok(Some(number)),
                None => Err(self.refuse(key, &value, "it must be a number")),
            },
        }
    }

    /// An integer from `low` to `high`; a float without a fraction (`5.0`) is one.
    pub(crate) fn integer(&mut self, key: &str, low: i64, high: i64) -> Result<Option<i64>, ProtocolError> {
        match self.take(key) {
            None => Ok(None),
            Some(value) => match integral(&value).filter(|number| (low..=high).contains(number)) {
                Some(number) => Ok(Some(number)),
                None => Err(self.refuse(key, &value, &integer_rule(low, high))),
            },
        }
    }

    /// [`Fields::integer`] for counts.
    pub(crate) fn count(&mut self, key: &str, low: usize, high: usize) -> Result<Option<usize>, ProtocolError> {
        let clamp = |limit: usize| i64::try_from(limit).unwrap_or(i64::MAX);
        let number = self.integer(key, clamp(low), clamp(high))?;
        Ok(number.and_then(|number| usize::try_from(number).ok()))
    }

    pub(crate) fn object(&mut self, key: &str) -> Result<Option<Fields>, ProtocolError> {
        let path = self.path(key);
        self.take(key).map(|value| Fields::of(path, value)).transpose()
    }

    pub(crate) fn array(&mut self, key: &str) -> Result<Option<Vec<Value>>, ProtocolError> {
        match self.take(key) {
            None => Ok(None),
            Some(Value::Array(items)) => Ok(Some(items)),
            Some(other) => Err(self.refuse(key, &other, "it must be an array")),
        }
    }
}

/// A refusal with the value shortened.
pub(crate) fn invalid(field: &str, value: &Value, rule: &str) -> ProtocolError {
    ProtocolError::Invalid { field: field.to_owned(), value: excerpt(value), rule: rule.to_owned() }
}

/// Token ids at `path`: an array of integers from 0 to 2^32 - 1.
pub(crate) fn token_ids(path: &str, items: &[Value]) -> Result<Vec<u32>, ProtocolError> {
    let id = |(i, item): (usize, &Value)| {
        let id = integral(item).and_then(|id| u32::try_from(id).ok());
        id.ok_or_else(|| invalid(&format!("{path}[{i}]"), item, "it must be a token id: an integer from 0"))
    };
    items.iter().enumerate().map(id).collect()
}

/// The value as an integer, if it is one.
pub(crate) fn integral(value: &Value) -> Option<i64> {
    const EXACT: f64 = 9_007_199_254_740_992.0;
    let whole = |float: f64| (float.fract() == 0.0 && float.abs() <= EXACT).then_some(float as i64);
    value.as_i64().or_else(|| value.as_f64().filter(|_| value.is_f64()).and_then(whole))
}

fn integer_rule(low: i64, high: i64) -> String {
    match high {
        _ if low == i64::MIN && high == i64::MAX => "it must be an integer".to_owned(),
        _ if high >= i64::from(u32::MAX) => format!("it must be an integer from {low}"),
        _ => format!("it must be an integer from {low} to {high}"),
    }
}

/// A value as JSON, cut to [`EXCERPT_CHARS`]. Costs no more than the excerpt for strings; containers are named by kind.
fn excerpt(value: &Value) -> String {
    match value {
        Value::String(text) => match text.char_indices().nth(EXCERPT_CHARS) {
            Some((end, _)) => format!("{:?}…", &text[..end]),
            None => format!("{text:?}"),
        },
        Value::Array(items) if items.is_empty() => "[]".to_owned(),
        Value::Array(items) => format!("an array of {}", items.len()),
        Value::Object(map) if map.is_empty() => "{}".to_owned(),
        Value::Object(_) => "an object".to_owned(),
        other => other.to_string(),
    }
}

/// Which fields parsers asked for.
#[cfg(test)]
pub(crate) mod asked {
    use std::cell::RefCell;
    use std::collections::BTreeSet;

    thread_local! {
        static ASKED: RefCell<BTreeSet<String>> = const { RefCell::new(BTreeSet::new()) };
    }

    /// A field, with the path of its object.
    pub(super) fn note(path: &str, key: &str) {
        let field = if path.is_empty() { key.to_owned() } else { format!("{path}.{key}") };
        ASKED.with_borrow_mut(|asked| asked.insert(field));
    }

    /// The fields that this thread asked for since the last call.
    pub(crate) fn take() -> BTreeSet<String> {
        ASKED.take()
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn fields(value: Value) -> Fields {
        Fields::of(String::new(), value).unwrap()
    }

    #[test]
    fn integers_accept_only_whole_numbers_in_range() {
        for good in [json!(0), json!(20), json!(5.0)] {
            assert!(fields(json!({"k": good})).integer("k", 0, 20).unwrap().is_some());
        }
        for bad in
            [json!(1_000_000), json!(-1), json!(21), json!(true), json!("5"), json!(0.5), json!([1]), json!(1e300)]
        {
            let error = fields(json!({"k": bad})).integer("k", 0, 20).unwrap_err();
            assert_eq!(error.param(), Some("k"));
            assert!(error.to_string().ends_with("it must be an integer from 0 to 20"), "{error}");
        }
        assert_eq!(fields(json!({"k": null})).integer("k", 0, 20), Ok(None));
        assert!(fields(json!({"k": u64::MAX})).integer("k", i64::MIN, i64::MAX).is_err());
    }

    #[test]
    fn errors_carry_the_path_and_a_bounded_value() {
        let mut outer = fields(json!({"a": {"b": "x".repeat(100_000)}}));
        let error = outer.object("a").unwrap().unwrap().boolean("b").unwrap_err();
        assert_eq!(error.param(), Some("a.b"));
        assert!(error.to_string().len() < 200);
        assert!(error.to_string().contains("it must be true or false"));
    }
}
