//! What a stream of `POST /v1/responses` says.

use schemars::JsonSchema;

use super::responses::{ResponseAnswer, ResponseContent, ResponseItem};
use crate::TokenLogprob;

/// One event; `type` is its name, too, and `sequence_number` counts from 0. Items follow one another: each is added, filled
/// and done before the next.
#[derive(Debug, JsonSchema)]
#[schemars(tag = "type")]
pub enum ResponseEvent {
    /// The response is begun.
    #[schemars(rename = "response.created")]
    Created {
        /// Its number.
        sequence_number: u64,
        /// Without output yet.
        response: ResponseAnswer,
    },
    /// It is being made.
    #[schemars(rename = "response.in_progress")]
    InProgress {
        /// Its number.
        sequence_number: u64,
        /// Without output yet.
        response: ResponseAnswer,
    },
    /// An item begins.
    #[schemars(rename = "response.output_item.added")]
    ItemAdded {
        /// Its number.
        sequence_number: u64,
        /// The item's place in the output.
        output_index: u64,
        /// With nothing in it.
        item: ResponseItem,
    },
    /// Its text begins.
    #[schemars(rename = "response.content_part.added")]
    PartAdded {
        /// Its number.
        sequence_number: u64,
        /// The item's place in the output.
        output_index: u64,
        /// The item.
        item_id: String,
        /// Always 0.
        content_index: u64,
        /// Without text.
        part: ResponseContent,
    },
    /// More of what the model thinks.
    #[schemars(rename = "response.reasoning_text.delta")]
    ReasoningDelta {
        /// Its number.
        sequence_number: u64,
        /// The item's place in the output.
        output_index: u64,
        /// The item.
        item_id: String,
        /// Always 0.
        content_index: u64,
        /// The text.
        delta: String,
    },
    /// All of it.
    #[schemars(rename = "response.reasoning_text.done")]
    ReasoningDone {
        /// Its number.
        sequence_number: u64,
        /// The item's place in the output.
        output_index: u64,
        /// The item.
        item_id: String,
        /// Always 0.
        content_index: u64,
        /// The text.
        text: String,
    },
    /// More of what it says.
    #[schemars(rename = "response.output_text.delta")]
    TextDelta {
        /// Its number.
        sequence_number: u64,
        /// The item's place in the output.
        output_index: u64,
        /// The item.
        item_id: String,
        /// Always 0.
        content_index: u64,
        /// The text.
        delta: String,
        /// Of its tokens, where asked for.
        logprobs: Vec<TokenLogprob>,
    },
    /// All of it.
    #[schemars(rename = "response.output_text.done")]
    TextDone {
        /// Its number.
        sequence_number: u64,
        /// The item's place in the output.
        output_index: u64,
        /// The item.
        item_id: String,
        /// Always 0.
        content_index: u64,
        /// The text.
        text: String,
        /// Of its tokens, where asked for.
        logprobs: Vec<TokenLogprob>,
    },
    /// The item has its text.
    #[schemars(rename = "response.content_part.done")]
    PartDone {
        /// Its number.
        sequence_number: u64,
        /// The item's place in the output.
        output_index: u64,
        /// The item.
        item_id: String,
        /// Always 0.
        content_index: u64,
        /// With its text.
        part: ResponseContent,
    },
    /// More of the arguments of a call.
    #[schemars(rename = "response.function_call_arguments.delta")]
    ArgumentsDelta {
        /// Its number.
        sequence_number: u64,
        /// The item's place in the output.
        output_index: u64,
        /// The item.
        item_id: String,
        /// A piece of JSON text.
        delta: String,
    },
    /// All of them.
    #[schemars(rename = "response.function_call_arguments.done")]
    ArgumentsDone {
        /// Its number.
        sequence_number: u64,
        /// The item's place in the output.
        output_index: u64,
        /// The item.
        item_id: String,
        /// JSON text.
        arguments: String,
        /// The tool.
        name: String,
    },
    /// The item is complete, or, as the last one, cut off.
    #[schemars(rename = "response.output_item.done")]
    ItemDone {
        /// Its number.
        sequence_number: u64,
        /// The item's place in the output.
        output_index: u64,
        /// With all it holds.
        item: ResponseItem,
    },
    /// The last event: the response is whole.
    #[schemars(rename = "response.completed")]
    Completed {
        /// Its number.
        sequence_number: u64,
        /// All of it.
        response: ResponseAnswer,
    },
    /// The last event: it was cut off.
    #[schemars(rename = "response.incomplete")]
    Incomplete {
        /// Its number.
        sequence_number: u64,
        /// As far as it came.
        response: ResponseAnswer,
    },
    /// The last event: something went wrong.
    #[schemars(rename = "response.failed")]
    Failed {
        /// Its number.
        sequence_number: u64,
        /// As far as it came.
        response: ResponseAnswer,
    },
}
