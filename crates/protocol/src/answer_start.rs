//! Where an answer begins: in a message of its own, or where the conversation's last message stops.

use serde_json::Value;

use crate::fields::{Fields, invalid};
use crate::{GenerationOptions, Message, ProtocolError, ResponseFormat, ThinkingOptions, ToolChoice};

/// See the module.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum AnswerStart {
    /// In a message of its own.
    Message,
    /// Where the last message, the assistant's, stops.
    Continued,
    /// Nowhere: the prompt ends with the conversation.
    None,
}

impl AnswerStart {
    /// Reads `continue_final_message` and `add_generation_prompt`.
    pub(crate) fn read(fields: &mut Fields) -> Result<Self, ProtocolError> {
        let continued = fields.boolean("continue_final_message")?.unwrap_or(false);
        match (continued, fields.boolean("add_generation_prompt")?) {
            (true, Some(true)) => {
                let rule = "it cannot be joined with `continue_final_message`: an answer that goes on opens no message";
                Err(fields.refuse("add_generation_prompt", &Value::Bool(true), rule))
            }
            (true, _) => Ok(AnswerStart::Continued),
            (false, Some(false)) => Ok(AnswerStart::None),
            (false, _) => Ok(AnswerStart::Message),
        }
    }
}

/// Takes the last message as the beginning of the answer.
pub(crate) fn begun_answer(messages: &mut Vec<Message>, thinking: ThinkingOptions) -> Result<String, ProtocolError> {
    let path = format!("messages[{}]", messages.len().saturating_sub(1));
    let refuse = |value: &str, rule| Err(invalid(&path, &Value::from(value), rule));
    let Some(Message::Assistant { content, reasoning, tool_calls, .. }) = messages.last() else {
        return refuse("not the assistant's", "an answer goes on from a message of the assistant");
    };
    if thinking != ThinkingOptions::Off {
        return refuse("the assistant's", "an answer goes on only where thinking is off: thoughts come first");
    }
    if reasoning.is_some() || !tool_calls.is_empty() {
        return refuse("with thoughts or calls", "an answer goes on from text alone");
    }
    let text = content.concat();
    if text.is_empty() {
        return refuse("", "an answer goes on from text that is not empty");
    }
    messages.pop();
    Ok(text)
}

/// An answer that goes on cannot be held to a form: what it has said already would count as well.
pub(crate) fn check_forms(
    field: &str,
    (format, options, choice): (&ResponseFormat, &GenerationOptions, &ToolChoice),
) -> Result<(), ProtocolError> {
    let forced = matches!(choice, ToolChoice::Required | ToolChoice::Named(_));
    if *format == ResponseFormat::Text && options.structured.is_none() && !forced {
        return Ok(());
    }
    let rule = "an answer that goes on cannot be joined with a form of the answer or a call that is demanded";
    Err(invalid(field, &Value::Bool(true), rule))
}
