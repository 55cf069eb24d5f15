//! The text of an answer, channel by channel, as it is generated.
//!
//! What: joins [`ChannelParser`], a decoder per channel, stop strings and tool calls into deltas that, summed, are the
//! same whether they are streamed or not. What not: JSON of any API.
//!
//! Stop strings apply to content only: a stop of `\n\n` must not end an answer while the model still thinks.
//!
//! When the model answers without closing the think channel, all of it was content. A delta then says so
//! ([`OutputDelta::reasoning_was_content`]) and brings the whole text once more as content: a stream cannot take back
//! what it showed as reasoning, but its content is right, and [`ParsedMessage`] forgets the reasoning.

use std::sync::Arc;

use perilune_tensor::TokenId;

use super::tool_call::{CallStep, OpenCall, ParsedToolCall};
use super::{ChannelEvent, ChannelParser, OutputStart};
use crate::{IncrementalDecoder, SpecialTokens, StopMatcher, Tokenizer, TokenizerError};

/// How to read an answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OutputOptions {
    /// The channel in which the prompt left the answer.
    pub start: OutputStart,
    /// Stop strings; they end the content.
    pub stops: Vec<String>,
}

/// What a token was part of.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum Channel {
    /// The think channel.
    Reasoning,
    /// The response channel.
    Content,
    /// The arguments of a tool call.
    ToolCall,
    /// A marker, or dropped; in no channel.
    #[default]
    Control,
}

/// What a token added to the answer. Text may lag behind tokens: an incomplete character or a possible stop string is
/// held back until it is settled.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct OutputDelta {
    /// Text of the think channel.
    pub reasoning: String,
    /// Text of the response channel.
    pub content: String,
    /// Tool calls that begin, go on, end.
    pub tool_calls: Vec<CallStep>,
    /// The stop string that ended the content, by position; generation should end.
    pub stop: Option<usize>,
    /// The channel of the token that led to this delta.
    pub channel: Channel,
    /// All reasoning so far was content, and `content` brings it again.
    pub reasoning_was_content: bool,
    /// The message is complete.
    pub ended: bool,
}

impl OutputDelta {
    /// Whether there is nothing to send.
    pub fn is_empty(&self) -> bool {
        self.reasoning.is_empty() && self.content.is_empty() && self.tool_calls.is_empty()
    }
}

/// The sum of deltas: the message of an answer that is not streamed.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ParsedMessage {
    /// All of the think channel.
    pub reasoning: String,
    /// All of the response channel, up to a stop string.
    pub content: String,
    /// All calls; the last may have been cut off.
    pub tool_calls: Vec<ParsedToolCall>,
}

impl ParsedMessage {
    /// Adds a delta.
    pub fn apply(&mut self, delta: OutputDelta) {
        self.reasoning.push_str(&delta.reasoning);
        if delta.reasoning_was_content {
            self.reasoning.clear();
        }
        self.content.push_str(&delta.content);
        delta.tool_calls.into_iter().for_each(|step| ParsedToolCall::apply(&mut self.tool_calls, step));
    }
}

/// Reads one answer.
#[derive(Debug, Clone)]
pub struct OutputParser {
    tokenizer: Arc<Tokenizer>,
    channels: ChannelParser,
    reasoning: IncrementalDecoder,
    content: IncrementalDecoder,
    stops: StopMatcher,
    call: Option<OpenCall>,
    /// All reasoning, for the case that it turns out to be content.
    thought: String,
    num_reasoning_tokens: usize,
    stopped: bool,
}

impl OutputParser {
    /// A parser at the beginning of an answer.
    ///
    /// Errors: `NoChatFormat`, `EmptyStop`.
    pub fn new(tokenizer: Arc<Tokenizer>, options: &OutputOptions) -> Result<Self, TokenizerError> {
        let decoder = IncrementalDecoder::new(tokenizer.clone(), SpecialTokens::Skip);
        Ok(Self {
            channels: ChannelParser::new(tokenizer.clone(), options.start)?,
            reasoning: decoder.clone(),
            content: decoder,
            stops: StopMatcher::new(&options.stops)?,
            call: None,
            thought: String::new(),
            num_reasoning_tokens: 0,
            stopped: false,
            tokenizer,
        })
    }

    /// Takes the next generated token, the one that stopped the generation included. After a stop string or the end
    /// of the message every delta is empty.
    ///
    /// Errors: `UnknownToken` beyond the vocabulary.
    pub fn push(&mut self, token: TokenId) -> Result<OutputDelta, TokenizerError> {
        let mut delta = OutputDelta::default();
        if self.stopped {
            return Ok(delta);
        }
        self.tokenizer.token_bytes(token)?;
        for event in self.channels.push(token) {
            self.event(event, &mut delta)?;
        }
        Ok(delta)
    }

    /// Ends the answer, whatever it ended by: what was held back of its text is delivered; a marker that is not
    /// complete is not, and a call that is not stays as it is.
    pub fn finish(&mut self) -> OutputDelta {
        let mut delta = OutputDelta::default();
        self.flush_reasoning(&mut delta);
        self.flush_content(&mut delta);
        delta
    }

    /// Number of tokens that are reasoning, for usage.
    pub fn num_reasoning_tokens(&self) -> usize {
        self.num_reasoning_tokens
    }

    fn event(&mut self, event: ChannelEvent, delta: &mut OutputDelta) -> Result<(), TokenizerError> {
        match event {
            ChannelEvent::Reasoning(token) => {
                delta.channel = Channel::Reasoning;
                self.num_reasoning_tokens += 1;
                let text = self.reasoning.push(token)?;
                self.think(&text, delta);
            }
            ChannelEvent::Content(token) => {
                delta.channel = Channel::Content;
                self.flush_reasoning(delta);
                let text = self.content.push(token)?;
                self.speak(&text, delta);
            }
            ChannelEvent::ReasoningWasContent => self.reclassify(delta),
            ChannelEvent::ToolCallStart { name, .. } => {
                self.flush_reasoning(delta);
                self.flush_content(delta);
                self.call = Some(OpenCall::default());
                delta.tool_calls.push(CallStep::Start { name });
            }
            ChannelEvent::ToolCallEnd => {
                delta.tool_calls.extend(self.call.take().and_then(OpenCall::finish));
                delta.tool_calls.push(CallStep::End);
            }
            ChannelEvent::EndOfMessage => {
                self.flush_reasoning(delta);
                self.flush_content(delta);
                delta.ended = true;
            }
            argument => self.argument(argument, delta)?,
        }
        Ok(())
    }

    fn argument(&mut self, event: ChannelEvent, delta: &mut OutputDelta) -> Result<(), TokenizerError> {
        let Some(call) = &mut self.call else { return Ok(()) };
        let step = match event {
            ChannelEvent::ArgumentStart { key, kind } => call.start_argument(&key, &kind),
            ChannelEvent::RawArgumentsStart => {
                call.start_raw_arguments();
                None
            }
            ChannelEvent::ArgumentEnd => call.end_argument(),
            ChannelEvent::ArgumentToken(token) => {
                delta.channel = Channel::ToolCall;
                call.push(self.tokenizer.token_bytes(token)?)
            }
            _ => None,
        };
        delta.tool_calls.extend(step);
        Ok(())
    }

    fn think(&mut self, text: &str, delta: &mut OutputDelta) {
        self.thought.push_str(text);
        delta.reasoning.push_str(text);
    }

    fn speak(&mut self, text: &str, delta: &mut OutputDelta) {
        let step = self.stops.push(text);
        delta.content.push_str(&step.text);
        if step.matched.is_some() {
            delta.stop = step.matched;
            self.stopped = true;
        }
    }

    fn reclassify(&mut self, delta: &mut OutputDelta) {
        self.flush_reasoning(delta);
        delta.reasoning_was_content = true;
        self.num_reasoning_tokens = 0;
        let thought = std::mem::take(&mut self.thought);
        self.speak(&thought, delta);
    }

    fn flush_reasoning(&mut self, delta: &mut OutputDelta) {
        let text = self.reasoning.finish();
        self.think(&text, delta);
    }

    fn flush_content(&mut self, delta: &mut OutputDelta) {
        let text = self.content.finish();
        self.speak(&text, delta);
        delta.content.push_str(&self.stops.finish());
    }
}

#[cfg(test)]
#[path = "parser_tests.rs"]
mod tests;
