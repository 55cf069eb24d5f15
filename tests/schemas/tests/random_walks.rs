//! Whatever tokens are drawn among those allowed: the answer is what was asked for.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod walk;

use perilune_grammar::{Arguments, Calls, ChatRule, GrammarError, Parallel, Rule, TextRule, ToolRule};
use perilune_sampling::{Grammar, masks_along};
use perilune_tokenizer::{OutputStart, spaced_json};
use serde_json::{Value, json};
use walk::{grammars, messages, walk};

fn schemas() -> Vec<Value> {
    let text = include_str!("../../data/tool-schemas.jsonl");
    text.lines().map(|line| serde_json::from_str::<Value>(line).unwrap()["case"].clone()).collect()
}

fn chat(response: Option<TextRule>, calls: Calls, tools: Vec<ToolRule>) -> ChatRule {
    ChatRule { start: OutputStart::Content, response, calls, parallel: Parallel::Several, tools }
}

fn tool(name: &str, schema: Value) -> ToolRule {
    ToolRule { name: name.to_owned(), arguments: Arguments::Schema(schema) }
}

/// Without `$id`: the suite has some that are no URIs, at which a strict validator stops.
fn nameless(schema: &Value) -> Value {
    let mut schema = schema.clone();
    if let Some(map) = schema.as_object_mut() {
        map.remove("$id");
    }
    schema
}

/// Whether a number may be beyond what a double holds: JSON allows `1e999`, and so does the grammar, but the parser here does
/// not read it.
fn may_be_too_large(text: &str) -> bool {
    let bytes = text.as_bytes();
    bytes.windows(2).enumerate().any(|(i, pair)| {
        let after = bytes[i + 2..].iter().skip_while(|b| matches!(b, b'+' | b'-')).take_while(|b| b.is_ascii_digit());
        pair[0].is_ascii_digit() && matches!(pair[1], b'e' | b'E') && after.count() > 2
    })
}

fn assert_valid(schema: &Value, text: &str) {
    let value: Value = serde_json::from_str(text).unwrap_or_else(|error| panic!("{error}: {text}\nfor {schema}"));
    let validator = jsonschema::draft202012::new(&nameless(schema)).unwrap();
    let errors: Vec<String> = validator.iter_errors(&value).map(|error| error.to_string()).collect();
    assert!(errors.is_empty(), "{errors:?}: {text}\nfor {schema}");
}

#[test]
fn every_schema_of_the_suite_as_a_response() {
    let all = grammars();
    let (mut valid, mut left_out) = (0, 0);
    for schema in schemas() {
        let rule = chat(Some(TextRule::Json(schema.clone())), Calls::None, vec![]);
        let found = messages(&all, rule, 0..3);
        assert!(!found.is_empty(), "no walk ended for {schema}");
        for message in found {
            if may_be_too_large(&message.content) {
                left_out += 1;
            } else {
                assert_valid(&schema, &message.content);
                valid += 1;
            }
        }
    }
    assert!(left_out * 10 < valid, "{left_out} answers could not be checked, {valid} were");
}

#[test]
fn every_schema_of_the_suite_as_arguments() {
    let all = grammars();
    let (mut valid, mut left_out) = (0, 0);
    for schema in schemas() {
        let tools = vec![tool("get", json!({"type": "object", "properties": {}})), tool("set", schema.clone())];
        let found = messages(&all, chat(None, Calls::Required, tools), 0..4);
        assert!(!found.is_empty(), "no walk ended for {schema}");
        for message in found {
            assert!(message.content.is_empty() && !message.tool_calls.is_empty());
            for call in message.tool_calls.iter().filter(|call| call.name == "set") {
                if may_be_too_large(&call.arguments) {
                    left_out += 1;
                } else {
                    assert_valid(&schema, &call.arguments);
                    valid += 1;
                }
            }
        }
    }
    assert!(left_out * 10 < valid, "{left_out} answers could not be checked, {valid} were");
}

#[test]
fn arguments_come_as_elements_where_the_schema_is_plain() {
    let schema = json!({"type": "object", "additionalProperties": false, "required": ["city", "days"],
        "properties": {
            "city": {"type": "string", "minLength": 1, "maxLength": 12},
            "unit": {"enum": ["c", "f\"&"]},
            "days": {"type": "integer", "minimum": 1, "maximum": 9},
            "who": {"anyOf": [{"type": "null"}, {"$ref": "#/$defs/who"}]},
        },
        "$defs": {"who": {"type": "object", "properties": {"a": {"type": "boolean"}}, "required": ["a"], "additionalProperties": false}}});
    let all = grammars();
    let grammar = all.1.compile(&Rule::Chat(chat(None, Calls::Required, vec![tool("f", schema.clone())]))).unwrap();
    let markup = "<|close|>response<|sep|><|open|>tools<|sep|><|open|>call tool=\"f\" index=\"1\"<|sep|>\
        <|open|>argument key=\"city\" type=\"string\"<|sep|>Os \"lo<|close|>argument<|sep|>\
        <|open|>argument key=\"unit\" type=\"string\"<|sep|>f\"&<|close|>argument<|sep|>\
        <|open|>argument key=\"days\" type=\"number\"<|sep|>7<|close|>argument<|sep|>\
        <|open|>argument key=\"who\" type=\"object\"<|sep|>{\"a\": true}<|close|>argument<|sep|>\
        <|close|>call<|sep|><|close|>tools<|sep|><|close|>message<|sep|><|end_of_msg|>";
    assert_eq!(accepted(grammar.as_ref(), &all.0, markup), all.0.encode_markup(markup).len());
    let [too_long, wrong, missing] =
        [("Os \"lo", "thirteen char"), ("7<", "0<"), ("city", "towns")].map(|(from, to)| {
            let changed = markup.replacen(from, to, 1);
            accepted(grammar.as_ref(), &all.0, &changed) < all.0.encode_markup(&changed).len()
        });
    assert!(too_long && wrong && missing);
    for message in messages(&all, chat(None, Calls::Required, vec![tool("f", schema.clone())]), 0..40) {
        message.tool_calls.iter().for_each(|call| assert_valid(&schema, &call.arguments));
    }
}

/// How many tokens of some markup a grammar takes.
fn accepted(grammar: &dyn Grammar, tokenizer: &perilune_tokenizer::Tokenizer, markup: &str) -> usize {
    let mut constraint = grammar.start();
    let segments = tokenizer.encode_markup(markup);
    let fits = |token: &&perilune_tensor::TokenId| {
        constraint.mask().is_ok_and(|mask| mask.allows(**token)) && constraint.accept(**token).is_ok()
    };
    segments.iter().take_while(fits).count()
}

#[test]
fn thinking_is_free_and_then_the_grammar_holds() {
    let all = grammars();
    let schema = json!({"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"], "additionalProperties": false});
    let rule = ChatRule {
        start: OutputStart::Reasoning,
        ..chat(Some(TextRule::Json(schema.clone())), Calls::Optional, vec![tool("f", schema.clone())])
    };
    let found = messages(&all, rule, 0..60);
    assert!(found.iter().any(|message| !message.reasoning.is_empty()));
    assert!(found.iter().any(|message| !message.tool_calls.is_empty()));
    for message in found {
        if message.tool_calls.is_empty() || !message.content.is_empty() {
            assert_valid(&schema, &message.content);
        }
        message.tool_calls.iter().for_each(|call| assert_valid(&schema, &call.arguments));
    }
}

#[test]
fn one_call_at_most_where_only_one_is_wanted() {
    let all = grammars();
    let schema = json!({"type": "object", "properties": {}, "additionalProperties": false});
    let mut rule = chat(None, Calls::Required, vec![tool("f", schema.clone())]);
    assert!(messages(&all, rule.clone(), 0..30).iter().any(|message| message.tool_calls.len() > 1));
    rule.parallel = Parallel::One;
    assert!(messages(&all, rule, 0..30).iter().all(|message| message.tool_calls.len() == 1));
}

#[test]
fn a_tool_without_a_promise_takes_any_arguments_of_the_right_form() {
    let all = grammars();
    let tools = vec![ToolRule { name: "f".to_owned(), arguments: Arguments::Any }];
    let found = messages(&all, chat(None, Calls::Required, tools), 0..40);
    assert!(found.iter().flat_map(|message| &message.tool_calls).any(|call| call.arguments.len() > 2));
    for call in found.iter().flat_map(|message| &message.tool_calls) {
        assert!(serde_json::from_str::<Value>(&call.arguments).unwrap().is_object(), "{}", call.arguments);
        assert!(spaced_json(&call.arguments).is_ok());
    }
}

#[test]
fn plain_text_keeps_to_its_rule() {
    let (tokenizer, all) = grammars();
    let text = |rule: TextRule, seed: u64| {
        let grammar = all.compile(&Rule::Text(rule)).unwrap_or_else(|error| panic!("{error}"));
        let tokens = walk(grammar.as_ref(), &tokenizer, seed)?;
        let bytes = tokenizer.decode_bytes(&tokens[..tokens.len() - 1]).unwrap();
        Some(String::from_utf8(bytes).unwrap())
    };
    let choice = TextRule::Choice(vec!["yes".to_owned(), "no \"\n".to_owned()]);
    assert!((0..5).all(|seed| ["yes", "no \"\n"].contains(&text(choice.clone(), seed).unwrap().as_str())));
    for seed in 0..5 {
        let date = text(TextRule::Regex(r"\d{4}-[0-9]{2}/x|[ab]+".to_owned()), seed).unwrap();
        let plain = date.chars().all(|c| matches!(c, 'a' | 'b')) && !date.is_empty();
        assert!(plain || (date.chars().count() == 9 && date.ends_with("/x")), "{date}");
        let sum =
            text(TextRule::Ebnf("root ::= term (\"+\" term)*\nterm ::= [0-9]+ | \"(\" root \")\"".to_owned()), seed);
        let sum = sum.unwrap_or_else(|| "1".to_owned());
        assert!(
            sum.chars().all(|c| "0123456789+()".contains(c)) && sum.matches('(').count() == sum.matches(')').count()
        );
        let lark = text(TextRule::Ebnf("start: \"a\" inner? \"b\"\ninner: /[cd]{2}/".to_owned()), seed).unwrap();
        assert!(lark == "ab" || (lark.len() == 4 && lark.starts_with('a')), "{lark}");
    }
}

#[test]
fn masks_along_a_draft_are_those_of_its_tokens() {
    let (tokenizer, all) = grammars();
    let grammar = all.compile(&Rule::Text(TextRule::Json(json!({"type": "array"})))).unwrap();
    let mut constraint = grammar.start();
    let drafted = tokenizer.encode_text("[1, true]");
    let masks = masks_along(constraint.as_mut(), &drafted).unwrap();
    assert_eq!(masks.len(), drafted.len() + 1);
    let wrong = tokenizer.encode_text("[1,}");
    assert!(masks_along(constraint.as_mut(), &wrong).unwrap().len() <= wrong.len());
    for (token, mask) in drafted.iter().zip(&masks) {
        assert_eq!(&constraint.mask().unwrap(), mask);
        constraint.accept(*token).unwrap();
    }
}

#[test]
fn what_takes_long_is_refused_in_time() {
    let (_, all) = grammars();
    let mut nested = json!({"type": "integer"});
    for depth in 2..=12 {
        let one =
            json!({"type": "object", "properties": {"a": nested}, "required": ["a"], "additionalProperties": false});
        let other =
            json!({"type": "object", "properties": {"b": nested}, "required": ["b"], "additionalProperties": false});
        nested = if depth < 8 {
            json!({"oneOf": [one, other, {"type": "null"}]})
        } else {
            json!({"oneOf": [one, {"type": "null"}]})
        };
        check_in_time(&all, TextRule::Json(nested.clone()));
    }
    check_in_time(
        &all,
        TextRule::Json(json!({"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/a"}}})),
    );
    check_in_time(&all, TextRule::Json(json!({"enum": (0..10_000).map(|i| format!("value {i}")).collect::<Vec<_>>()})));
    for pattern in ["(a+)+$", ".{0,100000}", "(.{0,1000}){0,1000}", "^(?=a)b", "[", "(?P<a>x)\\1"] {
        check_in_time(&all, TextRule::Json(json!({"type": "string", "pattern": pattern})));
        check_in_time(&all, TextRule::Regex(pattern.to_owned()));
    }
}

fn check_in_time(all: &perilune_grammar::Grammars, rule: TextRule) {
    let begun = std::time::Instant::now();
    let outcome = all.compile(&Rule::Text(rule.clone()));
    assert!(begun.elapsed() < std::time::Duration::from_secs(8), "{rule:?} took {:?}", begun.elapsed());
    match outcome {
        Ok(grammar) => assert!(grammar.start().mask().is_ok()),
        Err(error) => assert!(!error.to_string().is_empty()),
    }
}

#[test]
fn a_part_that_cannot_be_compiled_is_named() {
    let (_, all) = grammars();
    let overlapping = json!({"oneOf": [{"type": "integer"}, {"type": "integer", "minimum": 3}]});
    let schema = json!({"type": "object", "properties": {"a": {"type": "string"}, "b": {"items": overlapping}}, "required": ["b"]});
    let error = all.compile(&Rule::Text(TextRule::Json(schema))).unwrap_err();
    assert_eq!(error.path(), Some("properties.b.items.oneOf"), "{error}");
    let error = all.compile(&Rule::Text(TextRule::Json(json!({"properties": {"a": {"not": {}}}})))).unwrap_err();
    assert!(matches!(&error, GrammarError::Keyword { path, .. } if path == "properties.a.not"), "{error}");
    for never in [
        json!(false),
        json!({"type": "string", "minLength": 5, "maxLength": 2}),
        json!({"type": "integer", "minimum": 3, "maximum": 2}),
    ] {
        assert!(all.compile(&Rule::Text(TextRule::Json(never.clone()))).is_err(), "{never}");
    }
}
