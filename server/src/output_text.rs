//! Tokens of one choice to text: channels in chat, plain text in completions, nothing on token ids alone.

use std::sync::Arc;

use perilune_tensor::TokenId;
use perilune_tokenizer::{
    CallStep, Channel, IncrementalDecoder, OutputDelta, OutputParser, SpecialTokens, StopMatcher, Tokenizer,
};

use crate::error::ApiError;

/// Text that a token made certain.
#[derive(Debug, Clone, Default)]
pub struct TextStep {
    /// Reasoning.
    pub reasoning: String,
    /// The answer.
    pub content: String,
    /// Tool calls that begin, go on, end.
    pub tool_calls: Vec<CallStep>,
    /// All reasoning so far was content, and `content` brings it again.
    pub reasoning_was_content: bool,
    /// The stop string that ends the answer here.
    pub stopped_by: Option<String>,
    /// What the token was part of.
    pub channel: Channel,
}

/// Turns the tokens of one choice into text.
pub struct OutputText {
    source: Source,
    stops: Stops,
    num_chars: usize,
    num_tokens: usize,
}

/// Stop strings and the tokens they spare.
#[derive(Debug, Clone, Default)]
pub struct StopStrings {
    /// The strings.
    pub texts: Vec<String>,
    /// Tokens on which they do not act.
    pub min_tokens: usize,
}

enum Source {
    Chat(Box<OutputParser>),
    Plain(IncrementalDecoder),
    Ids,
}

struct Stops {
    matcher: Option<StopMatcher>,
    texts: Vec<String>,
    min_tokens: usize,
}

impl OutputText {
    /// The answer of a chat, in channels.
    ///
    /// # Errors
    /// 400 for stop strings that cannot be matched.
    pub fn chat(parser: OutputParser, stops: StopStrings) -> Result<Self, ApiError> {
        Self::new(Source::Chat(Box::new(parser)), stops)
    }

    /// Plain text.
    ///
    /// # Errors
    /// 400 for stop strings that cannot be matched.
    pub fn plain(tokenizer: Arc<Tokenizer>, specials: SpecialTokens, stops: StopStrings) -> Result<Self, ApiError> {
        Self::new(Source::Plain(IncrementalDecoder::new(tokenizer, specials)), stops)
    }

    /// No text at all.
    ///
    /// # Errors
    /// 400 for stop strings, which need text.
    pub fn ids(stops: StopStrings) -> Result<Self, ApiError> {
        if !stops.texts.is_empty() {
            let rule = "`stop` needs a tokenizer, which this server runs without; use `stop_token_ids`";
            return Err(ApiError::invalid(rule, Some("stop")));
        }
        Self::new(Source::Ids, stops)
    }

    fn new(source: Source, stops: StopStrings) -> Result<Self, ApiError> {
        let StopStrings { texts, min_tokens } = stops;
        let matcher = match texts.as_slice() {
            [] => None,
            texts => Some(StopMatcher::new(texts).map_err(|e| ApiError::invalid(e.to_string(), Some("stop")))?),
        };
        Ok(OutputText { source, stops: Stops { matcher, texts, min_tokens }, num_chars: 0, num_tokens: 0 })
    }

    /// Takes a token.
    pub fn push(&mut self, token: TokenId) -> TextStep {
        self.num_tokens += 1;
        let mut step = match &mut self.source {
            // An id beyond the tokenizer's vocabulary (padding of the model's) has no text, here and below.
            Source::Chat(parser) => from_delta(parser.push(token).unwrap_or_default()),
            Source::Plain(decoder) => {
                let content = decoder.push(token).unwrap_or_default();
                TextStep { content, channel: Channel::Content, ..Default::default() }
            }
            Source::Ids => TextStep::default(),
        };
        self.count(&step);
        if self.num_tokens > self.stops.min_tokens {
            self.stops.apply(&mut step);
        }
        step
    }

    /// Takes the model's own end of the message, which is no text but may settle what was.
    pub fn end_of_message(&mut self, token: TokenId) -> TextStep {
        match self.source {
            Source::Chat(_) => self.push(token),
            Source::Plain(_) | Source::Ids => TextStep::default(),
        }
    }

    /// Ends the text: what was held back comes out.
    pub fn finish(&mut self) -> TextStep {
        let mut step = match &mut self.source {
            Source::Chat(parser) => from_delta(parser.finish()),
            Source::Plain(decoder) => TextStep { content: decoder.finish(), ..Default::default() },
            Source::Ids => TextStep::default(),
        };
        self.count(&step);
        self.stops.apply(&mut step);
        if step.stopped_by.is_none() {
            step.content.push_str(&self.stops.rest());
        }
        step
    }

    /// Characters decoded so far, before stop strings.
    pub fn num_chars(&self) -> usize {
        self.num_chars
    }

    /// Tokens so far that are reasoning.
    pub fn num_reasoning_tokens(&self) -> usize {
        match &self.source {
            Source::Chat(parser) => parser.num_reasoning_tokens(),
            Source::Plain(_) | Source::Ids => 0,
        }
    }

    fn count(&mut self, step: &TextStep) {
        self.num_chars += step.reasoning.chars().count() + step.content.chars().count();
    }
}

impl Stops {
    fn apply(&mut self, step: &mut TextStep) {
        let Some(matcher) = &mut self.matcher else { return };
        let found = matcher.push(&step.content);
        step.content = found.text;
        // A call ends the text before it: what may still become a stop string there no longer can.
        if found.matched.is_none() && matches!(step.tool_calls.first(), Some(CallStep::Start { .. })) {
            step.content.push_str(&matcher.finish());
        }
        if let Some(matched) = found.matched {
            step.stopped_by = self.texts.get(matched).cloned();
            step.tool_calls.clear();
        }
    }

    fn rest(&mut self) -> String {
        self.matcher.as_mut().map(StopMatcher::finish).unwrap_or_default()
    }
}

fn from_delta(delta: OutputDelta) -> TextStep {
    TextStep {
        reasoning: delta.reasoning,
        content: delta.content,
        tool_calls: delta.tool_calls,
        reasoning_was_content: delta.reasoning_was_content,
        stopped_by: None,
        channel: delta.channel,
    }
}
