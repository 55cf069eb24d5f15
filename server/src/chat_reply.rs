//! What a chat completion looks like to the client, whole or in chunks, from the same pieces.

use std::sync::Arc;

use perilune_protocol::{
    AssistantMessage, ChatChoice, ChatChunk, ChatChunkChoice, ChatCompletion, ChatDelta, ChatLogprobs, FunctionCall,
    FunctionDelta, ToolCall, ToolCallDelta, Usage, UsageReport,
};
use perilune_tensor::TokenId;
use perilune_tokenizer::Tokenizer;

use crate::generation::{CallStep, Counts, Finish, ParsedToolCall, Piece};
use crate::logprobs::TokenNames;
use crate::sse::Chunks;
use crate::usage::{raw_ids, total_usage};

/// Where reasoning goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ReasoningPlace {
    /// Into `reasoning_content`.
    Apart,
    /// Before the answer, in `content`.
    Inline,
    /// Nowhere.
    Nowhere,
}

/// Under which names reasoning that stands apart is sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum ReasoningNames {
    /// `reasoning_content`.
    #[default]
    One,
    /// `reasoning` as well, as newer clients of vLLM and others read it.
    Both,
}

impl ReasoningNames {
    /// What stands under the second name.
    fn second(self, first: Option<&String>) -> Option<String> {
        first.filter(|_| self == ReasoningNames::Both).cloned()
    }
}

/// What the reply says beside the pieces.
#[derive(Debug, Clone)]
pub struct ChatReply {
    /// `chatcmpl-…`.
    pub id: String,
    /// Seconds since 1970.
    pub created: u64,
    /// The model's name.
    pub model: String,
    /// Names tokens in log-probabilities.
    pub tokenizer: Arc<Tokenizer>,
    /// Where reasoning goes.
    pub reasoning: ReasoningPlace,
    /// What it is called there.
    pub reasoning_names: ReasoningNames,
    /// Prompt tokens to report, the generation opener apart.
    pub prompt_tokens: usize,
    /// Alternatives asked for at prompt positions.
    pub prompt_logprobs: Option<usize>,
    /// The prompt's ids and the generated ones, where they were asked for.
    pub prompt_ids: Option<Vec<TokenId>>,
}

impl ChatReply {
    /// The whole answer.
    pub fn whole(&self, choices: Vec<Piece>) -> ChatCompletion {
        let counts: Vec<Counts> = choices.iter().map(|choice| choice.counts).collect();
        let prompt_logprobs = choices.first().and_then(|choice| self.prompt_logprobs(choice));
        ChatCompletion {
            id: self.id.clone(),
            object: "chat.completion",
            created: self.created,
            model: self.model.clone(),
            choices: choices.into_iter().enumerate().map(|(index, piece)| self.choice(index, piece)).collect(),
            usage: total_usage(self.prompt_tokens, &counts),
            prompt_logprobs,
            prompt_token_ids: self.prompt_ids.as_deref().map(raw_ids),
        }
    }

    fn choice(&self, index: usize, mut piece: Piece) -> ChatChoice {
        self.place_reasoning(&mut piece);
        let calls = ParsedToolCall::all(std::mem::take(&mut piece.tool_calls)).into_iter().enumerate();
        let tool_calls: Vec<ToolCall> = calls.map(|(at, call)| self.tool_call(index, at, call)).collect();
        let answered = !piece.content.is_empty() || tool_calls.is_empty();
        let reasoning_content = some_text(std::mem::take(&mut piece.reasoning));
        ChatChoice {
            index,
            logprobs: self.logprobs(&piece),
            finish_reason: finish_reason(piece.finish.as_ref(), tool_calls.len()),
            stop_reason: stop_reason(piece.finish.as_ref()),
            token_ids: self.token_ids(&piece),
            message: AssistantMessage {
                role: "assistant",
                content: answered.then_some(piece.content),
                reasoning: self.reasoning_names.second(reasoning_content.as_ref()),
                reasoning_content,
                tool_calls,
            },
        }
    }

    fn place_reasoning(&self, piece: &mut Piece) {
        match self.reasoning {
            ReasoningPlace::Apart => {}
            ReasoningPlace::Nowhere => piece.reasoning.clear(),
            ReasoningPlace::Inline => {
                let reasoning = std::mem::take(&mut piece.reasoning);
                piece.content.insert_str(0, &reasoning);
            }
        }
    }

    fn tool_call(&self, choice: usize, at: usize, call: ParsedToolCall) -> ToolCall {
        let function = FunctionCall { name: call.name, arguments: call.arguments };
        ToolCall { id: self.call_id(choice, at), kind: "function", function }
    }

    fn call_id(&self, choice: usize, at: usize) -> String {
        format!("call_{}_{choice}_{at}", self.id.trim_start_matches("chatcmpl-"))
    }

    fn logprobs(&self, piece: &Piece) -> Option<ChatLogprobs> {
        let names = TokenNames(Some(&self.tokenizer));
        let content: Vec<_> = piece.tokens.iter().filter_map(|token| names.chat_entry(token)).collect();
        (!content.is_empty()).then_some(ChatLogprobs { content })
    }

    fn prompt_logprobs(&self, piece: &Piece) -> Option<perilune_protocol::PromptLogprobs> {
        let list = piece.prompt_logprobs.as_ref()?;
        self.prompt_logprobs.map(|num_top| TokenNames(Some(&self.tokenizer)).prompt_entries(list, num_top))
    }

    fn token_ids(&self, piece: &Piece) -> Option<Vec<u32>> {
        self.prompt_ids.is_some().then(|| piece.tokens.iter().map(|token| token.id.0).collect())
    }
}

/// The chunks of a streamed answer.
pub struct ChatChunks {
    reply: ChatReply,
    report: UsageReport,
    choices: Vec<Progress>,
    /// Whether a chunk was sent: the first carries what concerns the prompt.
    begun: bool,
}

/// What was sent of a choice.
#[derive(Debug, Clone, Copy, Default)]
struct Progress {
    begun: bool,
    tool_calls: usize,
    counts: Counts,
}

impl ChatChunks {
    /// The chunks of `num_choices` choices.
    pub fn new(reply: ChatReply, report: UsageReport, num_choices: usize) -> Self {
        ChatChunks { reply, report, choices: vec![Progress::default(); num_choices], begun: false }
    }

    fn chunk(&mut self, choices: Vec<ChatChunkChoice>) -> ChatChunk {
        let first = !std::mem::replace(&mut self.begun, true);
        ChatChunk {
            id: self.reply.id.clone(),
            object: "chat.completion.chunk",
            created: self.reply.created,
            model: self.reply.model.clone(),
            choices,
            usage: (self.report == UsageReport::Continuous).then(|| self.usage_now()),
            prompt_logprobs: None,
            prompt_token_ids: self.reply.prompt_ids.as_deref().filter(|_| first).map(raw_ids),
        }
    }

    fn usage_now(&self) -> Usage {
        let counts: Vec<Counts> = self.choices.iter().map(|choice| choice.counts).collect();
        total_usage(self.reply.prompt_tokens, &counts)
    }

    fn delta(&mut self, index: usize, piece: &Piece) -> ChatDelta {
        let (begun, num_calls) = self.choices.get(index).map_or((true, 0), |choice| (choice.begun, choice.tool_calls));
        let reasoning_content = some_text(piece.reasoning.clone());
        ChatDelta {
            role: (!begun).then_some("assistant"),
            content: some_text(piece.content.clone()),
            reasoning: self.reply.reasoning_names.second(reasoning_content.as_ref()),
            reasoning_content,
            tool_calls: self.call_deltas(index, num_calls, &piece.tool_calls),
        }
    }

    /// One delta per call that the steps concern; `num_calls` calls have begun before them.
    fn call_deltas(&self, choice: usize, mut num_calls: usize, steps: &[CallStep]) -> Vec<ToolCallDelta> {
        let mut deltas: Vec<ToolCallDelta> = Vec::new();
        for step in steps {
            match step {
                CallStep::Start { name } => {
                    deltas.push(ToolCallDelta {
                        index: num_calls,
                        id: Some(self.reply.call_id(choice, num_calls)),
                        kind: Some("function"),
                        function: FunctionDelta { name: Some(name.clone()), arguments: String::new() },
                    });
                    num_calls += 1;
                }
                CallStep::Arguments(text) | CallStep::RawArguments(text) => {
                    let index = num_calls.saturating_sub(1);
                    match deltas.last_mut().filter(|delta| delta.index == index) {
                        Some(delta) => delta.function.arguments.push_str(text),
                        None => {
                            let function = FunctionDelta { name: None, arguments: text.clone() };
                            deltas.push(ToolCallDelta { index, id: None, kind: None, function });
                        }
                    }
                }
                CallStep::End => {}
            }
        }
        deltas
    }
}

impl Chunks for ChatChunks {
    type Chunk = ChatChunk;

    fn piece(&mut self, index: usize, mut piece: Piece) -> Option<ChatChunk> {
        self.reply.place_reasoning(&mut piece);
        let prompt_logprobs = if index == 0 { self.reply.prompt_logprobs(&piece) } else { None };
        let delta = self.delta(index, &piece);
        let choice = self.choices.get_mut(index)?;
        choice.counts = piece.counts;
        choice.tool_calls += piece.tool_calls.iter().filter(|step| matches!(step, CallStep::Start { .. })).count();
        let num_calls = choice.tool_calls;
        let logprobs = self.reply.logprobs(&piece);
        let token_ids = self.reply.token_ids(&piece).filter(|ids| !ids.is_empty());
        let says = ChatDelta { role: None, ..delta.clone() } != ChatDelta::default();
        let reports = logprobs.is_some() || token_ids.is_some() || prompt_logprobs.is_some();
        if !says && !reports && piece.finish.is_none() && self.report != UsageReport::Continuous {
            return None;
        }
        choice.begun = true;
        let finish_reason = piece.finish.as_ref().map(|finish| finish_reason(Some(finish), num_calls));
        let stop_reason = stop_reason(piece.finish.as_ref());
        let chunk = self.chunk(vec![ChatChunkChoice { index, delta, logprobs, finish_reason, stop_reason, token_ids }]);
        Some(ChatChunk { prompt_logprobs, ..chunk })
    }

    fn failed(&mut self, index: usize) -> ChatChunk {
        let delta = self.delta(index, &Piece::default());
        let finish_reason = Some("error");
        self.chunk(vec![ChatChunkChoice {
            index,
            delta,
            logprobs: None,
            finish_reason,
            stop_reason: None,
            token_ids: None,
        }])
    }

    fn usage(&mut self) -> Option<ChatChunk> {
        if self.report == UsageReport::Off {
            return None;
        }
        let usage = Some(self.usage_now());
        Some(ChatChunk { usage, ..self.chunk(Vec::new()) })
    }
}

/// `finish_reason` of chat. A message that was cut off is `length` even where tool calls came before.
fn finish_reason(finish: Option<&Finish>, num_tool_calls: usize) -> &'static str {
    match finish {
        Some(Finish::Length) => "length",
        Some(Finish::Abort) => "abort",
        Some(Finish::EndOfMessage) if num_tool_calls > 0 => "tool_calls",
        _ => "stop",
    }
}

/// `stop_reason`: what of the client's ended the choice.
pub fn stop_reason(finish: Option<&Finish>) -> Option<serde_json::Value> {
    match finish {
        Some(Finish::StopText(text)) => Some(text.as_str().into()),
        Some(Finish::StopToken(id)) => Some(id.0.into()),
        _ => None,
    }
}

fn some_text(text: String) -> Option<String> {
    (!text.is_empty()).then_some(text)
}
