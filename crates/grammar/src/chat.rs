//! The answer of a chat as a grammar: which channels come, what each holds, which calls may be made.

use perilune_tensor::TokenId;
use perilune_tokenizer::{OutputStart, Tokenizer};
use serde_json::Value;

use crate::lark::{Lark, exactly};
use crate::parameters;
use crate::{GrammarError, TextRule};

/// Most calls in one answer.
const MAX_CALLS: usize = 32;
/// Most heads of calls that are written out: each number of a call has one per tool.
const MAX_HEADS: usize = 4096;
/// Any text, none included.
const ANY_TEXT: &str = "/(?s:.*)/";

/// What an answer must be.
#[derive(Debug, Clone, PartialEq)]
pub struct ChatRule {
    /// The channel in which the prompt leaves the answer.
    pub start: OutputStart,
    /// What the response must be; `None` for any text.
    pub response: Option<TextRule>,
    /// Whether tools are called.
    pub calls: Calls,
    /// Whether there may be several calls.
    pub parallel: Parallel,
    /// The tools that may be called.
    pub tools: Vec<ToolRule>,
}

/// Whether tools are called.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Calls {
    /// Never.
    None,
    /// As the model sees fit, after its response.
    Optional,
    /// At least once; the response stays empty.
    Required,
}

/// Whether there may be several calls.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Parallel {
    /// Up to 32, fewer where there are more than 128 tools.
    Several,
    /// One at most.
    One,
}

/// A tool and what it may be called with.
#[derive(Debug, Clone, PartialEq)]
pub struct ToolRule {
    /// Its name.
    pub name: String,
    /// Its arguments.
    pub arguments: Arguments,
}

/// What a tool may be called with.
#[derive(Debug, Clone, PartialEq)]
pub enum Arguments {
    /// Anything of the right form.
    Any,
    /// What this schema allows.
    Schema(Value),
}

/// The control tokens of a chat format.
#[derive(Debug, Clone, Copy)]
pub(crate) enum ChatTokens {
    /// K3's elements.
    Xtml(XtmlTokens),
    /// Content and nothing else, up to this token.
    Im(TokenId),
}

/// K3's control tokens.
#[derive(Debug, Clone, Copy)]
pub(crate) struct XtmlTokens {
    pub(crate) open: TokenId,
    pub(crate) close: TokenId,
    pub(crate) sep: TokenId,
    pub(crate) end_of_message: TokenId,
}

impl ChatTokens {
    /// The format of a vocabulary, K3's where it names both; `None` for a base model.
    pub(crate) fn find(tokenizer: &Tokenizer) -> Option<Self> {
        let id = |name| tokenizer.special_id(name);
        let xtml = || {
            let (open, close, sep) = (id("<|open|>")?, id("<|close|>")?, id("<|sep|>")?);
            Some(XtmlTokens { open, close, sep, end_of_message: id("<|end_of_msg|>")? })
        };
        xtml().map(ChatTokens::Xtml).or_else(|| id("<|im_end|>").map(ChatTokens::Im))
    }
}

impl ChatRule {
    /// Writes the grammar. It begins after the think channel.
    ///
    /// # Errors
    /// `Vocabulary` for calls in a format without them, and what is wrong with a text rule.
    pub(crate) fn write(&self, tokenizer: &Tokenizer, tokens: ChatTokens) -> Result<Lark, GrammarError> {
        let mut lark = Lark::default();
        let response = match &self.response {
            Some(rule) => lark.text(rule)?,
            None => ANY_TEXT.to_owned(),
        };
        lark.rule("response", &response);
        match tokens {
            ChatTokens::Im(_) if self.calls != Calls::None && !self.tools.is_empty() => {
                let reason = "this checkpoint's chat format has no tool calls that a grammar could enforce";
                return Err(GrammarError::Vocabulary(reason.to_owned()));
            }
            ChatTokens::Im(end) => lark.rule("start", &format!("response {}", exactly(&[end]))),
            ChatTokens::Xtml(tokens) => self.xtml(&mut lark, &Markup { tokenizer, tokens }),
        }
        Ok(lark)
    }

    fn xtml(&self, lark: &mut Lark, markup: &Markup<'_>) {
        let opener = match self.start {
            OutputStart::Reasoning => markup.open("response", &[]),
            OutputStart::Content => String::new(),
        };
        let (closed, end) = (markup.close("response"), markup.end_of_message());
        let calls = if self.tools.is_empty() { Calls::None } else { self.calls };
        let body = match (calls, &self.response) {
            (Calls::None, _) => format!("{opener} response {closed} {end}"),
            (Calls::Required, _) => format!("{opener} {closed} tools {end}"),
            (Calls::Optional, None) => format!("{opener} response {closed} tools? {end}"),
            (Calls::Optional, Some(_)) => {
                format!("{opener} response {closed} tools? {end} | {opener} {closed} tools {end}")
            }
        };
        lark.rule("start", &body);
        if calls != Calls::None {
            self.tools(lark, markup);
        }
    }

    /// Rules for up to the most calls there may be, each with its own number in its head.
    fn tools(&self, lark: &mut Lark, markup: &Markup<'_>) {
        let most =
            if self.parallel == Parallel::One { 1 } else { (MAX_HEADS / self.tools.len().max(1)).clamp(1, MAX_CALLS) };
        lark.rule("tools", &format!("{} call1 {}", markup.open("tools", &[]), markup.close("tools")));
        for (k, tool) in self.tools.iter().enumerate() {
            let arguments = parameters::write(lark, markup, &tool.arguments);
            lark.rule(&format!("arguments{k}"), &arguments);
        }
        for index in 1..=most {
            let number = index.to_string();
            let call = |(k, tool): (usize, &ToolRule)| {
                let head = markup.open("call", &[("tool", &tool.name), ("index", &number)]);
                format!("{head} arguments{k}")
            };
            let any: Vec<String> = self.tools.iter().enumerate().map(call).collect();
            let next = if index < most { format!("call{}?", index + 1) } else { String::new() };
            lark.rule(&format!("call{index}"), &format!("({}) {} {next}", any.join(" | "), markup.close("call")));
        }
    }
}

/// Writes control tokens and what stands in markers, as exactly the tokens the renderer writes.
pub(crate) struct Markup<'a> {
    pub(crate) tokenizer: &'a Tokenizer,
    pub(crate) tokens: XtmlTokens,
}

impl Markup<'_> {
    /// `<|open|>tag key="value"<|sep|>`.
    pub(crate) fn open(&self, tag: &str, attributes: &[(&str, &str)]) -> String {
        let mut ids = vec![self.tokens.open];
        self.text(tag, &mut ids);
        for (key, value) in attributes {
            self.text(&format!(" {key}"), &mut ids);
            self.text("=\"", &mut ids);
            self.text(&value.replace('&', "&amp;").replace('"', "&quot;"), &mut ids);
            self.text("\"", &mut ids);
        }
        ids.push(self.tokens.sep);
        exactly(&ids)
    }

    /// `<|close|>tag<|sep|>`.
    pub(crate) fn close(&self, tag: &str) -> String {
        exactly(&self.closing(tag))
    }

    /// The tokens of `<|close|>tag<|sep|>`.
    pub(crate) fn closing(&self, tag: &str) -> Vec<TokenId> {
        let mut ids = vec![self.tokens.close];
        self.text(tag, &mut ids);
        ids.push(self.tokens.sep);
        ids
    }

    fn end_of_message(&self) -> String {
        format!("{} {}", self.close("message"), exactly(&[self.tokens.end_of_message]))
    }

    /// The tokens of one segment, tokenised alone.
    fn text(&self, segment: &str, ids: &mut Vec<TokenId>) {
        self.tokenizer.append_text(segment, ids);
    }
}
