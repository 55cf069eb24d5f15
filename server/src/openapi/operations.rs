//! What each route takes and answers. The statuses for missing keys are added where the routes are registered.

use perilune_protocol as api;
use perilune_protocol::wire;
use serde_json::json;

use super::Operation;

/// What routes that read a body refuse.
const READS: &[u16] = &[400, 408, 413, 415];
/// What routes that generate refuse besides.
const GENERATES: &[u16] = &[404, 429, 500, 503, 529];
/// What routes that only ask the model's text side refuse besides.
const ASKS: &[u16] = &[404, 500, 503];

const GENERATION: &str = "Generation";
const TOKENS: &str = "Tokens";
const MODELS: &str = "Models";
const OPERATIONS: &str = "Operations";

pub(crate) fn chat() -> Operation {
    let example = json!({
        "messages": [{"role": "user", "content": "There are 3 boxes with 12 pens in each box. How many pens are there?"}],
        "max_tokens": 16, "temperature": 0, "logprobs": true, "top_logprobs": 1, "return_token_ids": true,
        "prompt_logprobs": 1,
    });
    Operation::new(GENERATION, "Continue a conversation")
        .about("OpenAI's chat completions, with reasoning, tools, and the additions of vLLM and SGLang.")
        .takes::<wire::ChatBody>(example)
        .answers::<api::ChatCompletion>(200, "The answer.")
        .streams::<api::ChatChunk>("With `stream`: chunks; `[DONE]` is the last event.")
        .refuses(READS)
        .refuses(GENERATES)
}

pub(crate) fn completions() -> Operation {
    let example = json!({
        "prompt": ["What is 7 + 5?", "What is"], "max_tokens": 8, "temperature": 0, "logprobs": 1, "echo": true,
        "return_token_ids": true, "prompt_logprobs": 0,
    });
    Operation::new(GENERATION, "Continue texts")
        .about("OpenAI's text completions: prompts as text or as token ids, `echo`, scoring without generating.")
        .takes::<wire::CompletionBody>(example)
        .answers::<api::Completion>(200, "The answer.")
        .streams::<api::Completion>("With `stream`: chunks; `[DONE]` is the last event.")
        .refuses(READS)
        .refuses(GENERATES)
}

pub(crate) fn responses() -> Operation {
    let example = json!({
        "input": "What is 7 + 5?", "max_output_tokens": 24, "temperature": 0, "top_logprobs": 1,
        "metadata": {"purpose": "example"},
    });
    Operation::new(GENERATION, "Continue a conversation, in items")
        .about("OpenAI's responses, stateless: nothing is kept between requests.")
        .takes::<wire::ResponsesBody>(example)
        .answers::<wire::ResponseAnswer>(200, "The response.")
        .streams_named::<wire::ResponseEvent>("With `stream`: `response.…` events.")
        .refuses(READS)
        .refuses(GENERATES)
}

pub(crate) fn messages() -> Operation {
    let example = json!({
        "messages": [{"role": "user", "content": "What is 7 + 5?"}], "max_tokens": 16, "temperature": 0,
        "thinking": {"type": "enabled", "budget_tokens": 1024},
    });
    Operation::new(GENERATION, "Continue a conversation, in blocks")
        .about("Anthropic's messages. Thinking is off unless asked for.")
        .refusing::<wire::AnthropicError>()
        .takes::<wire::MessagesBody>(example)
        .answers::<wire::AnthropicMessage>(200, "The message.")
        .streams_named::<wire::MessageEvent>("With `stream`: Anthropic's events.")
        .refuses(READS)
        .refuses(GENERATES)
}

pub(crate) fn count_tokens() -> Operation {
    let example = json!({"messages": [{"role": "user", "content": "What is 7 + 5?"}]});
    Operation::new(TOKENS, "Count the tokens of a message")
        .refusing::<wire::AnthropicError>()
        .takes::<wire::CountTokensBody>(example)
        .answers::<wire::InputTokens>(200, "How many tokens the prompt would have.")
        .refuses(READS)
        .refuses(ASKS)
}

pub(crate) fn generate() -> Operation {
    let params = json!({"max_new_tokens": 8, "temperature": 0});
    let example = json!({
        "text": "What is 7 + 5?", "sampling_params": params, "return_logprob": true, "top_logprobs_num": 1,
        "logprob_start_len": 0, "return_text_in_logprobs": true,
    });
    Operation::new(GENERATION, "Continue texts, in SGLang's words")
        .takes::<wire::NativeBody>(example)
        .answers::<wire::NativeAnswers>(200, "The answer; a list where there are several prompts or choices.")
        .streams::<wire::NativeChunk>("With `stream`: each event holds all text so far; `[DONE]` is the last one.")
        .refuses(READS)
        .refuses(&[429, 500, 503, 529])
}

pub(crate) fn embeddings() -> Operation {
    Operation::new(GENERATION, "Embed texts").about("This server generates text.").refuses(&[501])
}

pub(crate) fn models() -> Operation {
    Operation::new(MODELS, "All names the model answers to")
        .answers::<api::ModelList>(200, "The models.")
        .refuses(&[503])
}

pub(crate) fn model() -> Operation {
    Operation::new(MODELS, "One of them").answers::<api::ModelCard>(200, "The model.").refuses(&[400, 404, 503])
}

pub(crate) fn tokenize() -> Operation {
    Operation::new(TOKENS, "Text or a conversation to token ids")
        .takes::<wire::TokenizeBody>(json!({"prompt": "What is 7 + 5?", "return_token_strs": true}))
        .answers::<api::TokenizeResponse>(200, "The ids.")
        .refuses(READS)
        .refuses(ASKS)
}

pub(crate) fn detokenize() -> Operation {
    Operation::new(TOKENS, "Token ids to text")
        .takes::<wire::DetokenizeBody>(json!({"tokens": [1, 2, 3]}))
        .answers::<api::DetokenizeResponse>(200, "The text; bytes that are no characters become U+FFFD.")
        .refuses(READS)
        .refuses(ASKS)
}

pub(crate) fn tokenizer_info() -> Operation {
    Operation::new(TOKENS, "The tokenizer")
        .about("What `tokenizer_config.json` would say.")
        .answers::<api::TokenizerInfo>(200, "The tokenizer.")
        .refuses(&[400, 503])
}

pub(crate) fn cache() -> Operation {
    Operation::new(OPERATIONS, "What is stored for later requests")
        .answers::<api::CachePage>(200, "Sizes, events and the tree of stored prefixes; tokens are not shown.")
        .refuses(&[503])
}

pub(crate) fn flush_cache() -> Operation {
    Operation::new(OPERATIONS, "Forget all stored prefixes")
        .about("On disk as well; requests under way go on.")
        .answers::<api::Flushed>(200, "Done.")
        .refuses(&[503])
}

pub(crate) fn abort_request() -> Operation {
    Operation::new(OPERATIONS, "End requests")
        .takes::<wire::AbortBody>(json!({"rid": "nobody"}))
        .answers::<api::Aborted>(200, "Whether there was anything to end.")
        .refuses(READS)
        .refuses(&[503])
}

pub(crate) fn server_info() -> Operation {
    Operation::new(OPERATIONS, "The server's settings and figures")
        .answers::<api::ServerInfo>(200, "Versions, names, limits and what is going on; no key is shown.")
        .refuses(&[503])
}

pub(crate) fn health() -> Operation {
    Operation::new(OPERATIONS, "Whether the process lives")
        .answers::<api::Health>(200, "It does.")
        .answers::<api::Health>(503, "Nothing can be served any more.")
}

pub(crate) fn health_generate() -> Operation {
    Operation::new(OPERATIONS, "Whether a token can be generated")
        .about("Generates one, as SGLang does.")
        .answers::<api::Health>(200, "It was.")
        .answers::<api::Health>(503, "It was not, or not in time.")
}

pub(crate) fn ready() -> Operation {
    Operation::new(OPERATIONS, "Whether requests are served")
        .answers::<api::Readiness>(200, "They are.")
        .answers::<api::Readiness>(503, "They are not: loading, draining, stalled or failed.")
}

pub(crate) fn version() -> Operation {
    Operation::new(OPERATIONS, "The server's version").answers::<api::Version>(200, "The version.")
}

pub(crate) fn metrics() -> Operation {
    Operation::new(OPERATIONS, "Measurements")
        .text(200, "application/openmetrics-text", "In the OpenMetrics text format.")
        .refuses(&[500])
}

pub(crate) fn document() -> Operation {
    Operation::new(OPERATIONS, "This document").answers::<serde_json::Value>(200, "OpenAPI 3.1.")
}

pub(crate) fn page() -> Operation {
    Operation::new(OPERATIONS, "This document as a page").text(200, "text/html", "A page.")
}

pub(crate) fn home() -> Operation {
    Operation::new(OPERATIONS, "To the playground").text(307, "text/plain", "Where the playground is.")
}

pub(crate) fn playground() -> Operation {
    Operation::new(OPERATIONS, "A page to talk to the model with").text(200, "text/html", "The page.")
}
