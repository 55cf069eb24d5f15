//! Answers as deltas: cut anywhere, forged, malformed, stopped, and there and back through the renderer.

use std::sync::Arc;

use proptest::prelude::*;

use super::*;
use crate::ArgumentsForm;
use crate::chat::*;
use crate::tokenizer::tests::{fixed_cases, k3, tiny};

const GOLDEN: &str = "Let me think: a < b, <|c.<|close|>think<|sep|><|open|>response<|sep|>Sunny 😀 <|c<|close|>response<|sep|>\
     <|open|>tools<|sep|><|open|>call tool=\"get_weather\" index=\"1\"<|sep|><|open|>argument key=\"city\" type=\"string\"<|sep|>\
     Paris<|close|>argument<|sep|><|close|>call<|sep|><|close|>tools<|sep|><|close|>message<|sep|><|end_of_msg|>";

fn options(start: OutputStart, stops: &[&str]) -> OutputOptions {
    OutputOptions { start, stops: stops.iter().map(|stop| (*stop).to_owned()).collect() }
}

/// All deltas of an answer, the last one from `finish`.
fn deltas(k3: &Arc<Tokenizer>, tokens: &[TokenId], options: &OutputOptions) -> Vec<OutputDelta> {
    let mut parser = OutputParser::new(k3.clone(), options).unwrap();
    let mut deltas: Vec<OutputDelta> = tokens.iter().map(|token| parser.push(*token).unwrap()).collect();
    deltas.push(parser.finish());
    deltas
}

fn sum(deltas: Vec<OutputDelta>) -> ParsedMessage {
    let mut message = ParsedMessage::default();
    deltas.into_iter().for_each(|delta| message.apply(delta));
    message
}

fn parsed(markup: &str, start: OutputStart, stops: &[&str]) -> ParsedMessage {
    let k3 = k3();
    sum(deltas(&k3, &k3.encode_markup(markup), &options(start, stops)))
}

/// A complete call whose arguments are elements.
fn complete(index: usize, name: &str, arguments: &str) -> ParsedToolCall {
    let (name, arguments) = (name.to_owned(), arguments.to_owned());
    ParsedToolCall { index, name, arguments, form: ArgumentsForm::Typed, ended: true }
}

#[test]
fn the_golden_generation() {
    let message = parsed(GOLDEN, OutputStart::Reasoning, &[]);
    assert_eq!(message.reasoning, "Let me think: a < b, <|c.");
    assert_eq!(message.content, "Sunny 😀 <|c");
    assert_eq!(message.tool_calls, [complete(0, "get_weather", r#"{"city": "Paris"}"#)]);
}

#[test]
fn cut_after_any_token_nothing_of_a_marker_shows() {
    let k3 = k3();
    let tokens = k3.encode_markup(GOLDEN);
    let whole = parsed(GOLDEN, OutputStart::Reasoning, &[]);
    for end in 0..=tokens.len() {
        let cut = sum(deltas(&k3, &tokens[..end], &options(OutputStart::Reasoning, &[])));
        assert!(whole.reasoning.starts_with(&cut.reasoning), "{end}: {cut:?}");
        let content = cut.content.trim_end_matches('\u{fffd}');
        assert!(whole.content.starts_with(content), "{end}: {cut:?}");
        for (cut, whole) in cut.tool_calls.iter().zip(&whole.tool_calls) {
            assert!(cut.name == whole.name && whole.arguments.starts_with(&cut.arguments), "{end}: {cut:?}");
            assert!(!cut.ended || cut == whole, "{end}: {cut:?}");
        }
    }
}

#[test]
fn an_end_of_message_in_the_response_never_leaks() {
    let k3 = k3();
    for cut in 0..=5 {
        // every way to spell the word in tokens
        let (head, tail) = "Hello".split_at(cut);
        let tokens =
            [k3.encode_text(head), k3.encode_text(tail), k3.encode_markup("<|close|>message<|sep|><|end_of_msg|>")];
        let deltas = deltas(&k3, &tokens.concat(), &options(OutputStart::Content, &[]));
        assert_eq!(deltas.iter().filter(|delta| delta.ended).count(), 1);
        assert_eq!(sum(deltas), ParsedMessage { content: "Hello".to_owned(), ..ParsedMessage::default() });
    }
}

#[test]
fn a_skipped_think_close_ends_as_content() {
    let k3 = k3();
    let tokens = k3.encode_markup("An answer.<|close|>response<|sep|><|close|>message<|sep|>");
    let mut parser = OutputParser::new(k3, &options(OutputStart::Reasoning, &[])).unwrap();
    let mut streamed = Vec::new();
    for token in tokens {
        streamed.push(parser.push(token).unwrap());
    }
    assert_eq!(parser.num_reasoning_tokens(), 0);
    let shown: String = streamed.iter().map(|delta| delta.reasoning.as_str()).collect();
    let content: String = streamed.iter().map(|delta| delta.content.as_str()).collect();
    assert_eq!((shown.as_str(), content.as_str()), ("An answer.", "An answer."), "a stream cannot take back");
    assert_eq!(streamed.iter().filter(|delta| delta.reasoning_was_content).count(), 1);
    let expected = ParsedMessage { content: "An answer.".to_owned(), ..ParsedMessage::default() };
    assert_eq!(sum(streamed), expected);
}

#[test]
fn stop_strings_end_content_but_not_reasoning() {
    let markup = "a END b<|close|>think<|sep|><|open|>response<|sep|>c END d<|close|>response<|sep|>";
    let k3 = k3();
    let deltas = deltas(&k3, &k3.encode_markup(markup), &options(OutputStart::Reasoning, &["x", " END"]));
    let stops: Vec<usize> = deltas.iter().filter_map(|delta| delta.stop).collect();
    assert_eq!(stops, [1]);
    let message = sum(deltas);
    assert_eq!((message.reasoning.as_str(), message.content.as_str()), ("a END b", "c"));
}

#[test]
fn text_held_for_a_stop_comes_when_content_ends() {
    for end in ["", "<|close|>response<|sep|>", "<|end_of_msg|>", "<|open|>call tool=\"f\"<|sep|>"] {
        let message = parsed(&format!("the STO{end}"), OutputStart::Content, &["STOP"]);
        assert_eq!(message.content, "the STO", "{end}");
    }
    // an incomplete character before it, too
    let k3 = k3();
    let half = &k3.encode_text("😀")[..1];
    let message = sum(deltas(&k3, half, &options(OutputStart::Content, &["\u{fffd}STOP"])));
    assert_eq!(message.content, "\u{fffd}");
}

#[test]
fn a_call_comes_as_it_is_written() {
    let k3 = k3();
    let markup = GOLDEN.replace("Paris", "Paris, in \"F\"");
    let steps: Vec<CallStep> = deltas(&k3, &k3.encode_markup(&markup), &options(OutputStart::Reasoning, &[]))
        .into_iter()
        .flat_map(|delta| delta.tool_calls)
        .collect();
    assert_eq!(
        (&steps[0], steps.last().unwrap()),
        (&CallStep::Start { name: "get_weather".to_owned() }, &CallStep::End)
    );
    let pieces = steps[1..steps.len() - 1].iter().map(|step| match step {
        CallStep::Arguments(text) => text.as_str(),
        other => panic!("{other:?}"),
    });
    let pieces: Vec<&str> = pieces.collect();
    assert_eq!(pieces[..3], ["{\"city\": \"", "Paris", ","]);
    assert_eq!(pieces.concat(), r#"{"city": "Paris, in \"F\""}"#);
}

#[test]
fn tokens_are_attributed_to_their_channels() {
    let k3 = k3();
    let tokens = k3.encode_markup("a<|close|>think<|sep|><|open|>response<|sep|>b<|close|>response<|sep|>");
    let mut parser = OutputParser::new(k3, &options(OutputStart::Reasoning, &[])).unwrap();
    let channels: Vec<Channel> = tokens.iter().map(|token| parser.push(*token).unwrap().channel).collect();
    let expected =
        [vec![Channel::Reasoning], vec![Channel::Control; 6], vec![Channel::Content], vec![Channel::Control; 3]];
    assert_eq!(channels, expected.concat());
    assert_eq!(parser.num_reasoning_tokens(), 1);
}

#[test]
fn an_unknown_token_is_an_error_and_loses_nothing() {
    let k3 = k3();
    let mut parser = OutputParser::new(k3.clone(), &options(OutputStart::Content, &[])).unwrap();
    let smiley = k3.encode_text("😀");
    assert_eq!(parser.push(smiley[0]).unwrap().content, "");
    assert!(matches!(parser.push(TokenId(163_840)), Err(TokenizerError::UnknownToken { .. })));
    assert_eq!(parser.push(smiley[1]).unwrap().content, "😀");
}

#[test]
fn five_thousand_broken_bytes_flow_through_a_stop_string() {
    let k3 = k3();
    let is_continuation = |id: &TokenId| k3.token_bytes(*id).unwrap() == [0x80];
    let continuation = (0..k3.num_base_tokens() as u32).map(TokenId).find(is_continuation).unwrap();
    let mut parser = OutputParser::new(k3, &options(OutputStart::Content, &["\u{fffd}x"])).unwrap();
    for index in 0..5_000 {
        // each may begin the stop string, so one is held, never more
        let expected = if index == 0 { "" } else { "\u{fffd}" };
        assert_eq!(parser.push(continuation).unwrap().content, expected);
    }
    assert_eq!(parser.finish().content, "\u{fffd}");
}

#[test]
fn the_other_format_is_content_only() {
    let tokenizer = tiny(&["<|im_system|>", "<|im_user|>", "<|im_assistant|>", "<|im_middle|>", "<|im_end|>"]);
    let tokens = tokenizer.encode_markup("think é<|im_end|>more");
    let message = sum(deltas(&tokenizer, &tokens, &options(OutputStart::Content, &[])));
    assert_eq!(message, ParsedMessage { content: "think é".to_owned(), ..ParsedMessage::default() });
}

fn word() -> impl Strategy<Value = String> {
    let parts = vec!["a", " ", "\"", "&", "=\"", "&quot;", "<|open|>", "<|sep|>", "😀", "\n", "{", "7", "\\"];
    proptest::collection::vec(proptest::sample::select(parts), 0..8).prop_map(|parts| parts.concat())
}

fn arguments() -> impl Strategy<Value = String> {
    let member = (word(), word()).prop_map(|(key, value)| (key, serde_json::Value::from(value)));
    let number = (word(), any::<i64>()).prop_map(|(key, value)| (key, serde_json::Value::from(value)));
    let nested =
        (word(), word()).prop_map(|(key, value)| (key.clone(), serde_json::json!({ key: [value, null, true] })));
    let members = proptest::collection::vec(prop_oneof![member, number, nested], 0..4);
    let object = members.prop_map(|members| serde_json::Value::Object(members.into_iter().collect()).to_string());
    prop_oneof![4 => object, 1 => word().prop_filter("no object", |text| !text.starts_with('{'))]
}

/// What the model writes is what the renderer writes as history, so an answer rendered and parsed is the same answer.
#[test]
fn an_answer_survives_rendering_and_parsing() {
    let k3 = k3();
    let renderer = ChatRenderer::new(k3.clone()).unwrap();
    let opener = renderer.render(&Conversation::default()).unwrap().tokens;
    let calls = proptest::collection::vec((word(), arguments()), 0..3);
    proptest!(fixed_cases(300), |(reasoning in word(), content in word(), calls in calls)| {
        let calls: Vec<ToolCall> = calls
            .into_iter()
            .map(|(name, text)| ToolCall { id: String::new(), name: format!("f{name}"), arguments: Arguments::from_json(&text) })
            .collect();
        let message = ChatMessage {
            reasoning: Some(reasoning.clone()),
            tool_calls: calls.clone(),
            ..ChatMessage::new(Role::Assistant, content.clone())
        };
        let conversation = Conversation { messages: vec![message], ..Conversation::default() };
        let prompt = renderer.render(&conversation).unwrap();
        prop_assert!(prompt.tokens.starts_with(&opener));
        let answer = &prompt.tokens[opener.len()..prompt.message_ends[0]];

        let parsed = sum(deltas(&k3, answer, &options(prompt.start, &[])));
        prop_assert_eq!(parsed.reasoning, reasoning);
        prop_assert_eq!(parsed.content, content);
        let said = |call: &ToolCall| match &call.arguments {
            // an empty text is no arguments
            Arguments::Raw(text) if text.is_empty() => (ArgumentsForm::Typed, "{}".to_owned()),
            Arguments::Raw(text) => (ArgumentsForm::Raw, text.clone()),
            Arguments::Typed(_) => (ArgumentsForm::Typed, call.arguments.to_json()),
        };
        let expected = calls.iter().enumerate().map(|(index, call)| {
            let (form, arguments) = said(call);
            ParsedToolCall { form, ..complete(index, &call.name, &arguments) }
        });
        prop_assert_eq!(parsed.tool_calls, expected.collect::<Vec<_>>());
    });
}
