//! Prompts from a JSON-lines file: questions, plain texts or whole conversations, each as the server would render it.

use std::path::Path;

use perilune_tensor::TokenId;
use perilune_tokenizer::{ChatMessage, ChatRenderer, Conversation, Effort, Role, Thinking, Tokenizer};
use serde_json::{Map, Value};

use crate::TrainError;

/// A prompt to be answered by the target.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Prompt {
    /// Its line in the file, counted from 1.
    pub line: usize,
    /// What the target reads.
    pub tokens: Vec<TokenId>,
}

/// Turns text into prompts.
#[derive(Debug, Clone, Copy)]
pub struct PromptReader<'a> {
    /// The target's vocabulary.
    pub tokenizer: &'a Tokenizer,
    /// Its chat format; without one only `text` can be read.
    pub chat: Option<&'a ChatRenderer>,
}

/// Reads a file of prompts. Every line is a JSON object with one of
/// `question` (a user's message), `messages` (a conversation, `[{role, content}, …]`) and `text` (continued as it stands);
/// other fields are left alone. Empty lines are skipped. Conversations are rendered as the server renders a request that
/// says nothing about thinking.
///
/// # Errors
/// `Io`; `Prompt`, naming line, field and rule.
pub fn read_prompts(reader: PromptReader<'_>, path: &Path) -> Result<Vec<Prompt>, TrainError> {
    let text = std::fs::read_to_string(path).map_err(TrainError::io(path))?;
    let mut prompts = Vec::new();
    for (index, line) in text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty()) {
        let refuse = |problem| TrainError::Prompt { path: path.to_owned(), line: index + 1, problem };
        let tokens = reader.prompt(line).map_err(refuse)?;
        prompts.push(Prompt { line: index + 1, tokens });
    }
    if prompts.is_empty() {
        return Err(TrainError::File { path: path.to_owned(), problem: "it holds no prompts".into() });
    }
    Ok(prompts)
}

impl PromptReader<'_> {
    fn prompt(self, line: &str) -> Result<Vec<TokenId>, String> {
        let value: Value = serde_json::from_str(line).map_err(|error| format!("no JSON: {error}"))?;
        let object = value.as_object().ok_or_else(|| format!("{}, where an object is expected", kind(&value)))?;
        let tokens = if let Some(question) = object.get("question") {
            self.chat(vec![ChatMessage::new(Role::User, string("question", question)?)])?
        } else if let Some(messages) = object.get("messages") {
            self.chat(conversation(messages)?)?
        } else if let Some(text) = object.get("text") {
            self.tokenizer.encode_text(string("text", text)?)
        } else {
            return Err("it has none of the fields `question`, `messages` and `text`".into());
        };
        if tokens.is_empty() { Err("the prompt is empty".into()) } else { Ok(tokens) }
    }

    fn chat(self, messages: Vec<ChatMessage>) -> Result<Vec<TokenId>, String> {
        let renderer = self.chat.ok_or("the target has no chat format: only `text` can be read")?;
        let conversation =
            Conversation { messages, thinking: Thinking::On, effort: Some(Effort::Max), ..Conversation::default() };
        Ok(renderer.render(&conversation).map_err(|error| error.to_string())?.tokens)
    }
}

fn conversation(messages: &Value) -> Result<Vec<ChatMessage>, String> {
    let list = messages.as_array().ok_or_else(|| format!("`messages` is {}, not an array", kind(messages)))?;
    if list.is_empty() {
        return Err("`messages` is empty".into());
    }
    list.iter().enumerate().map(|(i, entry)| message(i, entry)).collect()
}

fn message(index: usize, entry: &Value) -> Result<ChatMessage, String> {
    let field = |name: &str| format!("messages[{index}].{name}");
    let entry: &Map<String, Value> =
        entry.as_object().ok_or_else(|| format!("`messages[{index}]` is {}, not an object", kind(entry)))?;
    let text = |name: &str| string(&field(name), entry.get(name).unwrap_or(&Value::Null));
    let role = match text("role")? {
        "system" => Role::System,
        "user" => Role::User,
        "assistant" => Role::Assistant,
        other => return Err(format!("`{}` is {other:?}, not system, user or assistant", field("role"))),
    };
    Ok(ChatMessage::new(role, text("content")?))
}

fn string<'v>(field: &str, value: &'v Value) -> Result<&'v str, String> {
    value.as_str().ok_or_else(|| format!("`{field}` is {}, not a string", kind(value)))
}

fn kind(value: &Value) -> &'static str {
    match value {
        Value::Null => "missing",
        Value::Bool(_) => "a truth value",
        Value::Number(_) => "a number",
        Value::String(_) => "a string",
        Value::Array(_) => "an array",
        Value::Object(_) => "an object",
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;

    fn read(text: &str) -> Result<Vec<Prompt>, String> {
        let demo = concat!(env!("CARGO_MANIFEST_DIR"), "/../../models/demo");
        let tokenizer = Arc::new(Tokenizer::from_dir(Path::new(demo)).unwrap());
        let chat = ChatRenderer::new(tokenizer.clone()).unwrap();
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("prompts.jsonl");
        std::fs::write(&path, text).unwrap();
        let reader = PromptReader { tokenizer: &tokenizer, chat: Some(&chat) };
        let name = path.display().to_string();
        read_prompts(reader, &path).map_err(|error| error.to_string().replace(&name, "FILE"))
    }

    #[test]
    fn a_question_is_a_conversation_of_one_message() {
        let text = "{\"question\": \"How many?\", \"answer\": \"2\"}\n\n\
                    {\"messages\": [{\"role\": \"user\", \"content\": \"How many?\"}]}\n{\"text\": \"How many?\"}\n";
        let prompts = read(text).unwrap();
        assert_eq!(prompts.iter().map(|p| p.line).collect::<Vec<_>>(), [1, 3, 4]);
        assert_eq!(prompts[0].tokens, prompts[1].tokens);
        assert!(prompts[2].tokens.len() < prompts[0].tokens.len());
    }

    #[test]
    fn bad_lines_are_named_with_field_and_rule() {
        let bad = |line: &str| read(&format!("{{\"text\": \"fine\"}}\n{line}\n")).unwrap_err();
        assert!(bad("{\"question\"").starts_with("FILE, line 2: no JSON: "));
        assert_eq!(bad("[]"), "FILE, line 2: an array, where an object is expected");
        assert_eq!(bad("{\"question\": 7}"), "FILE, line 2: `question` is a number, not a string");
        assert_eq!(
            bad("{\"answer\": \"7\"}"),
            "FILE, line 2: it has none of the fields `question`, `messages` and `text`"
        );
        assert_eq!(bad("{\"messages\": []}"), "FILE, line 2: `messages` is empty");
        let role =
            "{\"messages\": [{\"role\": \"user\", \"content\": \"a\"}, {\"role\": \"robot\", \"content\": \"b\"}]}";
        assert_eq!(bad(role), "FILE, line 2: `messages[1].role` is \"robot\", not system, user or assistant");
        let content = "{\"messages\": [{\"role\": \"user\"}]}";
        assert_eq!(bad(content), "FILE, line 2: `messages[0].content` is missing, not a string");
        assert_eq!(bad("{\"text\": \"\"}"), "FILE, line 2: the prompt is empty");
        assert_eq!(read("\n\n").unwrap_err(), "FILE: it holds no prompts");
    }
}
