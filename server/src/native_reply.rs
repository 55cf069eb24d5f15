//! What SGLang's `/generate` answers, whole or in chunks: each chunk holds all text so far.

use std::sync::Arc;

use perilune_engine::{TokenLogprob, TokenLogprobs};
use perilune_protocol::floored;
use perilune_tensor::TokenId;
use perilune_tokenizer::Tokenizer;
use serde_json::{Value, json};

use crate::generation::{Counts, Finish, Piece};
use crate::logprobs::TokenNames;
use crate::sse::Chunks;

/// What the reply says beside the pieces.
#[derive(Debug, Clone)]
pub struct NativeReply {
    /// The request's id.
    pub id: String,
    /// Names tokens; `None` on token ids alone.
    pub tokenizer: Option<Arc<Tokenizer>>,
    /// The prompts.
    pub prompts: Vec<Vec<TokenId>>,
    /// Choices per prompt.
    pub n: usize,
    /// Whether the answer is a list.
    pub listed: bool,
    /// Whether log-probabilities carry the tokens' texts.
    pub texts: bool,
    /// Whether log-probabilities were asked for.
    pub logprobs: bool,
    /// Whether alternatives were.
    pub alternatives: bool,
}

impl NativeReply {
    /// The whole answer.
    pub fn whole(&self, choices: Vec<Piece>) -> Value {
        let mut answers: Vec<Value> =
            choices.iter().enumerate().map(|(index, piece)| self.choice(index, piece)).collect();
        if self.listed { Value::Array(answers) } else { answers.pop().unwrap_or_default() }
    }

    fn choice(&self, index: usize, piece: &Piece) -> Value {
        let prompt = self.prompts.get(index / self.n.max(1));
        let Counts { completion, cached, .. } = piece.counts;
        let mut meta = json!({
            "id": if self.listed { format!("{}-{index}", self.id) } else { self.id.clone() },
            "finish_reason": finish_reason(piece),
            "prompt_tokens": prompt.map_or(0, Vec::len),
            "completion_tokens": completion,
            "cached_tokens": cached,
        });
        if self.logprobs {
            self.add_logprobs(&mut meta, piece, prompt.map_or(&[], Vec::as_slice));
        }
        let ids: Vec<u32> = piece.tokens.iter().map(|token| token.id.0).collect();
        json!({"text": piece.content, "output_ids": ids, "meta_info": meta})
    }

    fn add_logprobs(&self, meta: &mut Value, piece: &Piece, prompt: &[TokenId]) {
        let known: Vec<&TokenLogprobs> = piece.tokens.iter().filter_map(|token| token.logprobs.as_ref()).collect();
        meta["output_token_logprobs"] = known.iter().map(|known| self.entry(known.chosen)).collect();
        if self.alternatives {
            meta["output_top_logprobs"] = known.iter().map(|known| self.top(known)).collect();
        }
        let Some(list) = &piece.prompt_logprobs else { return };
        let of_prompt = |(id, known): (&TokenId, &Option<TokenLogprobs>)| match known {
            Some(known) => self.entry(known.chosen),
            None => json!([null, id.0, self.text(*id)]),
        };
        meta["input_token_logprobs"] = prompt.iter().zip(list).map(of_prompt).collect();
        if self.alternatives {
            meta["input_top_logprobs"] =
                list.iter().map(|known| known.as_ref().map_or(Value::Null, |known| self.top(known))).collect();
        }
    }

    /// `[log-probability, id, text or null]`.
    fn entry(&self, token: TokenLogprob) -> Value {
        json!([floored(token.logprob), token.id.0, self.text(token.id)])
    }

    fn top(&self, known: &TokenLogprobs) -> Value {
        known.top.iter().map(|token| self.entry(*token)).collect()
    }

    fn text(&self, id: TokenId) -> Option<String> {
        self.texts.then(|| TokenNames(self.tokenizer.as_deref()).text(id))
    }
}

fn finish_reason(piece: &Piece) -> Value {
    match &piece.finish {
        None => Value::Null,
        Some(Finish::Length) => json!({"type": "length", "length": piece.counts.completion}),
        Some(Finish::StopText(text)) => json!({"type": "stop", "matched": text}),
        Some(Finish::StopToken(id)) => json!({"type": "stop", "matched": id.0}),
        Some(Finish::EndOfMessage) => json!({"type": "stop", "matched": piece.tokens.last().map(|token| token.id.0)}),
        Some(Finish::Abort) => json!({"type": "abort", "message": "somebody ended the request"}),
    }
}

/// The chunks of a streamed answer.
pub struct NativeChunks {
    reply: NativeReply,
    /// All of each choice so far.
    choices: Vec<Piece>,
}

impl NativeChunks {
    /// The chunks of a reply.
    pub fn new(reply: NativeReply, num_choices: usize) -> Self {
        NativeChunks { reply, choices: (0..num_choices).map(|_| Piece::default()).collect() }
    }

    fn chunk(&self, index: usize) -> Option<Value> {
        let mut chunk = self.reply.choice(index, self.choices.get(index)?);
        if self.reply.listed {
            chunk["index"] = json!(index);
        }
        Some(chunk)
    }
}

impl Chunks for NativeChunks {
    type Chunk = Value;

    fn piece(&mut self, index: usize, piece: Piece) -> Option<Value> {
        self.choices.get_mut(index)?.append(piece);
        self.chunk(index)
    }

    fn failed(&mut self, index: usize) -> Value {
        let mut chunk = self.chunk(index).unwrap_or_default();
        chunk["meta_info"]["finish_reason"] = json!({"type": "abort", "message": "the request failed"});
        chunk
    }

    fn usage(&mut self) -> Option<Value> {
        None
    }
}
