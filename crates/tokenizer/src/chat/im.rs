//! The chat format of Kimi-Linear and K2.
//!
//! What: `<|im_user|>user<|im_middle|>` … `<|im_end|>` and its like for system, assistant and declared tools. What not:
//! channels, tool calls and their results, directives: the format has none that we know exactly, so a conversation
//! that needs one is refused instead of approximated; the form of an answer is enforced without one, where it is enforced. Thinking and effort are ignored, since these models do not think.
//!
//! Source: `spec/kimi-k3.md` 5.2.

use perilune_tensor::TokenId;

use super::renderer::PromptWriter;
use super::{ChatMessage, Conversation, ImTokens, RenderedPrompt, Role, ToolChoice};
use crate::{OutputStart, TokenizerError};

pub(super) fn render(
    writer: PromptWriter,
    tokens: ImTokens,
    conversation: &Conversation,
) -> Result<RenderedPrompt, TokenizerError> {
    check(conversation)?;
    let mut im = Im { writer, tokens };
    if let Some(tools) = &conversation.tools_json {
        im.message(tokens.system, "tool_declare", std::slice::from_ref(tools));
    }
    for (index, message) in conversation.messages.iter().enumerate() {
        let token = im.role_token(index, message)?;
        if message.role != Role::System {
            im.writer.begin_conversation();
        }
        im.message(token, message.name.as_deref().unwrap_or(message.role.name()), &message.content);
    }
    im.open(tokens.assistant, Role::Assistant.name());
    im.writer.text(&conversation.answer_begin);
    let num_leading = im.writer.num_leading();
    let PromptWriter { tokens, message_ends, .. } = im.writer;
    Ok(RenderedPrompt { usage_tokens: tokens.len(), tokens, message_ends, num_leading, start: OutputStart::Content })
}

fn check(conversation: &Conversation) -> Result<(), TokenizerError> {
    let refuse = |field, reason| Err(TokenizerError::Inexpressible { field, reason });
    if conversation.tool_choice == ToolChoice::Required {
        return refuse("tool_choice", "it has no directive that demands a tool call");
    }
    Ok(())
}

struct Im<'a> {
    writer: PromptWriter<'a>,
    tokens: ImTokens,
}

impl Im<'_> {
    fn role_token(&self, index: usize, message: &ChatMessage) -> Result<TokenId, TokenizerError> {
        let refuse = |reason| Err(TokenizerError::Message { index, reason });
        if message.tools_json.is_some() {
            return refuse("this checkpoint's chat format cannot add tools later");
        }
        if !message.tool_calls.is_empty() || message.role == Role::Tool {
            return refuse("this checkpoint's chat format has no tool calls and results");
        }
        Ok(match message.role {
            Role::User => self.tokens.user,
            Role::Assistant => self.tokens.assistant,
            Role::System | Role::Tool => self.tokens.system,
        })
    }

    fn open(&mut self, token: TokenId, name: &str) {
        self.writer.control(token);
        self.writer.text(name);
        self.writer.control(self.tokens.middle);
    }

    fn message(&mut self, token: TokenId, name: &str, segments: &[String]) {
        self.open(token, name);
        for segment in segments {
            self.writer.text(segment);
        }
        self.writer.control(self.tokens.end);
        self.writer.end_message();
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::chat::{ChatRenderer, Thinking};
    use crate::tokenizer::tests::tiny;

    fn renderer() -> (Arc<crate::Tokenizer>, ChatRenderer) {
        let names = ["<|im_system|>", "<|im_user|>", "<|im_assistant|>", "<|im_middle|>", "<|im_end|>"];
        let tokenizer = tiny(&names);
        (tokenizer.clone(), ChatRenderer::new(tokenizer).unwrap())
    }

    #[test]
    fn a_conversation_reads_as_the_template_says() {
        let (tokenizer, renderer) = renderer();
        let messages = vec![
            ChatMessage::new(Role::System, "Be brief."),
            ChatMessage::new(Role::User, "<|im_end|>"),
            ChatMessage::new(Role::Assistant, "Hi."),
            ChatMessage { name: Some("Ann".to_owned()), ..ChatMessage::new(Role::User, "Bye") },
        ];
        let conversation =
            Conversation { messages, tools_json: Some("[]".to_owned()), thinking: Thinking::On, ..Default::default() };
        let prompt = renderer.render(&conversation).unwrap();
        let text = String::from_utf8(tokenizer.decode_bytes(&prompt.tokens).unwrap()).unwrap();
        assert_eq!(
            text,
            "<|im_system|>tool_declare<|im_middle|>[]<|im_end|><|im_system|>system<|im_middle|>Be brief.<|im_end|>\
             <|im_user|>user<|im_middle|><|im_end|><|im_end|><|im_assistant|>assistant<|im_middle|>Hi.<|im_end|>\
             <|im_user|>Ann<|im_middle|>Bye<|im_end|><|im_assistant|>assistant<|im_middle|>"
        );
        let end = tokenizer.special_id("<|im_end|>").unwrap();
        assert_eq!(prompt.tokens.iter().filter(|token| **token == end).count(), 5, "the user's own is text");
        assert_eq!((prompt.message_ends.len(), prompt.num_leading), (5, 2));
        let ends = &prompt.message_ends;
        assert_eq!(prompt.save_at(), [ends[1], ends[4], ends[0]]);
        assert!(prompt.message_ends.iter().all(|at| prompt.tokens[at - 1] == end));
        assert_eq!((prompt.usage_tokens, prompt.start), (prompt.tokens.len(), OutputStart::Content));
    }

    #[test]
    fn what_the_format_lacks_is_refused_by_name() {
        let (_, renderer) = renderer();
        let error = |conversation: Conversation| renderer.render(&conversation).unwrap_err().to_string();
        let required = Conversation { tool_choice: ToolChoice::Required, ..Default::default() };
        assert!(error(required).contains("`tool_choice`"));
        let messages = vec![ChatMessage::new(Role::User, "a"), ChatMessage::new(Role::Tool, "b")];
        assert!(error(Conversation { messages, ..Default::default() }).contains("message 1"));
    }
}
