//! Numbers in schemas that can be enforced exactly. The library computes with doubles, and with whole numbers of 64 bits:
//! what does not fit would become another number, and an answer would be held to that.

use serde_json::{Map, Value, json};

use crate::schema::children;

/// From here on doubles leave out whole numbers.
const EXACT: f64 = 9_007_199_254_740_992.0;
/// Largest bound: 2^62, as the library computes with neighbours of bounds in 64 bits.
const LARGEST: f64 = 4_611_686_018_427_387_904.0;
/// Largest whole number that `multipleOf` may be once its point is moved to its end: each remainder is a state.
const MOST_REMAINDERS: f64 = 10_000.0;
/// Places behind the point that are looked for.
const MOST_PLACES: i32 = 9;

/// A format of numbers, and the least and greatest number of it where those can be enforced. To JSON Schema these are notes;
/// who writes them reads the answer into such a type.
type NumberFormat = (&'static str, Option<i64>, Option<i64>);

const NUMBER_FORMATS: [NumberFormat; 13] = [
    ("int8", Some(-(1 << 7)), Some((1 << 7) - 1)),
    ("int16", Some(-(1 << 15)), Some((1 << 15) - 1)),
    ("int32", Some(-(1 << 31)), Some((1 << 31) - 1)),
    ("int64", None, None),
    ("int", None, None),
    ("uint8", Some(0), Some((1 << 8) - 1)),
    ("uint16", Some(0), Some((1 << 16) - 1)),
    ("uint32", Some(0), Some((1 << 32) - 1)),
    ("uint64", Some(0), None),
    ("uint", Some(0), None),
    ("float", None, None),
    ("double", None, None),
    ("decimal", None, None),
];

/// The format of a schema whose values are numbers, or null.
pub(crate) fn number_format(schema: &Map<String, Value>) -> Option<&'static NumberFormat> {
    let of_numbers = |kind: &Value| ["integer", "number", "null"].iter().any(|name| kind == name);
    let numbers = match schema.get("type")? {
        Value::Array(kinds) => kinds.iter().all(of_numbers),
        kind => of_numbers(kind),
    };
    let name = schema.get("format").filter(|_| numbers)?;
    NUMBER_FORMATS.iter().find(|(known, ..)| name == known)
}

/// Writes bounds as they can be enforced: what formats of numbers mean, where there are none, and those at the ends of 64
/// bits. There the library negates and counts on in 64 bits, from doubles: of whole numbers the 1024 least are left out,
/// of others as many at the upper end, too.
pub(crate) fn write_bounds(schema: &mut Value) {
    let Some(map) = schema.as_object_mut() else { return };
    if let Some((_, least, most)) = number_format(map) {
        map.remove("format");
        for (bound, beside, value) in [("minimum", "exclusiveMinimum", least), ("maximum", "exclusiveMaximum", most)] {
            if let Some(value) = value.filter(|_| !map.contains_key(bound) && !map.contains_key(beside)) {
                map.insert(bound.to_owned(), json!(value));
            }
        }
    }
    let whole = map.get("type").is_some_and(|kind| kind == "integer");
    for (bound, end, inner) in [("minimum", i64::MIN, i64::MIN + 1024), ("maximum", i64::MAX, i64::MAX - 1023)] {
        if let Some(value) = map.get_mut(bound).filter(|value| value.as_i64() == Some(end) && !(whole && end > 0)) {
            *value = json!(inner);
        }
    }
    let places: Vec<Vec<String>> = children(map).into_iter().map(|(place, _)| place).collect();
    for place in places {
        if let Some(child) = place.iter().try_fold(&mut *schema, step) {
            write_bounds(child);
        }
    }
}

fn step<'v>(value: &'v mut Value, to: &String) -> Option<&'v mut Value> {
    match value {
        Value::Object(members) => members.get_mut(to),
        Value::Array(items) => items.get_mut(to.parse::<usize>().ok()?),
        _ => None,
    }
}

/// What is wrong with a bound that may be reached.
pub(crate) fn wrong_bound(key: &str, value: &Value) -> Option<&'static str> {
    let Some(number) = value.as_f64() else { return Some("it must be a number") };
    let end = if key == "minimum" { i64::MIN } else { i64::MAX };
    let kept = |whole: i64| whole == end || (number.abs() <= LARGEST && whole as f64 as i64 == whole);
    (number.abs() >= EXACT && !value.as_i64().is_some_and(kept)).then_some(
        "bounds beyond 2^53 are enforced only where they are whole numbers that a double holds, up to 2^62, or the end of 64 bits",
    )
}

/// What is wrong with a bound that may not be reached.
pub(crate) fn wrong_exclusive_bound(value: &Value) -> Option<&'static str> {
    let near = value.as_f64().is_none_or(|number| number.abs() < EXACT);
    (!near).then_some("exclusive bounds are enforced only within 2^53 on either side of 0")
}

/// What is wrong with a step.
pub(crate) fn wrong_step(value: &Value) -> Option<&'static str> {
    let Some(step) = value.as_f64().filter(|step| *step > 0.0) else {
        return Some("it must be a number greater than 0");
    };
    let places = |places: &i32| {
        let whole = step * 10_f64.powi(*places);
        whole.fract().abs() < 1e-6 * whole.max(1e-3) && whole >= 1.0
    };
    let whole = (0..=MOST_PLACES).find(places).map(|places| (step * 10_f64.powi(places)).round());
    let enforced = whole.is_some_and(|whole| whole <= MOST_REMAINDERS);
    (!enforced).then_some("only steps up to 10000, counted in units of their last place, are enforced")
}

/// Whether a value, or one within it, is a number that would not stay what it is.
pub(crate) fn is_inexact(value: &Value) -> bool {
    match value {
        Value::Number(number) => number.as_f64().is_none_or(|number| number.abs() >= EXACT),
        Value::Array(items) => items.iter().any(is_inexact),
        Value::Object(members) => members.values().any(is_inexact),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn steps_with_few_remainders() {
        for fine in [json!(1), json!(3), json!(100), json!(9999), json!(0.01), json!(0.25), json!(2.5), json!(1e-3)] {
            assert_eq!(wrong_step(&fine), None, "{fine}");
        }
        for wrong in [json!(0), json!(-1), json!(99_999_999), json!(1e300), json!(0.333_333_3), json!("1")] {
            assert!(wrong_step(&wrong).is_some(), "{wrong}");
        }
    }

    #[test]
    fn formats_become_bounds_of_numbers() {
        let mut schema = json!({"properties": {
            "a": {"type": "integer", "format": "uint8"},
            "b": {"type": ["null", "integer"], "format": "int32", "minimum": 5},
            "format": {"type": "string", "format": "date"},
            "enum": {"anyOf": [{"type": "integer", "format": "uint"}]},
            "c": {"type": "number", "format": "double", "const": {"type": "integer", "format": "int8"}},
            "d": {"type": "integer", "minimum": i64::MIN, "maximum": i64::MAX},
            "e": {"type": "number", "minimum": i64::MIN, "maximum": i64::MAX},
        }});
        write_bounds(&mut schema);
        let expected = json!({"properties": {
            "a": {"type": "integer", "minimum": 0, "maximum": 255},
            "b": {"type": ["null", "integer"], "minimum": 5, "maximum": 2_147_483_647},
            "format": {"type": "string", "format": "date"},
            "enum": {"anyOf": [{"type": "integer", "minimum": 0}]},
            "c": {"type": "number", "const": {"type": "integer", "format": "int8"}},
            "d": {"type": "integer", "minimum": -9_223_372_036_854_774_784_i64, "maximum": i64::MAX},
            "e": {"type": "number", "minimum": -9_223_372_036_854_774_784_i64, "maximum": 9_223_372_036_854_774_784_i64},
        }});
        assert_eq!(schema, expected);
    }

    #[test]
    fn numbers_beyond_doubles() {
        for fine in [json!(9_007_199_254_740_991_i64), json!(-5), json!(0.1), json!({"a": [1, "12345678901234567890"]})]
        {
            assert!(!is_inexact(&fine), "{fine}");
        }
        for wrong in [json!(9_007_199_254_740_993_i64), json!(u64::MAX), json!([{"a": i64::MIN}]), json!(1e300)] {
            assert!(is_inexact(&wrong), "{wrong}");
        }
        for fine in [json!(-9_007_199_254_740_991_i64), json!(10_000_000_000_000_000_i64), json!(0.5)] {
            assert_eq!(wrong_bound("maximum", &fine), None);
        }
        assert!(
            wrong_bound("minimum", &json!(i64::MIN)).is_none() && wrong_bound("maximum", &json!(i64::MAX)).is_none()
        );
        for wrong in [json!(-1e300), json!(i64::MIN), json!(u64::MAX), json!(9_007_199_254_740_993_i64), json!("1")] {
            assert!(wrong_bound("maximum", &wrong).is_some(), "{wrong}");
        }
        assert!(wrong_bound("minimum", &json!(i64::MAX)).is_some());
        assert!(wrong_exclusive_bound(&json!(10_000_000_000_000_000_i64)).is_some());
    }
}
