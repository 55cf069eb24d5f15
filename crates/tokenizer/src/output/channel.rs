//! Which part of the answer a generated token belongs to, decided on token ids.
//!
//! What: the elements of K3's output format as events. Only ids beyond the base vocabulary are structure, so content
//! that merely looks like a marker stays content, and no marker ever shows in a channel. What not: text (`parser`).
//!
//! The rules where the model errs:
//! * The think channel is never closed, but the response or the whole message is: what was thought was the answer
//!   ([`ChannelEvent::ReasoningWasContent`]).
//! * A response or a call opens while the think channel is open: thinking ends there.
//! * Text after the think channel and before a response is content; after the response, or between calls, it is
//!   dropped, as are unknown elements' heads (their bodies belong to the channel around them).
//! * A call without a tool name is dropped; so is a head that the generation ends in.
//! * The tools or the message end within a call: it ends there, too. Where only the generation ends, it does not.
//! * A head of more than [`MAX_HEADER_TOKENS`] tokens is none: its text belongs to the channel it began in.
//!
//! Source: `spec/kimi-k3.md` 5.3, "Parsing what the model writes".

use std::sync::Arc;

use perilune_tensor::TokenId;

use super::header::Header;
use crate::chat::FormatTokens;
use crate::{Tokenizer, TokenizerError};

/// Longest head of an element, in tokens; a tool name has at most 256 characters.
const MAX_HEADER_TOKENS: usize = 512;

/// The channel in which the prompt left the answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum OutputStart {
    /// The think channel is open.
    Reasoning,
    /// The response channel is open.
    Content,
}

/// What a token meant. Most tokens are one event; markers are none until their `<|sep|>`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ChannelEvent {
    /// A token of the think channel.
    Reasoning(TokenId),
    /// A token of the response channel.
    Content(TokenId),
    /// The model answered without closing the think channel: every `Reasoning` token so far was content.
    ReasoningWasContent,
    /// A call of this tool begins.
    ToolCallStart {
        /// Number of the call in this answer, from 0; calls without a name do not count.
        index: usize,
        /// The tool's name, whole.
        name: String,
    },
    /// An argument begins.
    ArgumentStart {
        /// Its name.
        key: String,
        /// The JSON type the model gave, such as `string`; empty where it gave none.
        kind: String,
    },
    /// All arguments follow as one text, which need not be JSON.
    RawArgumentsStart,
    /// A token of the argument, or of the raw arguments.
    ArgumentToken(TokenId),
    /// The argument, or the raw arguments, are complete.
    ArgumentEnd,
    /// The call is complete. A call without this event was cut off; it is the last.
    ToolCallEnd,
    /// The message is complete; nothing follows.
    EndOfMessage,
}

/// Follows one answer.
#[derive(Debug, Clone)]
pub struct ChannelParser {
    tokenizer: Arc<Tokenizer>,
    tokens: FormatTokens,
    place: Place,
    marker: Option<Marker>,
    /// Whether the think channel was closed or anything after it has begun.
    has_answered: bool,
    has_reasoning: bool,
    num_calls: usize,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Place {
    Reasoning,
    /// In the response, or between think channel and response.
    Content,
    /// After the response, or in the tools element outside a call.
    Outside,
    Call,
    Argument,
    DroppedCall,
    DroppedArgument,
    Ended,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum MarkerKind {
    Open,
    Close,
}

/// A head that has begun.
#[derive(Debug, Clone)]
struct Marker {
    kind: MarkerKind,
    tokens: Vec<TokenId>,
}

impl ChannelParser {
    /// A parser for an answer that begins in `start`.
    ///
    /// Errors: `NoChatFormat` when the vocabulary names the control tokens of no known format.
    pub fn new(tokenizer: Arc<Tokenizer>, start: OutputStart) -> Result<Self, TokenizerError> {
        let tokens = FormatTokens::find(&tokenizer)?;
        let place = match start {
            OutputStart::Reasoning => Place::Reasoning,
            OutputStart::Content => Place::Content,
        };
        Ok(Self {
            tokenizer,
            tokens,
            place,
            marker: None,
            has_answered: start == OutputStart::Content,
            has_reasoning: false,
            num_calls: 0,
        })
    }

    /// Takes the next generated token, the one that stopped the generation included.
    pub fn push(&mut self, token: TokenId) -> Vec<ChannelEvent> {
        let mut events = Vec::new();
        if self.place == Place::Ended {
            return events;
        }
        match self.tokens {
            _ if self.tokenizer.is_stop(token) => self.end(&mut events),
            FormatTokens::Im(_) if self.tokenizer.is_control(token) => {}
            FormatTokens::Im(_) => self.text(token, &mut events),
            FormatTokens::Xtml(tokens) if token == tokens.end_of_message => self.end(&mut events),
            FormatTokens::Xtml(tokens) if token == tokens.open => self.begin(MarkerKind::Open),
            FormatTokens::Xtml(tokens) if token == tokens.close => self.begin(MarkerKind::Close),
            FormatTokens::Xtml(tokens) if token == tokens.sep => self.complete_marker(&mut events),
            FormatTokens::Xtml(_) if self.tokenizer.is_control(token) => {}
            FormatTokens::Xtml(_) => self.ordinary(token, &mut events),
        }
        events
    }

    fn begin(&mut self, kind: MarkerKind) {
        self.marker = Some(Marker { kind, tokens: Vec::new() });
    }

    fn ordinary(&mut self, token: TokenId, events: &mut Vec<ChannelEvent>) {
        let Some(marker) = &mut self.marker else { return self.text(token, events) };
        marker.tokens.push(token);
        if marker.tokens.len() > MAX_HEADER_TOKENS {
            let tokens = std::mem::take(&mut marker.tokens);
            self.marker = None;
            tokens.into_iter().for_each(|token| self.text(token, events));
        }
    }

    fn text(&mut self, token: TokenId, events: &mut Vec<ChannelEvent>) {
        match self.place {
            Place::Reasoning => {
                self.has_reasoning = true;
                events.push(ChannelEvent::Reasoning(token));
            }
            Place::Content => events.push(ChannelEvent::Content(token)),
            Place::Argument => events.push(ChannelEvent::ArgumentToken(token)),
            Place::Outside | Place::Call | Place::DroppedCall | Place::DroppedArgument | Place::Ended => {}
        }
    }

    fn complete_marker(&mut self, events: &mut Vec<ChannelEvent>) {
        let Some(marker) = self.marker.take() else { return };
        // ids below the base vocabulary's size are never unknown
        let bytes = self.tokenizer.decode_bytes(&marker.tokens).unwrap_or_default();
        let header = Header::parse(&String::from_utf8_lossy(&bytes));
        match marker.kind {
            MarkerKind::Open => self.open(&header, events),
            MarkerKind::Close => self.close(&header.tag, events),
        }
    }

    fn open(&mut self, header: &Header, events: &mut Vec<ChannelEvent>) {
        match (header.tag.as_str(), self.place) {
            ("argument" | "json", Place::Call) => self.open_argument(header, events),
            ("call", Place::Reasoning | Place::Content | Place::Outside) => self.open_call(header, events),
            ("think", Place::Content | Place::Outside) => self.place = Place::Reasoning,
            ("response", Place::Reasoning | Place::Content | Place::Outside) => {
                self.has_answered = true;
                self.place = Place::Content;
            }
            ("tools", Place::Reasoning | Place::Content | Place::Outside) => {
                self.has_answered = true;
                self.place = Place::Outside;
            }
            _ => {}
        }
    }

    fn open_call(&mut self, header: &Header, events: &mut Vec<ChannelEvent>) {
        self.has_answered = true;
        let Some(name) = header.attribute("tool").filter(|name| !name.is_empty()) else {
            self.place = Place::DroppedCall;
            return;
        };
        events.push(ChannelEvent::ToolCallStart { index: self.num_calls, name: name.to_owned() });
        self.place = Place::Call;
    }

    fn open_argument(&mut self, header: &Header, events: &mut Vec<ChannelEvent>) {
        let event = match (header.tag.as_str(), header.attribute("key")) {
            ("json", _) => ChannelEvent::RawArgumentsStart,
            (_, Some(key)) => {
                let kind = header.attribute("type").unwrap_or_default().to_owned();
                ChannelEvent::ArgumentStart { key: key.to_owned(), kind }
            }
            (_, None) => {
                self.place = Place::DroppedArgument;
                return;
            }
        };
        events.push(event);
        self.place = Place::Argument;
    }

    fn close(&mut self, tag: &str, events: &mut Vec<ChannelEvent>) {
        match (tag, self.place) {
            ("message", _) => self.end(events),
            ("think", Place::Reasoning) => {
                self.has_answered = true;
                self.place = Place::Content;
            }
            ("response", Place::Reasoning | Place::Content) => {
                self.reclassify(events);
                self.place = Place::Outside;
            }
            ("argument" | "json", Place::Argument) => {
                events.push(ChannelEvent::ArgumentEnd);
                self.place = Place::Call;
            }
            ("argument" | "json", Place::DroppedArgument) => self.place = Place::Call,
            ("call", Place::Call | Place::Argument | Place::DroppedArgument) => self.close_call(events),
            ("call", Place::DroppedCall) => self.place = Place::Outside,
            ("tools", Place::Call | Place::Argument | Place::DroppedArgument) => self.close_call(events),
            ("tools", Place::DroppedCall) => self.place = Place::Outside,
            _ => {}
        }
    }

    fn close_call(&mut self, events: &mut Vec<ChannelEvent>) {
        if self.place == Place::Argument {
            events.push(ChannelEvent::ArgumentEnd);
        }
        events.push(ChannelEvent::ToolCallEnd);
        self.num_calls += 1;
        self.place = Place::Outside;
    }

    fn reclassify(&mut self, events: &mut Vec<ChannelEvent>) {
        if self.place == Place::Reasoning && self.has_reasoning && !self.has_answered {
            events.push(ChannelEvent::ReasoningWasContent);
        }
        self.has_answered = true;
    }

    fn end(&mut self, events: &mut Vec<ChannelEvent>) {
        if matches!(self.place, Place::Call | Place::Argument | Place::DroppedArgument) {
            self.close_call(events);
        }
        self.reclassify(events);
        events.push(ChannelEvent::EndOfMessage);
        self.marker = None;
        self.place = Place::Ended;
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::tokenizer::tests::{fixed_cases, k3, tiny};

    /// The events of some markup, with text tokens as their text.
    fn events(start: OutputStart, markup: &str) -> Vec<String> {
        let k3 = k3();
        let mut parser = ChannelParser::new(k3.clone(), start).unwrap();
        let text = |token: TokenId| String::from_utf8(k3.token_bytes(token).unwrap().to_vec()).unwrap();
        let shown = |event| match event {
            ChannelEvent::Reasoning(token) => format!("r:{}", text(token)),
            ChannelEvent::Content(token) => format!("c:{}", text(token)),
            ChannelEvent::ArgumentToken(token) => format!("a:{}", text(token)),
            ChannelEvent::ToolCallStart { index, name } => format!("call {index} {name}"),
            ChannelEvent::ArgumentStart { key, kind } => format!("{key}/{kind}"),
            ChannelEvent::RawArgumentsStart => "raw".to_owned(),
            ChannelEvent::ReasoningWasContent => "was content".to_owned(),
            ChannelEvent::ArgumentEnd => "/argument".to_owned(),
            ChannelEvent::ToolCallEnd => "/call".to_owned(),
            ChannelEvent::EndOfMessage => "end".to_owned(),
        };
        k3.encode_markup(markup).into_iter().flat_map(|token| parser.push(token)).map(shown).collect()
    }

    fn check(start: OutputStart, markup: &str, expected: &[&str]) {
        assert_eq!(events(start, markup), expected, "{markup}");
    }

    #[test]
    fn the_golden_form() {
        check(
            OutputStart::Reasoning,
            "hm<|close|>think<|sep|><|open|>response<|sep|>yes<|close|>response<|sep|><|close|>message<|sep|><|end_of_msg|>",
            &["r:hm", "c:yes", "end"],
        );
        check(
            OutputStart::Content,
            "yes<|close|>response<|sep|><|open|>tools<|sep|><|open|>call tool=\"f\" index=\"1\"<|sep|>\
             <|open|>argument key=\"k\" type=\"number\"<|sep|>7<|close|>argument<|sep|><|close|>call<|sep|>\
             <|open|>call tool=\"g\" index=\"2\"<|sep|><|open|>json type=\"object\"<|sep|>x<|close|>json<|sep|>\
             <|close|>call<|sep|><|close|>tools<|sep|><|close|>message<|sep|><|end_of_msg|>",
            &[
                "c:yes",
                "call 0 f",
                "k/number",
                "a:7",
                "/argument",
                "/call",
                "call 1 g",
                "raw",
                "a:x",
                "/argument",
                "/call",
                "end",
            ],
        );
    }

    #[test]
    fn a_skipped_think_close_makes_the_reasoning_content() {
        let expected = ["r:answer", "was content", "end"];
        check(OutputStart::Reasoning, "answer<|close|>response<|sep|><|close|>message<|sep|><|end_of_msg|>", &expected);
        check(OutputStart::Reasoning, "answer<|close|>message<|sep|><|end_of_msg|>", &expected);
        check(OutputStart::Reasoning, "answer<|end_of_msg|>", &expected);
        check(OutputStart::Reasoning, "answer[EOS]", &expected);
        // but not where an answer did come, or nothing was thought
        check(OutputStart::Reasoning, "a<|open|>response<|sep|>b<|close|>message<|sep|>", &["r:a", "c:b", "end"]);
        check(OutputStart::Reasoning, "a<|close|>think<|sep|><|end_of_msg|>", &["r:a", "end"]);
        check(OutputStart::Reasoning, "<|close|>response<|sep|><|end_of_msg|>", &["end"]);
        check(OutputStart::Content, "b<|open|>think<|sep|>a<|end_of_msg|>", &["c:b", "r:a", "end"]);
    }

    #[test]
    fn text_goes_where_it_belongs() {
        check(OutputStart::Reasoning, "a<|close|>think<|sep|>b", &["r:a", "c:b"]);
        check(OutputStart::Content, "b<|close|>response<|sep|>stray", &["c:b"]);
        check(OutputStart::Content, "b<|close|>message<|sep|>after<|open|>response<|sep|>x", &["c:b", "end"]);
        check(
            OutputStart::Content,
            "b<|open|>unknown<|sep|>c<|close|>unknown<|sep|>d<|sep|>e",
            &["c:b", "c:c", "c:d", "c:e"],
        );
        check(OutputStart::Content, "a<|media_pad|>[BOS]b", &["c:a", "c:b"]);
    }

    #[test]
    fn broken_calls() {
        // no name; then a good one, whose number does not count the dropped one
        check(
            OutputStart::Content,
            "<|open|>tools<|sep|><|open|>call index=\"1\"<|sep|><|open|>argument key=\"k\"<|sep|>x<|close|>argument<|sep|>\
             <|close|>call<|sep|><|open|>call tool=\"f\"<|sep|><|open|>argument type=\"string\"<|sep|>x<|close|>argument<|sep|>\
             <|close|>call<|sep|>",
            &["call 0 f", "/call"],
        );
        // the call ends within its argument
        check(
            OutputStart::Content,
            "<|open|>tools<|sep|><|open|>call tool=\"f\"<|sep|><|open|>argument key=\"k\"<|sep|>x<|close|>call<|sep|>",
            &["call 0 f", "k/", "a:x", "/argument", "/call"],
        );
        // the tools or the message end within a call
        check(
            OutputStart::Content,
            "<|open|>tools<|sep|><|open|>call tool=\"f\"<|sep|><|close|>tools<|sep|><|open|>call tool=\"g\"<|sep|>",
            &["call 0 f", "/call", "call 1 g"],
        );
        for end in ["<|end_of_msg|>", "<|close|>message<|sep|>", "[EOS]"] {
            let markup = format!("<|open|>call tool=\"f\"<|sep|><|open|>argument key=\"k\"<|sep|>x{end}");
            check(OutputStart::Content, &markup, &["call 0 f", "k/", "a:x", "/argument", "/call", "end"]);
        }
    }

    #[test]
    fn a_head_without_end_is_text_after_512_tokens() {
        let parsed = events(OutputStart::Content, &format!("<|open|>{}", " x".repeat(600)));
        assert_eq!(parsed, vec!["c: x"; 600]);
        assert!(events(OutputStart::Content, &format!("<|open|>{}", " x".repeat(500))).is_empty());
    }

    #[test]
    fn the_other_format_has_content_until_its_end() {
        let tokenizer = tiny(&["<|im_system|>", "<|im_user|>", "<|im_assistant|>", "<|im_middle|>", "<|im_end|>"]);
        let mut parser = ChannelParser::new(tokenizer.clone(), OutputStart::Content).unwrap();
        let tokens = tokenizer.encode_markup("a<|im_middle|>b<|im_end|>c");
        let events: Vec<ChannelEvent> = tokens.into_iter().flat_map(|token| parser.push(token)).collect();
        let content = |byte: u8| ChannelEvent::Content(TokenId(byte.into()));
        assert_eq!(events, [content(b'a'), content(b'b'), ChannelEvent::EndOfMessage]);
    }

    #[test]
    fn no_order_of_tokens_leaks_control_or_speaks_after_the_end() {
        let k3 = k3();
        let mut parts: Vec<Vec<TokenId>> = (163_584..163_592).map(|id| vec![TokenId(id)]).collect();
        for text in ["think", "response", "message", "tools", "call tool=\"f\"", "argument key=\"k\"", "json", "word"] {
            parts.push(k3.encode_text(text));
        }
        let parts = proptest::collection::vec(proptest::sample::select(parts), 0..60);
        proptest!(fixed_cases(1000), |(parts in parts, start in proptest::sample::select(vec![OutputStart::Reasoning, OutputStart::Content]))| {
            let mut parser = ChannelParser::new(k3.clone(), start).unwrap();
            let mut ended = false;
            let mut in_argument = false;
            for event in parts.concat().into_iter().flat_map(|token| parser.push(token)) {
                prop_assert!(!ended);
                match event {
                    ChannelEvent::Reasoning(token) | ChannelEvent::Content(token) => prop_assert!(!k3.is_control(token)),
                    ChannelEvent::ArgumentToken(token) => prop_assert!(in_argument && !k3.is_control(token)),
                    ChannelEvent::ArgumentStart { .. } | ChannelEvent::RawArgumentsStart => in_argument = true,
                    ChannelEvent::ArgumentEnd => in_argument = false,
                    ChannelEvent::EndOfMessage => ended = true,
                    _ => {}
                }
            }
        });
    }
}
