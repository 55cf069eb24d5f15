//! Outputs that must have a form: every way to ask for one, what is refused, and how it lives with everything else.

use serde_json::{Value, json};

use crate::client::{post, stream, with};
use crate::grammar::{Choice, assemble, whole_choices};
use crate::schemas::{assert_valid, ending_bias, random_server};
use crate::server::{shared_demo, tokenizer};

const CHAT: &str = "/v1/chat/completions";
const TEXT: &str = "/v1/completions";

fn extended(mut body: Value, extra: Value) -> Value {
    body.as_object_mut().unwrap().extend(extra.as_object().unwrap().clone());
    body
}

/// A question to the demo, which thinks about it.
fn ask(extra: Value) -> Value {
    let question = "There are 3 boxes with 12 pens in each box. How many pens are there in total?";
    let body = json!({"messages": [{"role": "user", "content": question}], "max_tokens": 300, "seed": 5});
    extended(body, extra)
}

/// The one choice of the demo, the same whole and streamed.
fn demo(path: &str, body: &Value) -> Choice {
    let whole = whole_choices(&post(shared_demo(), path, body).ok()).remove(0);
    assert_eq!(assemble(&stream(shared_demo(), path, body), 1).choices.remove(0), whole, "{body}");
    whole
}

fn number_schema() -> Value {
    json!({"type": "object", "properties": {"n": {"type": "integer", "minimum": 0, "maximum": 99}},
        "required": ["n"], "additionalProperties": false})
}

#[test]
fn the_model_thinks_freely_and_answers_in_form() {
    let format =
        json!({"type": "json_schema", "json_schema": {"name": "x", "strict": true, "schema": number_schema()}});
    let choice = demo(CHAT, &ask(json!({"response_format": format})));
    assert!(!choice.reasoning.is_empty(), "thinking is not to be skipped");
    assert_valid(&number_schema(), &choice.content);
    assert_eq!(choice.finish_reason, "stop");
    let choice = demo(CHAT, &ask(json!({"regex": "= [0-9]{2}!"})));
    assert!(
        choice.content.len() == 5 && choice.content.starts_with("= ") && !choice.reasoning.is_empty(),
        "{choice:?}"
    );
    let choice = demo(
        CHAT,
        &ask(json!({"thinking": {"type": "disabled"}, "structured_outputs": {"choice": ["so", "so what"]}})),
    );
    assert!(["so", "so what"].contains(&choice.content.as_str()) && choice.reasoning.is_empty(), "{choice:?}");
}

/// Whether an answer has the form that was asked for.
type Fits = fn(&str) -> bool;

#[test]
fn plain_completions_have_forms_too() {
    let cases: [(Value, Fits); 6] = [
        (json!({"structured_outputs": {"regex": "[ab]{3}c"}}), |text| text.len() == 4),
        (json!({"guided_choice": ["left", "right"]}), |text| ["left", "right"].contains(&text)),
        (json!({"ebnf": "root ::= \"<\" digit{2} \">\"\ndigit ::= [0-9]"}), |text| {
            text.len() == 4 && text.ends_with('>')
        }),
        (json!({"guided_grammar": "start: \"x\" /[0-9]/"}), |text| text.len() == 2),
        (json!({"structured_outputs": {"json": {"type": "boolean"}}}), |text| ["true", "false"].contains(&text.trim())),
        (json!({"structured_outputs": {"json_object": true}, "max_tokens": 1}), |text| text.trim().starts_with('{')),
    ];
    for (form, check) in cases {
        let body = extended(json!({"prompt": "2 + 2 =", "max_tokens": 50, "seed": 3}), form);
        let choice = demo(TEXT, &body);
        assert!(check(&choice.content), "{body}: {choice:?}");
    }
}

/// A question behind a system message that adds a tool.
fn added(function: Value, choice: Value) -> Value {
    let system = json!({"role": "system", "content": "", "tools": [{"type": "function", "function": function}]});
    json!({"messages": [system, {"role": "user", "content": "How many pens?"}], "tool_choice": choice})
}

#[test]
fn tools_that_a_message_adds_are_held_like_others() {
    let parameters = json!({"type": "object", "properties": {"n": {"type": "integer", "minimum": 0, "maximum": 99}},
        "required": ["n"], "additionalProperties": false});
    let function = json!({"name": "count_pens", "parameters": parameters});
    for choice in [json!("required"), json!({"type": "function", "function": {"name": "count_pens"}})] {
        let body = ask(extended(added(function.clone(), choice), json!({"thinking": {"type": "disabled"}})));
        let answer = demo(CHAT, &body);
        assert!(!answer.tool_calls.is_empty(), "{answer:?}");
        for (name, arguments) in &answer.tool_calls {
            assert_eq!(name, "count_pens");
            let arguments: Value = serde_json::from_str(arguments).unwrap();
            assert!(arguments["n"].as_u64().is_some_and(|n| n < 100), "{arguments}");
        }
    }
}

#[test]
fn forms_that_cannot_be_kept_are_refused_with_their_place() {
    let addr = shared_demo();
    let json_schema =
        |schema: Value| json!({"response_format": {"type": "json_schema", "json_schema": {"schema": schema}}});
    let tool = |schema: Value| {
        let function = json!({"name": "f", "strict": true, "parameters": schema});
        json!({"tools": [{"type": "function", "function": {"name": "e"}}, {"type": "function", "function": function}]})
    };
    let at = "response_format.json_schema.schema";
    let deep = (0..70).fold(json!({}), |schema, _| json!({"items": schema}));
    let cases = [
        (json_schema(json!({"type": "objekt"})), format!("{at}.type")),
        (json_schema(json!({"type": 5})), format!("{at}.type")),
        (json_schema(json!(true)), at.to_owned()),
        (json_schema(json!([])), at.to_owned()),
        (json_schema(json!({"properties": {"a": {"not": {}}}})), format!("{at}.properties.a.not")),
        (json_schema(json!({"items": {"if": {}, "then": {}}})), format!("{at}.items.if")),
        (json_schema(json!({"type": "string", "minLength": 3, "maxLength": 2})), at.to_owned()),
        (json_schema(json!({"type": "string", "pattern": ".{0,100000}"})), String::new()),
        (json_schema(deep), at.to_owned()),
        // Numbers that would become others, or break what reads them.
        (json_schema(json!({"type": "integer", "minimum": -1e300, "maximum": -1e299})), format!("{at}.minimum")),
        (json_schema(json!({"type": "integer", "minimum": i64::MIN, "maximum": i64::MIN})), format!("{at}.maximum")),
        (
            json_schema(json!({"items": {"exclusiveMinimum": 9_007_199_254_740_992_i64}})),
            format!("{at}.items.exclusiveMinimum"),
        ),
        (json_schema(json!({"enum": [1_234_567_890_123_456_789_i64]})), format!("{at}.enum")),
        (json_schema(json!({"const": {"id": 9_007_199_254_740_993_i64}})), format!("{at}.const")),
        (json_schema(json!({"type": "number", "multipleOf": 99_999_999})), format!("{at}.multipleOf")),
        // Other meanings than ECMA's.
        (json_schema(json!({"type": "string", "pattern": "^[[a]]$"})), format!("{at}.pattern")),
        (json_schema(json!({"patternProperties": {"[a&&b]": {}}})), format!("{at}.patternProperties")),
        (json!({"ebnf": "start: \"x\" <|end_of_msg|>"}), "ebnf".to_owned()),
        (json!({"ebnf": "start: %json {\"not\": {}}"}), "ebnf".to_owned()),
        (
            tool(json!({"type": "object", "properties": {"a": {"uniqueItems": true}}})),
            "tools[1].function.parameters.properties.a.uniqueItems".to_owned(),
        ),
        (json!({"ebnf": "root ::= root \"a\" | \"b\""}), "ebnf".to_owned()),
        (json!({"ebnf": "root ::= \"a\" x\nx ::= "}), "ebnf".to_owned()),
        (json!({"tool_choice": {"type": "function", "function": {"name": "f"}}}), "tool_choice".to_owned()),
        (json!({"regex": "(a"}), "regex".to_owned()),
        (json!({"regex": "a", "ignore_eos": true}), "ignore_eos".to_owned()),
        (json!({"regex": "a", "guided_json": {}}), "regex".to_owned()),
        (
            json!({"tool_choice": {"type": "function", "function": {"name": "g"}}, "tools": [{"type": "function", "function": {"name": "f"}}]}),
            "tool_choice".to_owned(),
        ),
        (json!({"tools": [{"type": "function", "function": {"name": "a<b"}}]}), "tools[0].function.name".to_owned()),
        (
            added(json!({"name": "f", "strict": true, "parameters": {"uniqueItems": true}}), json!("auto")),
            "messages[0].tools[0].function.parameters.uniqueItems".to_owned(),
        ),
        (added(json!({"name": "f"}), json!({"type": "function", "function": {"name": "g"}})), "tool_choice".to_owned()),
    ];
    for (extra, param) in cases {
        let body = ask(extra);
        for stream in [false, true] {
            let reply = post(addr, CHAT, &with(&with(&body, "max_tokens", 3), "stream", stream));
            // What compiles in time may be served.
            if param.is_empty() && reply.status == 200 {
                continue;
            }
            let error = reply.refused(400);
            assert!(param.is_empty() || error["param"] == json!(param), "{body}: {error}");
        }
    }
    post(addr, TEXT, &json!({"prompt": "x", "max_tokens": 2})).ok();
}

#[test]
fn a_form_lives_with_everything_else() {
    let format = json!({"type": "json_schema", "json_schema": {"schema": number_schema()}});
    let free = json!({"thinking": {"type": "disabled"}, "response_format": format, "temperature": 1});
    // Several choices, each with its own state; log-probabilities are those of the raw logits, and finite.
    let scored = ask(extended(free.clone(), json!({"n": 3, "logprobs": true, "top_logprobs": 20})));
    let whole = whole_choices(&post(shared_demo(), CHAT, &scored).ok());
    assert_eq!(assemble(&stream(shared_demo(), CHAT, &scored), 3).choices, whole);
    for choice in &whole {
        assert_valid(&number_schema(), &choice.content);
        let finite = |entry: &Value| entry["logprob"].as_f64().is_some_and(|value| value >= -9999.0);
        assert!(choice.logprobs.iter().all(finite));
        assert!(choice.logprobs.iter().all(|entry| entry["top_logprobs"].as_array().unwrap().len() == 20));
    }
    // The end of the budget cuts, and says so.
    let cut = demo(CHAT, &with(&ask(free.clone()), "max_tokens", 2));
    assert_eq!((cut.finish_reason.as_str(), cut.tool_calls.len()), ("length", 0));
    // Stop strings act on the text.
    let stopped = demo(CHAT, &with(&ask(free.clone()), "stop", ":"));
    assert_eq!((stopped.finish_reason.as_str(), &stopped.stop_reason), ("stop", &json!(":")));
    // The grammar is stronger than what would keep it from ending.
    let long = demo(CHAT, &with(&ask(free.clone()), "min_tokens", 250));
    assert_valid(&number_schema(), &long.content);
    let digits: serde_json::Map<String, Value> =
        (0..10).map(|digit| (tokenizer().encode_text(&digit.to_string())[0].0.to_string(), json!(-100))).collect();
    let banned = demo(CHAT, &with(&ask(free.clone()), "logit_bias", Value::Object(digits)));
    assert_valid(&number_schema(), &banned.content);
    // A stored prefix changes nothing.
    let salted = with(&ask(free), "cache_salt", "a form lives");
    let first = post(shared_demo(), CHAT, &salted).ok();
    let second = post(shared_demo(), CHAT, &salted).ok();
    assert_eq!(whole_choices(&first), whole_choices(&second));
    assert_eq!(first["usage"]["prompt_tokens_details"]["cached_tokens"], 0);
    assert!(second["usage"]["prompt_tokens_details"]["cached_tokens"].as_u64().unwrap() > 0);
}

#[test]
fn strict_tools_side_by_side() {
    let schema = json!({"type": "object", "properties": {"city": {"type": "string"}, "days": {"type": "integer"}},
        "required": ["city", "days"], "additionalProperties": false});
    let function = json!({"name": "get_weather", "parameters": schema, "strict": true});
    let body = |seed: u64| {
        json!({"messages": [{"role": "user", "content": "go"}], "thinking": {"type": "disabled"}, "temperature": 1,
            "max_tokens": 800, "seed": seed, "logit_bias": ending_bias(), "tool_choice": "required",
            "tools": [{"type": "function", "function": function}]})
    };
    let addr = random_server().addr;
    let ended: usize = std::thread::scope(|scope| {
        let ask = |seed: u64| {
            let body = body(seed);
            let choice = whole_choices(&post(addr, CHAT, &body).ok()).remove(0);
            let calls = choice.tool_calls.iter();
            calls.for_each(|(name, arguments)| {
                assert_eq!(name, "get_weather");
                assert_valid(&schema, arguments);
            });
            usize::from(choice.finish_reason == "tool_calls")
        };
        let handles: Vec<_> = (0..32).map(|seed| scope.spawn(move || ask(seed))).collect();
        handles.into_iter().map(|handle| handle.join().unwrap()).sum()
    });
    assert!(ended >= 24, "only {ended} of 32 calls ended");
}

#[test]
fn others_are_served_while_a_grammar_is_compiled() {
    let addr = random_server().addr;
    let slow = |i: usize| {
        let schema = json!({"type": "string", "pattern": format!("(.{{0,{}}}x){{0,900}}", 900 + i)});
        json!({"messages": [{"role": "user", "content": "go"}], "max_tokens": 1,
            "response_format": {"type": "json_schema", "json_schema": {"schema": schema}}})
    };
    std::thread::scope(|scope| {
        let begun = std::time::Instant::now();
        let handles: Vec<_> = (0..6).map(|i| scope.spawn(move || post(addr, CHAT, &slow(i)).status)).collect();
        for _ in 0..10 {
            post(addr, TEXT, &json!({"prompt": "x", "max_tokens": 2})).ok();
        }
        assert!(begun.elapsed() < std::time::Duration::from_secs(20), "{:?}", begun.elapsed());
        assert!(handles.into_iter().all(|handle| matches!(handle.join().unwrap(), 200 | 400 | 503)));
    });
}

#[test]
fn grammars_that_take_too_long_leave_room_for_others() {
    let addr = random_server().addr;
    let slow = |i: usize| {
        let patterns: Vec<Value> = (1..30).map(|n| json!({"pattern": format!("(.*[a{i}]){{{n}}}")})).collect();
        let schema = json!({"type": "string", "allOf": patterns});
        json!({"messages": [{"role": "user", "content": "go"}], "max_tokens": 1,
            "response_format": {"type": "json_schema", "json_schema": {"schema": schema}}})
    };
    let statuses: Vec<u16> = std::thread::scope(|scope| {
        let handles: Vec<_> = (0..4).map(|i| scope.spawn(move || post(addr, CHAT, &slow(i)).status)).collect();
        handles.into_iter().map(|handle| handle.join().unwrap()).collect()
    });
    assert!(statuses.iter().all(|status| matches!(status, 200 | 400 | 503)), "{statuses:?}");
    for i in 0..3 {
        post(addr, TEXT, &json!({"prompt": "x", "regex": format!("ab{i}c"), "max_tokens": 8})).ok();
    }
}

#[test]
fn what_nothing_can_satisfy_is_the_requests_fault() {
    let addr = shared_demo();
    let schema = |schema: Value| json!({"response_format": {"type": "json_schema", "json_schema": {"schema": schema}}});
    let circle = json!({"$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/a"}}, "$ref": "#/$defs/a"});
    let itself = json!({"type": "object", "properties": {"x": {"$ref": "#/properties/x"}}, "required": ["x"]});
    let endless = json!({"type": "array", "items": {"$ref": "#/items"}, "minItems": 1});
    let forms = [
        json!({"regex": "[a&&b]"}),
        schema(circle),
        schema(itself),
        json!({"structured_outputs": {"json": endless}}),
        json!({"ebnf": "root ::= \"x\" y\ny ::= [^\\x00-\\U0010FFFF]"}),
    ];
    for form in forms {
        for thinking in ["enabled", "disabled"] {
            let body = ask(extended(form.clone(), json!({"thinking": {"type": thinking}, "temperature": 0})));
            let error = post(addr, CHAT, &body).refused(400);
            assert_eq!(error["type"], "invalid_request_error", "{body}: {error}");
            // A stream may have begun by then; it ends with the same error.
            let reply = post(addr, CHAT, &with(&body, "stream", true));
            if reply.status == 200 {
                let text = String::from_utf8(reply.body).unwrap();
                assert!(text.contains("impossible_output") && text.contains("invalid_request_error"), "{body}: {text}");
            } else {
                reply.refused(400);
            }
        }
    }
    demo(CHAT, &ask(json!({"temperature": 0, "max_tokens": 20})));
}
