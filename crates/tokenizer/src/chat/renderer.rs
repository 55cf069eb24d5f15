//! Chooses a checkpoint's chat format and renders conversations in it.
//!
//! What: the format by the special tokens present, and the prompt with the places a later feature saves states at.
//! What not: the formats themselves (`xtml`, `im`).

use std::sync::Arc;

use perilune_tensor::TokenId;

use super::{Conversation, im, xtml};
use crate::{OutputStart, Tokenizer, TokenizerError};

const XTML_NAMES: &str = "<|open|>, <|close|>, <|sep|>, <|end_of_msg|>";
const IM_NAMES: &str = "<|im_system|>, <|im_user|>, <|im_assistant|>, <|im_middle|>, <|im_end|>";

/// How a checkpoint writes conversations.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ChatFormat {
    /// K3: elements of `<|open|>`, `<|close|>` and `<|sep|>`, with channels.
    Xtml,
    /// Kimi-Linear and K2: `<|im_user|>` … `<|im_end|>`, without channels.
    Im,
}

/// K3's control tokens.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct XtmlTokens {
    pub(crate) open: TokenId,
    pub(crate) close: TokenId,
    pub(crate) sep: TokenId,
    pub(crate) end_of_message: TokenId,
}

impl XtmlTokens {
    pub(crate) fn find(tokenizer: &Tokenizer) -> Option<Self> {
        Some(Self {
            open: tokenizer.special_id("<|open|>")?,
            close: tokenizer.special_id("<|close|>")?,
            sep: tokenizer.special_id("<|sep|>")?,
            end_of_message: tokenizer.special_id("<|end_of_msg|>")?,
        })
    }
}

/// The control tokens of Kimi-Linear and K2.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct ImTokens {
    pub(crate) system: TokenId,
    pub(crate) user: TokenId,
    pub(crate) assistant: TokenId,
    pub(crate) middle: TokenId,
    pub(crate) end: TokenId,
}

impl ImTokens {
    pub(crate) fn find(tokenizer: &Tokenizer) -> Option<Self> {
        Some(Self {
            system: tokenizer.special_id("<|im_system|>")?,
            user: tokenizer.special_id("<|im_user|>")?,
            assistant: tokenizer.special_id("<|im_assistant|>")?,
            middle: tokenizer.special_id("<|im_middle|>")?,
            end: tokenizer.special_id("<|im_end|>")?,
        })
    }
}

/// The format and its control tokens.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum FormatTokens {
    Xtml(XtmlTokens),
    Im(ImTokens),
}

impl FormatTokens {
    pub(crate) fn find(tokenizer: &Tokenizer) -> Result<Self, TokenizerError> {
        let xtml = XtmlTokens::find(tokenizer).map(Self::Xtml);
        let found = xtml.or_else(|| ImTokens::find(tokenizer).map(Self::Im));
        found.ok_or(TokenizerError::NoChatFormat { xtml: XTML_NAMES, im: IM_NAMES })
    }

    pub(crate) fn format(self) -> ChatFormat {
        match self {
            Self::Xtml(_) => ChatFormat::Xtml,
            Self::Im(_) => ChatFormat::Im,
        }
    }
}

/// A conversation as the model reads it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RenderedPrompt {
    /// The prompt, generation opener included.
    pub tokens: Vec<TokenId>,
    /// Where each rendered message ends, as a number of tokens from the beginning, ascending: the messages that
    /// declare tools and an effort count, those about the coming answer alone and the opened answer do not. Places at
    /// which a later prompt of this conversation agrees, so that a saved state is useful.
    pub message_ends: Vec<usize>,
    /// How many of these messages precede the conversation: tool declarations, directives, system messages at its begin.
    pub num_leading: usize,
    /// Number of prompt tokens to report as usage: `tokens` without the last opener (`<|open|>think<|sep|>` or
    /// `<|open|>response<|sep|>`, 3 tokens), as the vendor's service counts. In the `Im` format, all tokens.
    pub usage_tokens: usize,
    /// The channel in which the answer begins.
    pub start: OutputStart,
}

impl RenderedPrompt {
    /// The tokens up to the end of the conversation's last message.
    pub fn conversation(mut self) -> Vec<TokenId> {
        self.tokens.truncate(self.message_ends.last().copied().unwrap_or(0));
        self.tokens
    }

    /// Where a saved state is useful to later prompts, the best place first: where the conversation begins, as others have
    /// the same system prompt; the end of its last message, where the next turn goes on; the end of the tool declaration.
    pub fn save_at(&self) -> Vec<usize> {
        let leading = &self.message_ends[..self.num_leading];
        let mut places = Vec::new();
        for place in leading.last().into_iter().chain(self.message_ends.last()).chain(leading.first()) {
            if !places.contains(place) {
                places.push(*place);
            }
        }
        places
    }
}

/// Renders conversations in the format of one checkpoint.
#[derive(Debug, Clone)]
pub struct ChatRenderer {
    tokenizer: Arc<Tokenizer>,
    tokens: FormatTokens,
}

impl ChatRenderer {
    /// Chooses the format by the control tokens the vocabulary names; K3's where it names both.
    ///
    /// Errors: `NoChatFormat` where it names neither.
    pub fn new(tokenizer: Arc<Tokenizer>) -> Result<Self, TokenizerError> {
        let tokens = FormatTokens::find(&tokenizer)?;
        Ok(Self { tokenizer, tokens })
    }

    /// The format of this checkpoint.
    pub fn format(&self) -> ChatFormat {
        self.tokens.format()
    }

    /// The prompt of a conversation.
    ///
    /// Text from the conversation is tokenised as plain text, each segment alone, so that it can never become a
    /// control token. Errors: `Message` for a message that breaks a rule of its role; in the `Im` format also
    /// `Inexpressible` for what that format lacks. Source: `spec/kimi-k3.md` 5.2 and 5.3.
    pub fn render(&self, conversation: &Conversation) -> Result<RenderedPrompt, TokenizerError> {
        let writer = PromptWriter {
            tokenizer: &self.tokenizer,
            tokens: Vec::new(),
            message_ends: Vec::new(),
            num_leading: None,
        };
        match self.tokens {
            FormatTokens::Xtml(tokens) => xtml::render(writer, tokens, conversation),
            FormatTokens::Im(tokens) => im::render(writer, tokens, conversation),
        }
    }
}

/// Collects segments.
pub(super) struct PromptWriter<'a> {
    tokenizer: &'a Tokenizer,
    pub(super) tokens: Vec<TokenId>,
    pub(super) message_ends: Vec<usize>,
    num_leading: Option<usize>,
}

impl PromptWriter<'_> {
    pub(super) fn control(&mut self, token: TokenId) {
        self.tokens.push(token);
    }

    /// One segment of text, tokenised alone.
    pub(super) fn text(&mut self, segment: &str) {
        self.tokenizer.append_text(segment, &mut self.tokens);
    }

    /// The messages so far precede the conversation, unless that has begun.
    pub(super) fn begin_conversation(&mut self) {
        self.num_leading.get_or_insert(self.message_ends.len());
    }

    /// How many messages precede the conversation.
    pub(super) fn num_leading(&self) -> usize {
        self.num_leading.unwrap_or(self.message_ends.len())
    }

    pub(super) fn end_message(&mut self) {
        self.message_ends.push(self.tokens.len());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tokenizer::tests::{k3, tiny};

    #[test]
    fn the_format_follows_the_names() {
        assert_eq!(ChatRenderer::new(k3()).unwrap().format(), ChatFormat::Xtml);
        let im: Vec<&str> = IM_NAMES.split(", ").collect();
        let xtml: Vec<&str> = XTML_NAMES.split(", ").collect();
        assert_eq!(ChatRenderer::new(tiny(&im)).unwrap().format(), ChatFormat::Im);
        assert_eq!(ChatRenderer::new(tiny(&[im, xtml].concat())).unwrap().format(), ChatFormat::Xtml);
    }

    #[test]
    fn a_base_model_has_no_chat_format() {
        let error = ChatRenderer::new(tiny(&["[EOS]", "<|open|>"])).unwrap_err().to_string();
        assert!(error.contains("no chat format") && error.contains("<|sep|>"), "{error}");
    }
}
