//! K3's chat format.
//!
//! What: a conversation as elements `<|open|>tag key="value"<|sep|>` … `<|close|>tag<|sep|>`, each piece of text a
//! segment that is tokenised alone, control tokens inserted as ids. What not: images (no vision tower is served).
//!
//! Source: `spec/kimi-k3.md` 5.3.

use super::renderer::PromptWriter;
use super::tool_result::{self, PlacedResult};
use super::{
    Arguments, ChatMessage, Conversation, RenderedPrompt, ResponseFormat, Role, Thinking, ToolCall, ToolChoice,
};
use super::{Effort, XtmlTokens};
use crate::{OutputStart, TokenizerError};

const TOOLS: &str = "# Tools\nHere are the available tools, described in JSONSchema.\n\n";
const NEW_TOOLS: &str = "## New Tools Available\nThe system dynamically extends the toolset via lazy-loading.\nYou have \
                         access to all existing and extended tools.\nHere are the specs for the extended tools.\n\n";
const TOOL_CHOICE_REQUIRED: &str =
    "The system is invoked with `tool_choice=required`.\nYou MUST call tools in the next message.";
const TOOL_CHOICE_NONE: &str =
    "The system is invoked with `tool_choice=none`.\nYou MUST NOT call any tools in the next message.";

/// Attributes of an element, in order.
type Attributes<'a> = &'a [(&'a str, &'a str)];

pub(super) fn render(
    writer: PromptWriter,
    tokens: XtmlTokens,
    conversation: &Conversation,
) -> Result<RenderedPrompt, TokenizerError> {
    if conversation.thinking == Thinking::On && !conversation.answer_begin.is_empty() {
        let reason = "an answer that thinks first cannot go on from text";
        return Err(TokenizerError::Inexpressible { field: "answer_begin", reason });
    }
    let mut xtml = Xtml { writer, tokens, thinking: conversation.thinking };
    if let Some(tools) = &conversation.tools_json {
        xtml.directive("tool-declare", &format!("{TOOLS}{}", fenced(tools)));
    }
    if let (Thinking::On, Some(effort)) = (conversation.thinking, conversation.effort) {
        xtml.directive("thinking-effort", &effort_text(effort));
    }
    xtml.messages(&conversation.messages)?;
    match conversation.tool_choice {
        ToolChoice::Auto => {}
        ToolChoice::None => xtml.passing_directive("tool-choice", TOOL_CHOICE_NONE),
        ToolChoice::Required => xtml.passing_directive("tool-choice", TOOL_CHOICE_REQUIRED),
    }
    if let Some(text) = response_format_text(&conversation.response_format) {
        xtml.passing_directive("response-format", &text);
    }
    Ok(xtml.generation_prompt(&conversation.answer_begin))
}

fn fenced(json: &str) -> String {
    format!("```json\n{json}\n```")
}

fn effort_text(effort: Effort) -> String {
    format!(
        "`thinking_effort` guides on how much to think in your thinking channel (not including the response channel), \
         supported values include `low`, `medium`, `high`, and `max`.\nNow the system is invoked with \
         `thinking_effort={}`.",
        effort.name()
    )
}

fn response_format_text(format: &ResponseFormat) -> Option<String> {
    let (name, schema) = match format {
        ResponseFormat::Text => return None,
        ResponseFormat::JsonObject => ("json_object", None),
        ResponseFormat::JsonSchema(schema) => ("json_schema", Some(schema)),
    };
    let schema = schema.map(|schema| format!("\nThe JSON data must match the following schema:\n{}", fenced(schema)));
    Some(format!(
        "The system is invoked with `response_format={name}`.\nYour response must be raw JSON data without markdown \
         code blocks (```json) or any additional formatting.{}",
        schema.unwrap_or_default()
    ))
}

struct Xtml<'a> {
    writer: PromptWriter<'a>,
    tokens: XtmlTokens,
    thinking: Thinking,
}

impl Xtml<'_> {
    fn open(&mut self, tag: &str, attributes: Attributes) {
        self.writer.control(self.tokens.open);
        self.writer.text(tag);
        for (key, value) in attributes {
            self.writer.text(&format!(" {key}"));
            self.writer.text("=\"");
            self.writer.text(&value.replace('&', "&amp;").replace('"', "&quot;"));
            self.writer.text("\"");
        }
        self.writer.control(self.tokens.sep);
    }

    fn close(&mut self, tag: &str) {
        self.writer.control(self.tokens.close);
        self.writer.text(tag);
        self.writer.control(self.tokens.sep);
    }

    fn element(&mut self, tag: &str, attributes: Attributes, segments: &[&str]) {
        self.open(tag, attributes);
        for segment in segments {
            self.writer.text(segment);
        }
        self.close(tag);
    }

    fn close_message(&mut self) {
        self.close("message");
        self.writer.control(self.tokens.end_of_message);
    }

    fn end_message(&mut self) {
        self.close_message();
        self.writer.end_message();
    }

    fn message(&mut self, attributes: Attributes, segments: &[String]) {
        self.open("message", attributes);
        for segment in segments {
            self.writer.text(segment);
        }
        self.end_message();
    }

    /// A system message of the renderer's own.
    fn directive(&mut self, kind: &str, text: &str) {
        self.message(&[("role", "system"), ("type", kind)], &[text.to_owned()]);
    }

    /// A system message about the coming answer alone: the next turn's prompt has none in its place.
    fn passing_directive(&mut self, kind: &str, text: &str) {
        self.open("message", &[("role", "system"), ("type", kind)]);
        self.writer.text(text);
        self.close_message();
    }

    fn messages(&mut self, messages: &[ChatMessage]) -> Result<(), TokenizerError> {
        let mut calls: &[ToolCall] = &[];
        let mut index = 0;
        while let Some(message) = messages.get(index) {
            check(index, message)?;
            if message.role != Role::System {
                self.writer.begin_conversation();
            }
            let num_results = tool_result::run_length(&messages[index..]);
            if num_results > 0 {
                let results = &messages[index..index + num_results];
                for (offset, result) in results.iter().enumerate() {
                    check(index + offset, result)?;
                }
                for placed in tool_result::place(calls, results) {
                    self.tool_result(placed, &results[placed.position]);
                }
                index += num_results;
                continue;
            }
            match message.role {
                Role::Assistant => {
                    calls = &message.tool_calls;
                    self.assistant(message);
                }
                _ => self.spoken(message),
            }
            index += 1;
        }
        Ok(())
    }

    /// A user or system message. A system message that adds tools is followed by their declaration; alone, it is
    /// only that.
    fn spoken(&mut self, message: &ChatMessage) {
        let mut attributes = vec![("role", message.role.name())];
        attributes.extend(message.name.as_deref().map(|name| ("name", name)));
        let has_text = message.content.iter().any(|part| !part.is_empty());
        if message.tools_json.is_none() || has_text {
            self.message(&attributes, &message.content);
        }
        if let Some(tools) = &message.tools_json {
            self.directive("tool-declare", &format!("{NEW_TOOLS}{}", fenced(tools)));
        }
    }

    fn assistant(&mut self, message: &ChatMessage) {
        let mut attributes = vec![("role", message.role.name())];
        attributes.extend(message.name.as_deref().map(|name| ("name", name)));
        self.open("message", &attributes);
        if self.thinking == Thinking::On {
            self.element("think", &[], &[message.reasoning.as_deref().unwrap_or_default()]);
        }
        let content: Vec<&str> = message.content.iter().map(String::as_str).collect();
        self.element("response", &[], &content);
        if !message.tool_calls.is_empty() {
            self.open("tools", &[]);
            for (index, call) in message.tool_calls.iter().enumerate() {
                self.call(call, index + 1);
            }
            self.close("tools");
        }
        self.end_message();
    }

    fn call(&mut self, call: &ToolCall, index: usize) {
        self.open("call", &[("tool", &call.name), ("index", &index.to_string())]);
        match &call.arguments {
            Arguments::Raw(text) => self.element("json", &[("type", "object")], &[text]),
            Arguments::Typed(arguments) => {
                for argument in arguments {
                    let attributes = [("key", argument.key.as_str()), ("type", argument.kind.name())];
                    self.element("argument", &attributes, &[&argument.text]);
                }
            }
        }
        self.close("call");
    }

    fn tool_result(&mut self, placed: PlacedResult, message: &ChatMessage) {
        let index = placed.index.to_string();
        let mut attributes = vec![("role", message.role.name())];
        attributes.extend(placed.tool.map(|tool| ("tool", tool)));
        attributes.push(("index", &index));
        self.message(&attributes, &message.content);
    }

    fn generation_prompt(mut self, answer_begin: &str) -> RenderedPrompt {
        self.open("message", &[("role", Role::Assistant.name())]);
        let usage_tokens = self.writer.tokens.len();
        let start = match self.thinking {
            Thinking::On => OutputStart::Reasoning,
            Thinking::Off => OutputStart::Content,
        };
        self.open(if start == OutputStart::Reasoning { "think" } else { "response" }, &[]);
        let opened = self.writer.tokens.len();
        self.writer.text(answer_begin);
        let usage_tokens = usage_tokens + self.writer.tokens.len() - opened;
        let num_leading = self.writer.num_leading();
        let PromptWriter { tokens, message_ends, .. } = self.writer;
        RenderedPrompt { tokens, message_ends, num_leading, usage_tokens, start }
    }
}

fn check(index: usize, message: &ChatMessage) -> Result<(), TokenizerError> {
    let refuse = |reason| Err(TokenizerError::Message { index, reason });
    match message.role {
        Role::Assistant => {}
        _ if !message.tool_calls.is_empty() => return refuse("only an assistant message may hold tool calls"),
        _ if message.reasoning.is_some() => return refuse("only an assistant message may hold reasoning"),
        _ => {}
    }
    if message.role != Role::System && message.tools_json.is_some() {
        return refuse("only a system message may add tools");
    }
    Ok(())
}

#[cfg(test)]
#[path = "xtml_tests.rs"]
mod tests;
