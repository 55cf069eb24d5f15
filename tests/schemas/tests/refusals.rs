//! What cannot be enforced is refused with its place and the reason.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)] // all of it is test code
#![allow(dead_code)] // of `walk` only the grammars are used

mod walk;

use perilune_grammar::{GrammarError, Rule, TextRule};
use perilune_sampling::Grammar as _;
use serde_json::{Value, json};
use walk::grammars;

fn refusal(rule: TextRule) -> GrammarError {
    let (_, grammars) = grammars();
    match grammars.compile(&Rule::Text(rule.clone())) {
        Err(error) => error,
        Ok(_) => panic!("{rule:?} is accepted"),
    }
}

#[test]
fn a_keyword_that_cannot_be_enforced_is_named_with_the_reason() {
    let cases: [(Value, &str, &str); 11] = [
        (json!({"type": "string", "pattern": "^(?=a)b$"}), "pattern", "look-around"),
        (json!({"properties": {"a": {"type": "string", "pattern": "(?!a)b"}}}), "properties.a.pattern", "look-around"),
        (
            json!({"anyOf": [{"type": "integer"}, {"type": "string", "pattern": "a("}]}),
            "anyOf.1.pattern",
            "unclosed group",
        ),
        (json!({"items": {"type": "number", "multipleOf": 0}}), "items.multipleOf", "greater than 0"),
        (json!({"type": "object", "patternProperties": {"ok": {}, "(": {}}}), "patternProperties.(", "unclosed group"),
        (json!({"patternProperties": {"a": {"pattern": "(?<=a)b"}}}), "patternProperties.a.pattern", "look-around"),
        (json!({"$defs": {"x": {"pattern": "[b-a]"}}, "items": {"$ref": "#/$defs/x"}}), "$defs.x.pattern", "range"),
        (json!({"items": {"$ref": "#/$defs/x"}, "$defs": {"x": {"pattern": "[b-a]"}}}), "$defs.x.pattern", "range"),
        (
            json!({"properties": {"a": {"oneOf": [{"type": "integer"}, {"type": "integer", "minimum": 3}]}}}),
            "properties.a.oneOf",
            "its branches cannot be told apart",
        ),
        (
            json!({"items": {"type": "object", "properties": {"a": {}, "b": {}}, "minProperties": 2}}),
            "items.minProperties",
            "only where all of `properties` are `required`",
        ),
        (
            json!({"properties": {"o": {"type": "object", "properties": {"a": {}}, "maxProperties": 3}}}),
            "properties.o.maxProperties",
            "only where all of `properties` are `required`",
        ),
    ];
    for (schema, path, reason) in cases {
        let error = refusal(TextRule::Json(schema.clone()));
        assert_eq!(error.path(), Some(path), "{schema}: {error}");
        assert!(error.to_string().contains(reason), "{schema}: {error}");
        assert!(!error.to_string().contains("coerce_one_of"), "{schema}: {error}");
    }
}

#[test]
fn an_expression_with_look_around_is_refused_with_the_reason() {
    for (text, reason) in [("(?=a)b", "look-around"), ("a(?<!b)", "look-around"), ("a(", "unclosed group")] {
        let error = refusal(TextRule::Regex(text.to_owned())).to_string();
        assert!(error.contains(reason), "{text}: {error}");
    }
}

#[test]
fn bounds_at_the_ends_of_64_bits_hold() {
    let (tokenizer, grammars) = grammars();
    let takes = |schema: &Value, text: &str| {
        let grammar = grammars.compile(&Rule::Text(TextRule::Json(schema.clone()))).unwrap();
        let mut constraint = grammar.start();
        let read = tokenizer
            .encode_text(text)
            .into_iter()
            .all(|token| constraint.mask().unwrap().allows(token) && constraint.accept(token).is_ok());
        read && tokenizer.stop_ids().iter().any(|stop| constraint.mask().unwrap().allows(*stop))
    };
    let whole = json!({"type": "integer", "minimum": i64::MIN, "maximum": i64::MAX});
    for text in ["0", "-1", "9223372036854775807", "-9223372036854774784", "999999999999999999"] {
        assert!(takes(&whole, text), "{text}");
    }
    for text in ["9223372036854775808", "-9223372036854775809", "10000000000000000000", "1.5", "-0.5"] {
        assert!(!takes(&whole, text), "{text}");
    }
    let any = json!({"type": "number", "minimum": i64::MIN, "maximum": i64::MAX});
    for (text, fits) in [("1.5", true), ("-3", true), ("9223372036854775000.5", false), ("-9300000000000000000", false)]
    {
        assert_eq!(takes(&any, text), fits, "{text}");
    }
    for wrong in [json!({"minimum": i64::MAX}), json!({"maximum": i64::MIN}), json!({"maximum": u64::MAX})] {
        assert!(refusal(TextRule::Json(wrong.clone())).path().is_some(), "{wrong}");
    }
}

#[test]
fn expressions_that_must_all_match_are_refused() {
    let many = |from: usize, glue: &str| {
        (from..from + 20).map(|i| format!("/(a|b)*a(a|b){{{i}}}/")).collect::<Vec<_>>().join(glue)
    };
    for text in [format!("start: T\nT: {}", many(1, " & ")), format!("start: T\nT: ~(~{})", many(1, " | ~"))] {
        assert!(refusal(TextRule::Ebnf(text)).to_string().contains("multiply"));
    }
}
