//! What a text completion looks like to the client, whole or in chunks, from the same pieces.
//!
//! With `echo` the first piece of a choice begins with the prompt, its log-probabilities included where asked for.

use std::sync::Arc;

use perilune_protocol::{Completion, CompletionChoice, CompletionLogprobs, Usage, UsageReport};
use perilune_tensor::TokenId;
use perilune_tokenizer::{IncrementalDecoder, SpecialTokens, Tokenizer};

use crate::chat_reply::stop_reason;
use crate::generation::{Counts, Finish, Piece};
use crate::logprobs::{EchoedPrompt, TokenNames};
use crate::sse::Chunks;
use crate::usage::{raw_ids, total_usage};

/// What the reply says beside the pieces.
#[derive(Debug, Clone)]
pub struct CompletionReply {
    /// `cmpl-…`.
    pub id: String,
    /// Seconds since 1970.
    pub created: u64,
    /// The model's name.
    pub model: String,
    /// Names tokens; `None` on token ids alone.
    pub tokenizer: Option<Arc<Tokenizer>>,
    /// The prompts.
    pub prompts: Vec<PromptText>,
    /// Choices per prompt.
    pub n: usize,
    /// What comes back beside the text.
    pub extras: Extras,
}

/// What comes back beside the text.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Extras {
    /// Whether the prompt comes before the completion.
    pub echo: bool,
    /// Whether log-probabilities were asked for.
    pub logprobs: bool,
    /// Alternatives asked for at prompt positions.
    pub prompt_logprobs: Option<usize>,
    /// Whether ids come back.
    pub token_ids: bool,
}

/// A prompt in tokens and, for `echo`, in text.
#[derive(Debug, Clone, Default)]
pub struct PromptText {
    /// Its tokens.
    pub ids: Vec<TokenId>,
    /// Its text; empty without `echo` or without a tokenizer.
    pub text: String,
    /// Where each token begins in `text`, in characters.
    offsets: Vec<usize>,
}

impl PromptText {
    /// A prompt whose text is not needed.
    pub fn ids_only(ids: Vec<TokenId>) -> Self {
        PromptText { ids, ..PromptText::default() }
    }

    /// A prompt with the text its tokens stand for.
    pub fn decoded(ids: Vec<TokenId>, tokenizer: &Arc<Tokenizer>) -> Self {
        let mut decoder = IncrementalDecoder::new(tokenizer.clone(), SpecialTokens::Keep);
        let (mut text, mut offsets, mut num_chars) = (String::new(), Vec::with_capacity(ids.len()), 0);
        for id in &ids {
            offsets.push(num_chars);
            let more = decoder.push(*id).unwrap_or_default();
            num_chars += more.chars().count();
            text.push_str(&more);
        }
        text.push_str(&decoder.finish());
        PromptText { ids, text, offsets }
    }
}

impl CompletionReply {
    /// The whole answer.
    pub fn whole(&self, choices: Vec<Piece>) -> Completion {
        let counts: Vec<Counts> = choices.iter().map(|choice| choice.counts).collect();
        let choices = choices.into_iter().enumerate().map(|(index, piece)| self.choice(index, piece, Part::First));
        self.body(choices.collect(), Some(self.usage(&counts)))
    }

    fn body(&self, choices: Vec<CompletionChoice>, usage: Option<Usage>) -> Completion {
        Completion {
            id: self.id.clone(),
            object: "text_completion",
            created: self.created,
            model: self.model.clone(),
            choices,
            usage,
        }
    }

    fn usage(&self, counts: &[Counts]) -> Usage {
        total_usage(self.prompts.iter().map(|prompt| prompt.ids.len()).sum(), counts)
    }

    fn choice(&self, index: usize, piece: Piece, part: Part) -> CompletionChoice {
        let prompt = self.prompts.get(index / self.n.max(1)).filter(|_| part == Part::First);
        let echoed = prompt.filter(|_| self.extras.echo);
        let names = TokenNames(self.tokenizer.as_deref());
        let list = piece.prompt_logprobs.as_deref();
        let prompt_logprobs = self.extras.prompt_logprobs.zip(list);
        CompletionChoice {
            index,
            logprobs: self.logprobs(&piece, index, echoed),
            text: format!("{}{}", echoed.map_or("", |prompt| prompt.text.as_str()), piece.content),
            finish_reason: piece.finish.as_ref().map(finish_reason),
            stop_reason: stop_reason(piece.finish.as_ref()),
            token_ids: self.extras.token_ids.then(|| piece.tokens.iter().map(|token| token.id.0).collect()),
            prompt_logprobs: prompt_logprobs.map(|(num_top, list)| names.prompt_entries(list, num_top)),
            prompt_token_ids: prompt.filter(|_| self.extras.token_ids).map(|prompt| raw_ids(&prompt.ids)),
        }
    }

    fn logprobs(&self, piece: &Piece, index: usize, echoed: Option<&PromptText>) -> Option<CompletionLogprobs> {
        if !self.extras.logprobs {
            return None;
        }
        let names = TokenNames(self.tokenizer.as_deref());
        let prompt = self.prompts.get(index / self.n.max(1)).filter(|_| self.extras.echo);
        let start = prompt.map_or(0, |prompt| prompt.text.chars().count());
        let mut lists = echoed.map_or_else(CompletionLogprobs::default, |prompt| {
            names.echo_entries(&EchoedPrompt {
                ids: &prompt.ids,
                logprobs: piece.prompt_logprobs.as_deref().unwrap_or_default(),
                offsets: &prompt.offsets,
            })
        });
        lists.append(names.completion_entries(&piece.tokens, start));
        Some(lists)
    }
}

/// Whether a piece is a choice's first.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Part {
    First,
    Later,
}

/// The chunks of a streamed answer.
pub struct CompletionChunks {
    reply: CompletionReply,
    report: UsageReport,
    counts: Vec<Counts>,
    parts: Vec<Part>,
}

impl CompletionChunks {
    /// The chunks of a reply.
    pub fn new(reply: CompletionReply, report: UsageReport) -> Self {
        let num_choices = reply.prompts.len() * reply.n;
        let counts = vec![Counts::default(); num_choices];
        CompletionChunks { reply, report, counts, parts: vec![Part::First; num_choices] }
    }

    fn part(&mut self, index: usize) -> Part {
        self.parts.get_mut(index).map_or(Part::Later, |part| std::mem::replace(part, Part::Later))
    }

    fn chunk(&self, choice: CompletionChoice) -> Completion {
        let usage = (self.report == UsageReport::Continuous).then(|| self.reply.usage(&self.counts));
        self.reply.body(vec![choice], usage)
    }
}

impl Chunks for CompletionChunks {
    type Chunk = Completion;

    fn piece(&mut self, index: usize, piece: Piece) -> Option<Completion> {
        *self.counts.get_mut(index)? = piece.counts;
        let extras = self.reply.extras;
        let first = self.parts.get(index) == Some(&Part::First);
        let reports = (extras.logprobs || extras.token_ids) && !piece.tokens.is_empty()
            || piece.prompt_logprobs.is_some()
            || first && (extras.echo || extras.token_ids);
        let says = !piece.content.is_empty() || piece.finish.is_some();
        if !says && !reports && self.report != UsageReport::Continuous {
            return None;
        }
        let part = self.part(index);
        Some(self.chunk(self.reply.choice(index, piece, part)))
    }

    fn failed(&mut self, index: usize) -> Completion {
        let mut choice = self.reply.choice(index, Piece::default(), Part::Later);
        choice.finish_reason = Some("error");
        self.chunk(choice)
    }

    fn usage(&mut self) -> Option<Completion> {
        (self.report != UsageReport::Off).then(|| self.reply.body(Vec::new(), Some(self.reply.usage(&self.counts))))
    }
}

fn finish_reason(finish: &Finish) -> &'static str {
    match finish {
        Finish::Length => "length",
        Finish::Abort => "abort",
        Finish::EndOfMessage | Finish::StopToken(_) | Finish::StopText(_) => "stop",
    }
}
