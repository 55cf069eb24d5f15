//! The fields that parsers ask for are the ones declared here, and nothing else is declared.

use std::collections::BTreeSet;

use schemars::{JsonSchema, schema_for};
use serde_json::{Value, json};

use super::*;
use crate::fields::asked;
use crate::{
    ChatCompletionRequest, CompletionRequest, DetokenizeRequest, NativeRequest, ResponsesRequest, TokenizeRequest,
    parse_count_request, parse_messages_request,
};

/// A body, where it stands, and how it is read. An empty path is the body itself.
struct Case {
    declared: BTreeSet<String>,
    /// Asked for and without effect.
    silent: &'static [&'static str],
    path: &'static str,
    bodies: Vec<Value>,
    parse: fn(&[u8]) -> bool,
}

/// The fields of one kind of a tagged schema.
fn declared_as<T: JsonSchema>(kind: &str) -> BTreeSet<String> {
    let schema = schema_for!(T);
    let kinds = schema.get("oneOf").and_then(Value::as_array).unwrap();
    let found = kinds.iter().find(|one| one["properties"]["type"]["const"] == kind).unwrap();
    found["properties"].as_object().unwrap().keys().cloned().collect()
}

/// Path, declared fields, fields without effect, body, parser.
type Within<'a> = (&'static str, BTreeSet<String>, &'static [&'static str], &'a Value, fn(&[u8]) -> bool);

fn declared<T: JsonSchema>() -> BTreeSet<String> {
    let schema = schema_for!(T);
    let object = schema.get("properties").and_then(Value::as_object).unwrap();
    object.keys().cloned().collect()
}

/// The fields of the object at `path` that were asked for.
fn asked_at(path: &str, all: &BTreeSet<String>) -> BTreeSet<String> {
    let inside = |field: &String| match path {
        "" => Some(field.clone()),
        _ => field.strip_prefix(path).and_then(|rest| rest.strip_prefix('.')).map(str::to_owned),
    };
    all.iter().filter_map(inside).filter(|field| !field.contains(['.', '['])).collect()
}

fn check(case: &Case) {
    asked::take();
    for body in &case.bodies {
        assert!((case.parse)(body.to_string().as_bytes()), "not accepted: {body}");
    }
    let mut asked = asked_at(case.path, &asked::take());
    case.silent.iter().for_each(|field| assert!(asked.remove(*field), "{field} is not asked for"));
    assert_eq!(asked, case.declared, "asked for, declared: {:?}", case.bodies);
}

const CHAT: fn(&[u8]) -> bool = |body| ChatCompletionRequest::parse(body).is_ok();
const MESSAGES: fn(&[u8]) -> bool = |body| parse_messages_request(body).is_ok();
const RESPONSES: fn(&[u8]) -> bool = |body| ResponsesRequest::parse(body).is_ok();

#[test]
fn bodies() {
    let turns = json!([{"role": "user", "content": "a"}]);
    let case = |declared, silent, bodies, parse| Case { declared, silent, path: "", bodies, parse };
    for case in [
        case(declared::<ChatBody>(), &[][..], vec![json!({"messages": turns})], CHAT),
        case(declared::<CompletionBody>(), &[], vec![json!({"prompt": "a"})], |b| CompletionRequest::parse(b).is_ok()),
        case(declared::<MessagesBody>(), &[], vec![json!({"messages": turns, "max_tokens": 1})], MESSAGES),
        case(declared::<CountTokensBody>(), &["max_tokens"], vec![json!({"messages": turns})], |body| {
            parse_count_request(body).is_ok()
        }),
        // `metadata` and `user` are only repeated.
        case(declared_in_responses(), &["max_tokens"], vec![json!({"input": "a"})], RESPONSES),
        case(declared::<DetokenizeBody>(), &[], vec![json!({"tokens": []})], |b| DetokenizeRequest::parse(b).is_ok()),
    ] {
        check(&case);
    }
}

fn declared_in_responses() -> BTreeSet<String> {
    let mut declared = declared::<ResponsesBody>();
    assert!(declared.remove("metadata") && declared.remove("user"));
    declared
}

/// Besides, what a chat request may hold is read and has no effect on tokens.
#[test]
fn tokenize_declares_what_shapes_a_prompt() {
    asked::take();
    for body in [json!({"prompt": "a"}), json!({"messages": [{"role": "user", "content": "a"}]})] {
        TokenizeRequest::parse(body.to_string().as_bytes()).unwrap();
    }
    let asked = asked_at("", &asked::take());
    let unread: Vec<String> = declared::<TokenizeBody>().difference(&asked).cloned().collect();
    assert!(unread.is_empty(), "{unread:?}");
}

#[test]
fn native_bodies_with_their_parameters() {
    let bodies = vec![json!({"text": "a", "sampling_params": {}}), json!({"input_ids": [1], "sampling_params": {}})];
    let parse: fn(&[u8]) -> bool = |body| NativeRequest::parse(body).is_ok();
    check(&Case { declared: declared::<NativeBody>(), silent: &[], path: "", bodies: bodies.clone(), parse });
    let declared = declared::<NativeParams>();
    check(&Case { declared, silent: &["max_tokens"], path: "sampling_params", bodies, parse });
}

#[test]
fn objects_within() {
    let tool = json!({"type": "function", "function": {"name": "f"}});
    let format = json!({"type": "json_schema", "json_schema": {"schema": {}}});
    let chat = json!({
        "messages": [
            {"role": "assistant", "tool_calls": [{"id": "a", "function": {"name": "f", "arguments": "{}"}}]},
            {"role": "user", "content": [{"type": "text", "text": "a"}]},
        ],
        "tools": [tool], "tool_choice": {"type": "function", "function": {"name": "f"}}, "response_format": format,
        "thinking": {}, "chat_template_kwargs": {}, "stream_options": {},
    });
    let structured = json!({"messages": [{"role": "user", "content": "a"}], "structured_outputs": {"regex": "a"}});
    let anthropic = json!({
        "messages": [{"role": "user", "content": "a"}], "max_tokens": 1, "tools": [{"name": "f"}],
        "tool_choice": {"type": "tool", "name": "f"}, "thinking": {"type": "enabled"},
        "output_config": {"format": {"type": "json_schema", "schema": {}}},
    });
    let responses = json!({
        "input": [
            {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "a"}]},
            {"type": "reasoning"}, {"type": "function_call", "call_id": "a", "name": "f"},
            {"type": "function_call_output", "call_id": "a"},
        ],
        "tools": [{"type": "function", "name": "f"}], "reasoning": {},
        "text": {"format": {"type": "json_schema", "schema": {}}},
    });
    // `type` of a history's call is not looked at, the schema's `name` neither; a named tool's name stands in either place.
    let cases: [Within<'_>; 23] = [
        ("messages[0].tool_calls[0]", without(declared::<AssistantCall>(), "type"), &[], &chat, CHAT),
        ("messages[0].tool_calls[0].function", declared::<NamedTool>(), &[], &chat, CHAT),
        ("messages[1].content[0]", ["text", "type"].map(str::to_owned).into(), &[], &chat, CHAT),
        ("tools[0]", declared::<DeclaredTool>(), &[], &chat, CHAT),
        ("tools[0].function", declared::<DeclaredFunction>(), &[], &chat, CHAT),
        ("tool_choice", without(declared::<ToolName>(), "name"), &[], &chat, CHAT),
        ("response_format.json_schema", without(declared::<NamedSchema>(), "name"), &[], &chat, CHAT),
        ("thinking", declared::<ThinkingBody>(), &[], &chat, CHAT),
        ("chat_template_kwargs", declared::<ChatTemplateOptions>(), &[], &chat, CHAT),
        ("stream_options", declared::<StreamOptions>(), &[], &chat, CHAT),
        ("structured_outputs", declared::<StructuredForm>(), &["structural_tag"], &structured, CHAT),
        ("tools[0]", declared::<anthropic::ClientTool>(), &["function"], &anthropic, MESSAGES),
        ("tool_choice", declared::<anthropic::ChoiceOfTools>(), &[], &anthropic, MESSAGES),
        ("thinking", declared::<anthropic::Thinking>(), &[], &anthropic, MESSAGES),
        ("output_config.format", declared::<anthropic::SchemaFormat>(), &["strict"], &anthropic, MESSAGES),
        ("reasoning", declared::<ResponsesReasoning>(), &[], &responses, RESPONSES),
        ("text", declared::<ResponsesText>(), &[], &responses, RESPONSES),
        ("text.format", without(declared_as::<ResponsesFormat>("json_schema"), "name"), &[], &responses, RESPONSES),
        ("input[0]", declared_as::<KnownItem>("message"), &[], &responses, RESPONSES),
        ("input[0].content[0]", declared_as::<InputPart>("input_text"), &[], &responses, RESPONSES),
        ("input[1]", declared_as::<KnownItem>("reasoning"), &[], &responses, RESPONSES),
        ("input[2]", declared_as::<KnownItem>("function_call"), &[], &responses, RESPONSES),
        ("input[3]", declared_as::<KnownItem>("function_call_output"), &[], &responses, RESPONSES),
    ];
    for (path, declared, silent, body, parse) in cases {
        check(&Case { declared, silent, path, bodies: vec![body.clone()], parse });
    }
}

fn without(mut declared: BTreeSet<String>, field: &str) -> BTreeSet<String> {
    assert!(declared.remove(field), "{field}");
    declared
}
