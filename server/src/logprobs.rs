//! Log-probabilities as the APIs show them: token ids become texts and bytes, values become fit for JSON.

use perilune_engine::{TokenLogprob, TokenLogprobs};
use perilune_protocol as api;
use perilune_protocol::floored;
use perilune_tensor::TokenId;
use perilune_tokenizer::Tokenizer;
use serde_json::{Map, Value};

use crate::generation::GeneratedToken;

/// Names tokens: by their text, or by their id where there is no tokenizer.
#[derive(Debug, Clone, Copy)]
pub struct TokenNames<'a>(pub Option<&'a Tokenizer>);

impl TokenNames<'_> {
    /// The token's exact bytes; none without a tokenizer or beyond its vocabulary.
    pub fn bytes(self, id: TokenId) -> Vec<u8> {
        self.0.and_then(|tokenizer| tokenizer.token_bytes(id).ok()).map(<[u8]>::to_vec).unwrap_or_default()
    }

    /// The token's text (bytes that are no characters show as U+FFFD), or `token_id:N` without a tokenizer.
    pub fn text(self, id: TokenId) -> String {
        match self.0.map(|tokenizer| tokenizer.token_bytes(id)) {
            Some(Ok(bytes)) => String::from_utf8_lossy(bytes).into_owned(),
            _ => format!("token_id:{id}"),
        }
    }

    /// A generated token in the shape of chat; `None` where no log-probabilities were asked for.
    pub fn chat_entry(self, token: &GeneratedToken) -> Option<api::TokenLogprob> {
        let known = token.logprobs.as_ref()?;
        let top = known.top.iter().map(|top| api::TopLogprob {
            token: self.text(top.id),
            logprob: floored(top.logprob),
            bytes: self.bytes(top.id),
        });
        Some(api::TokenLogprob {
            token: self.text(token.id),
            logprob: floored(known.chosen.logprob),
            bytes: self.bytes(token.id),
            top_logprobs: top.collect(),
        })
    }

    /// Generated tokens in the shape of text completions; `start` is where their text begins, in characters.
    pub fn completion_entries(self, tokens: &[GeneratedToken], start: usize) -> api::CompletionLogprobs {
        let mut lists = api::CompletionLogprobs::default();
        for token in tokens {
            if let Some(known) = &token.logprobs {
                self.push(&mut lists, token.id, Some(known));
                lists.text_offset.push(start + token.offset);
            }
        }
        lists
    }

    /// An echoed prompt in the shape of text completions; `offsets` has one entry per token.
    pub fn echo_entries(self, prompt: &EchoedPrompt<'_>) -> api::CompletionLogprobs {
        let mut lists = api::CompletionLogprobs::default();
        for (i, id) in prompt.ids.iter().enumerate() {
            self.push(&mut lists, *id, prompt.logprobs.get(i).and_then(Option::as_ref));
            lists.text_offset.push(prompt.offsets.get(i).copied().unwrap_or_default());
        }
        lists
    }

    /// Prompt log-probabilities in vLLM's shape: `num_top` alternatives and the token itself.
    pub fn prompt_entries(self, list: &[Option<TokenLogprobs>], num_top: usize) -> api::PromptLogprobs {
        list.iter().map(|known| known.as_ref().map(|known| self.prompt_entry(known, num_top))).collect()
    }

    fn prompt_entry(self, known: &TokenLogprobs, num_top: usize) -> Map<String, Value> {
        let top = known.top.iter().take(num_top).copied();
        let ranked = top.enumerate().map(|(i, token)| (token, Some(i + 1)));
        let chosen = known.top.iter().position(|top| top.id == known.chosen.id);
        let mut map = Map::new();
        for (token, rank) in ranked.chain([(known.chosen, chosen.map(|at| at + 1))]) {
            let entry = api::PromptLogprob {
                logprob: as_written(token.logprob),
                rank,
                decoded_token: self.0.map(|_| self.text(token.id)),
            };
            if let Ok(entry) = serde_json::to_value(entry) {
                map.entry(token.id.to_string()).or_insert(entry);
            }
        }
        map
    }

    fn push(self, lists: &mut api::CompletionLogprobs, id: TokenId, known: Option<&TokenLogprobs>) {
        lists.tokens.push(self.text(id));
        lists.token_logprobs.push(known.map(|known| floored(known.chosen.logprob)));
        lists.top_logprobs.push(known.map(|known| self.by_text(known)));
    }

    /// The alternatives by text, the token itself included; of two tokens with one text the likelier is kept.
    fn by_text(self, known: &TokenLogprobs) -> Map<String, Value> {
        let mut all: Vec<TokenLogprob> = known.top.clone();
        if !all.iter().any(|top| top.id == known.chosen.id) {
            all.push(known.chosen);
        }
        let mut map = Map::new();
        for top in all {
            map.entry(self.text(top.id)).or_insert_with(|| Value::from(as_written(top.logprob)));
        }
        map
    }
}

/// A log-probability as the shortest text of the f32, which JSON values of f64 would not keep.
fn as_written(logprob: f32) -> f64 {
    let logprob = floored(logprob);
    logprob.to_string().parse().unwrap_or(f64::from(logprob))
}

/// A prompt that comes back with its log-probabilities.
#[derive(Debug, Clone, Copy)]
pub struct EchoedPrompt<'a> {
    /// Its tokens.
    pub ids: &'a [TokenId],
    /// One entry per token, the first `None`.
    pub logprobs: &'a [Option<TokenLogprobs>],
    /// Where each token's text begins, in characters.
    pub offsets: &'a [usize],
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::generation::Channel;

    fn known(chosen: (u32, f32), top: &[(u32, f32)]) -> TokenLogprobs {
        let token = |(id, logprob)| TokenLogprob { id: TokenId(id), logprob };
        TokenLogprobs { chosen: token(chosen), top: top.iter().copied().map(token).collect() }
    }

    #[test]
    fn impossible_tokens_get_the_floor_in_every_shape() {
        let names = TokenNames(None);
        let logprobs = known((3, f32::NEG_INFINITY), &[(1, -0.5), (2, f32::NEG_INFINITY)]);
        let token =
            GeneratedToken { id: TokenId(3), logprobs: Some(logprobs.clone()), offset: 0, channel: Channel::Content };
        let chat = serde_json::to_string(&names.chat_entry(&token)).unwrap();
        assert!(chat.contains(r#""logprob":-9999.0"#) && !chat.contains("null"), "{chat}");
        let lists = serde_json::to_string(&names.completion_entries(&[token], 5)).unwrap();
        assert_eq!(
            lists,
            r#"{"tokens":["token_id:3"],"token_logprobs":[-9999.0],"top_logprobs":[{"token_id:1":-0.5,"token_id:2":-9999.0,"token_id:3":-9999.0}],"text_offset":[5]}"#
        );
        let prompt = serde_json::to_string(&names.prompt_entries(&[None, Some(logprobs)], 1)).unwrap();
        assert_eq!(
            prompt,
            r#"[null,{"1":{"logprob":-0.5,"rank":1,"decoded_token":null},"3":{"logprob":-9999.0,"rank":null,"decoded_token":null}}]"#
        );
    }

    #[test]
    fn every_shape_writes_a_value_alike() {
        let logprobs = known((1, -0.1), &[(1, -0.1)]);
        let token =
            GeneratedToken { id: TokenId(1), logprobs: Some(logprobs.clone()), offset: 0, channel: Channel::Content };
        let shapes = [
            serde_json::to_string(&TokenNames(None).chat_entry(&token)).unwrap(),
            serde_json::to_string(&TokenNames(None).completion_entries(&[token], 0)).unwrap(),
            serde_json::to_string(&TokenNames(None).prompt_entries(&[Some(logprobs)], 1)).unwrap(),
        ];
        for shape in shapes {
            assert!(shape.contains("-0.1") && !shape.contains("-0.10"), "{shape}");
        }
    }

    #[test]
    fn the_token_itself_is_listed_once() {
        let lists = TokenNames(None).echo_entries(&EchoedPrompt {
            ids: &[TokenId(7), TokenId(1)],
            logprobs: &[None, Some(known((1, -0.5), &[(1, -0.5)]))],
            offsets: &[0, 3],
        });
        assert_eq!(lists.token_logprobs, [None, Some(-0.5)]);
        assert_eq!(lists.top_logprobs[0], None);
        assert_eq!(lists.top_logprobs[1].as_ref().map(Map::len), Some(1));
        assert_eq!(lists.text_offset, [0, 3]);
    }
}
