//! What must hold of any bytes: one function per target, which panics where it does not.
//!
//! Beside "no panic": errors say something, text survives tokenising, no text becomes a control token, and what the prompt
//! writer writes the answer parser reads back. `tests/tests/fuzz_corpus.rs` compiles this file too.

use std::path::Path;
use std::sync::{Arc, OnceLock};

use perilune_config::{ConfigError, DraftConfig, GenerationConfig, ModelConfig, TokenizerConfig};
use perilune_protocol::{
    ChatCompletionRequest, CompletionRequest, DetokenizeRequest, NativeRequest, ProtocolError, ResponsesRequest,
    TokenizeRequest, parse_count_request, parse_messages_request,
};
use perilune_tensor::TokenId;
use perilune_tokenizer::{
    Arguments, ArgumentsForm, ChatMessage, ChatRenderer, Conversation, Effort, IncrementalDecoder, OutputDelta,
    OutputOptions, OutputParser, OutputStart, ParsedMessage, ParsedToolCall, Role, SpecialTokens, Thinking, Tokenizer,
    ToolCall, ToolChoice, Vocabulary,
};
use perilune_weights::{SafetensorsDir, WeightSource, WeightsError, expected_tensors};

/// The shipped vocabulary; both packages that compile this file lie one folder below the root.
const DEMO: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../models/demo");
/// More layers than any model has; a configuration may name millions, whose list only costs time.
const MAX_LAYERS: usize = 1000;

fn demo() -> Arc<Tokenizer> {
    static DEMO_TOKENIZER: OnceLock<Arc<Tokenizer>> = OnceLock::new();
    DEMO_TOKENIZER.get_or_init(|| Arc::new(Tokenizer::from_dir(Path::new(DEMO)).expect("the demo"))).clone()
}

/// Bodies of requests: the first byte chooses the route. Refusals say what is wrong.
pub fn requests(data: &[u8]) {
    let Some((&route, body)) = data.split_first() else { return };
    let check = |refusal: Option<ProtocolError>| {
        if let Some(error) = refusal {
            assert!(error.to_string().len() > 10, "{error:?}");
            assert!(error.param() != Some(""), "{error:?}");
        }
    };
    check(match route % 8 {
        0 => ChatCompletionRequest::parse(body).err(),
        1 => CompletionRequest::parse(body).err(),
        2 => ResponsesRequest::parse(body).err(),
        3 => parse_messages_request(body).err(),
        4 => parse_count_request(body).err(),
        5 => NativeRequest::parse(body).err(),
        6 => TokenizeRequest::parse(body).err(),
        _ => DetokenizeRequest::parse(body).err(),
    });
}

/// Text to tokens and back; any ids to text; any file as a vocabulary.
pub fn tokenizer(data: &[u8]) {
    let Some((&choice, rest)) = data.split_first() else { return };
    let tokenizer = demo();
    match choice % 3 {
        0 => {
            let text = String::from_utf8_lossy(rest);
            let ids = tokenizer.encode_text(&text);
            assert!(ids.iter().all(|&id| !tokenizer.is_control(id)), "text became a control token");
            assert_eq!(tokenizer.decode_bytes(&ids).expect("its own ids"), text.as_bytes());
            assert_eq!(decode(&tokenizer, &ids), text);
        }
        1 => {
            let ids: Vec<TokenId> =
                rest.chunks(2).map(|pair| TokenId(pair.iter().fold(0, |id, &b| id << 8 | u32::from(b)))).collect();
            if let Ok(bytes) = tokenizer.decode_bytes(&ids) {
                let text = decode(&tokenizer, &ids);
                assert_eq!(text, String::from_utf8_lossy(&bytes));
            }
        }
        _ => {
            if let Ok(vocabulary) = Vocabulary::parse(rest) {
                for rank in 0..vocabulary.num_tokens() as u32 {
                    let token = vocabulary.token(rank).expect("every rank up to their number");
                    assert_eq!(vocabulary.rank(token), Some(rank));
                }
            }
        }
    }
}

/// Token by token.
fn decode(tokenizer: &Arc<Tokenizer>, ids: &[TokenId]) -> String {
    let mut decoder = IncrementalDecoder::new(tokenizer.clone(), SpecialTokens::Keep);
    let mut text: String = ids.iter().map(|&id| decoder.push(id).expect("a known id")).collect();
    text.push_str(&decoder.finish());
    text
}

/// Conversations: text never becomes structure, and an assistant's turn reads back as it was.
pub fn prompt(data: &[u8]) {
    let mut bytes = Bytes(data);
    let conversation = conversation(&mut bytes);
    let renderer = ChatRenderer::new(demo()).expect("the demo has a chat format");
    let Ok(rendered) = renderer.render(&conversation) else { return };
    assert!(rendered.message_ends.is_sorted() && rendered.message_ends.iter().all(|&end| end <= rendered.tokens.len()));
    assert!(rendered.usage_tokens <= rendered.tokens.len());
    let plain = renderer.render(&without_text(&conversation)).expect("the same structure");
    assert_eq!(structure(&rendered.tokens), structure(&plain.tokens), "text changed the structure");
    read_back(&renderer, &conversation);
}

/// Control tokens in order.
fn structure(tokens: &[TokenId]) -> Vec<TokenId> {
    let tokenizer = demo();
    tokens.iter().copied().filter(|&id| tokenizer.is_control(id)).collect()
}

/// The same conversation with every text that is not empty replaced by a letter.
fn without_text(conversation: &Conversation) -> Conversation {
    let mut plain = conversation.clone();
    let blank = |text: &mut String| {
        if !text.trim().is_empty() {
            *text = "a".to_owned();
        }
    };
    for message in &mut plain.messages {
        message.content.iter_mut().for_each(blank);
        message.reasoning.iter_mut().for_each(blank);
    }
    plain
}

/// Where the last turn is the assistant's: what follows the prompt that asked for it parses to that turn.
fn read_back(renderer: &ChatRenderer, conversation: &Conversation) {
    let Some((last, before)) = conversation.messages.split_last() else { return };
    let asked = Conversation { messages: before.to_vec(), ..conversation.clone() };
    let (Ok(asked), Ok(answered)) = (renderer.render(&asked), renderer.render(conversation)) else { return };
    let open = last.role != Role::Assistant || conversation.thinking == Thinking::Off || before.is_empty();
    if open || !answered.tokens.starts_with(&asked.tokens) {
        return;
    }
    let options = OutputOptions { start: asked.start, stops: Vec::new() };
    let read = parse(&answered.tokens[asked.tokens.len()..], &options);
    assert_eq!(read.reasoning, last.reasoning.clone().unwrap_or_default());
    assert_eq!(read.content, last.content.concat());
    assert_eq!(read.tool_calls.len(), last.tool_calls.len());
    for (found, said) in read.tool_calls.iter().zip(&last.tool_calls) {
        let arguments = Some(said.arguments.to_json()).filter(|text| !text.is_empty());
        assert_eq!((&found.name, &found.arguments), (&said.name, &arguments.unwrap_or_else(|| "{}".to_owned())));
        assert!(found.ended);
    }
}

fn parse(tokens: &[TokenId], options: &OutputOptions) -> ParsedMessage {
    let mut parser = OutputParser::new(demo(), options).expect("the demo has a chat format");
    let mut message = ParsedMessage::default();
    for &token in tokens {
        let delta = parser.push(token).expect("a known id");
        let ended = delta.ended;
        message.apply(delta);
        if ended {
            break;
        }
    }
    message.apply(parser.finish());
    message
}

/// Answers: any tokens in any order. Nothing comes after the end, and a stop string is never part of the content.
pub fn output(data: &[u8]) {
    let mut bytes = Bytes(data);
    let start = if bytes.next() % 2 == 0 { OutputStart::Reasoning } else { OutputStart::Content };
    let stops = (0..bytes.next() % 3).map(|_| bytes.text()).filter(|stop| !stop.is_empty()).collect::<Vec<_>>();
    let tokenizer = demo();
    let mut parser =
        OutputParser::new(tokenizer.clone(), &OutputOptions { start, stops: stops.clone() }).expect("a chat format");
    let (mut message, mut num_tokens, mut over) = (ParsedMessage::default(), 0, false);
    while !bytes.0.is_empty() {
        for token in answer_tokens(&tokenizer, &mut bytes) {
            num_tokens += 1;
            let delta = parser.push(token).expect("a known id");
            assert!(!over || delta == OutputDelta { channel: delta.channel, ..OutputDelta::default() }, "{delta:?}");
            over |= delta.ended || delta.stop.is_some();
            message.apply(delta);
        }
    }
    message.apply(parser.finish());
    assert!(parser.num_reasoning_tokens() <= num_tokens);
    assert!(stops.iter().all(|stop| !message.content.contains(stop.as_str())), "a stop string was delivered");
    let cut = message.tool_calls.iter().position(|call| !call.ended);
    assert!(cut.is_none_or(|cut| cut + 1 == message.tool_calls.len()), "only the last call may be cut off");
    message.tool_calls.iter().for_each(complete_arguments_are_json);
}

/// Numbers and depths that JSON allows and this reader does not are let off.
fn complete_arguments_are_json(call: &ParsedToolCall) {
    if !call.ended || call.form == ArgumentsForm::Raw {
        return;
    }
    if let Err(error) = serde_json::from_str::<serde_json::Value>(&call.arguments) {
        let error = error.to_string();
        assert!(error.contains("recursion limit") || error.contains("number out of range"), "{error}: {call:?}");
    }
}

/// A control token, a piece of markup's text, or text.
fn answer_tokens(tokenizer: &Tokenizer, bytes: &mut Bytes<'_>) -> Vec<TokenId> {
    const WORDS: [&str; 12] = [
        "think",
        "response",
        "tools",
        "call",
        "argument",
        " tool=\"f\"",
        " key=\"k\"",
        " type=\"string\"",
        "json",
        " type=\"object\"",
        "message",
        "{\"a\":1}",
    ];
    let control = tokenizer.num_base_tokens()..tokenizer.vocab_size();
    match bytes.next() {
        byte @ 0..=95 => vec![TokenId((control.start + usize::from(byte) % control.len().max(1)) as u32)],
        byte @ 96..=160 => tokenizer.encode_text(WORDS[usize::from(byte) % WORDS.len()]),
        _ => tokenizer.encode_text(&bytes.text()),
    }
}

/// Files beside a checkpoint: the first byte chooses which.
pub fn config(data: &[u8]) {
    let Some((&file, rest)) = data.split_first() else { return };
    let (text, path) = (String::from_utf8_lossy(rest), Path::new("config.json"));
    match file % 4 {
        0 => {
            if let Ok(config) = ModelConfig::from_json_str(&text)
                && config.num_layers() <= MAX_LAYERS
            {
                assert!(!expected_tensors(&config).is_empty());
            }
        }
        1 => says(DraftConfig::from_json_str(&text).err()),
        2 => says(TokenizerConfig::from_json(&text, path).err()),
        _ => says(GenerationConfig::from_json(&text, path).err()),
    }
}

fn says(refusal: Option<ConfigError>) {
    if let Some(error) = refusal {
        assert!(error.to_string().len() > 10, "{error:?}");
    }
}

/// Checkpoint files: a file as one checkpoint; or, where the first byte is odd, an index beside an empty file.
pub fn safetensors(data: &[u8]) {
    let Some((&choice, rest)) = data.split_first() else { return };
    let dir = tempfile::tempdir().expect("a folder");
    let name = if choice % 2 == 0 { "model.safetensors" } else { "model.safetensors.index.json" };
    std::fs::write(dir.path().join(name), rest).expect("a file");
    match SafetensorsDir::open(dir.path()) {
        Err(error) => assert!(error.to_string().len() > 10, "{error:?}"),
        Ok(found) => read_all(&found),
    }
}

fn read_all(found: &SafetensorsDir) {
    for name in found.names() {
        assert!(found.describe(name).is_some());
        match (found.spec(name), found.get(name)) {
            (Some(spec), Ok(tensor)) => assert_eq!(spec, *tensor.spec()),
            (None, Err(WeightsError::Mismatch { .. })) => {}
            (spec, got) => panic!("{name}: {spec:?}, {}", got.is_ok()),
        }
    }
}

/// Decisions read off bytes; zeros where there are none left.
struct Bytes<'a>(&'a [u8]);

impl Bytes<'_> {
    fn next(&mut self) -> u8 {
        let Some((&first, rest)) = self.0.split_first() else { return 0 };
        self.0 = rest;
        first
    }

    /// Up to 63 bytes as text.
    fn text(&mut self) -> String {
        let length = usize::from(self.next() % 64).min(self.0.len());
        let (text, rest) = self.0.split_at(length);
        self.0 = rest;
        String::from_utf8_lossy(text).into_owned()
    }
}

fn conversation(bytes: &mut Bytes<'_>) -> Conversation {
    let choice = bytes.next();
    let mut conversation = Conversation {
        thinking: if choice & 1 == 0 { Thinking::On } else { Thinking::Off },
        effort: [None, Some(Effort::Low), Some(Effort::High), Some(Effort::Max)][usize::from(choice >> 1 & 3)],
        tool_choice: [ToolChoice::Auto, ToolChoice::None, ToolChoice::Required][usize::from(choice >> 3) % 3],
        tools_json: (choice & 0x80 != 0).then(|| "[{\"type\":\"function\"}]".to_owned()),
        ..Conversation::default()
    };
    while !bytes.0.is_empty() && conversation.messages.len() < 12 {
        conversation.messages.push(message(bytes));
    }
    conversation
}

fn message(bytes: &mut Bytes<'_>) -> ChatMessage {
    let choice = bytes.next();
    let role = [Role::System, Role::User, Role::Assistant, Role::Tool][usize::from(choice & 3)];
    let mut message = ChatMessage::new(role, bytes.text());
    if choice & 4 != 0 {
        message.content.push(bytes.text());
    }
    if choice & 8 != 0 {
        message.name = Some(bytes.text());
    }
    if role == Role::Assistant {
        message.reasoning = (choice & 16 != 0).then(|| bytes.text());
        let call = |place| ToolCall {
            id: format!("call_{place}"),
            name: "get".to_owned(),
            arguments: Arguments::from_json(&bytes.text()),
        };
        message.tool_calls = (0..choice >> 6).map(call).collect();
    }
    if role == Role::Tool {
        message.tool_call_id = Some(format!("call_{}", choice >> 6));
    }
    message
}
