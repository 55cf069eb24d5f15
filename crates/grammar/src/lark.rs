//! Writes grammars in the language of llguidance: rules over text and over token ids, and parts that are schemas.

use llguidance::api::{GrammarWithLexer, TopLevelGrammar};
use perilune_tensor::TokenId;
use serde_json::{Value, json};

use crate::numbers::write_bounds;
use crate::{GrammarError, ebnf};

/// White space between the parts of a JSON text: some, but no endless run, which models are prone to.
const WHITE_SPACE: &str = r"[\x20\x0A\x0D\x09]{1,64}";

/// What plain text must be.
#[derive(Debug, Clone, PartialEq)]
pub enum TextRule {
    /// A JSON text that this schema allows.
    Json(Value),
    /// Text that this regular expression matches as a whole (syntax of Rust's `regex`, without look-around).
    Regex(String),
    /// Text of a grammar: EBNF with `name ::= …` (as GBNF) and `root`, or Lark with `name: …` and `start`.
    Ebnf(String),
    /// One of these texts.
    Choice(Vec<String>),
}

/// A grammar that is being written.
#[derive(Debug, Default)]
pub(crate) struct Lark {
    rules: String,
    parts: Vec<GrammarWithLexer>,
}

impl Lark {
    /// Adds a rule; `body` is one line.
    pub(crate) fn rule(&mut self, name: &str, body: &str) {
        self.rules.push_str(&format!("{name}: {body}\n"));
    }

    /// Adds a part of its own lexer; its name in bodies.
    pub(crate) fn part(&mut self, mut grammar: GrammarWithLexer) -> String {
        let name = format!("part{}", self.parts.len());
        grammar.name = Some(name.clone());
        self.parts.push(grammar);
        format!("@{name}")
    }

    /// A JSON text that `schema` allows, as a part.
    pub(crate) fn json(&mut self, schema: &Value) -> String {
        self.part(json_grammar(schema))
    }

    /// Text that keeps to `rule`, as a part.
    ///
    /// # Errors
    /// `Compile` for what is no grammar.
    pub(crate) fn text(&mut self, rule: &TextRule) -> Result<String, GrammarError> {
        let grammar = match rule {
            TextRule::Json(schema) => json_grammar(schema),
            TextRule::Regex(pattern) => GrammarWithLexer::from_regex(pattern),
            TextRule::Ebnf(text) => GrammarWithLexer::from_lark(ebnf::to_lark(text)?),
            TextRule::Choice(texts) => {
                let texts: Vec<String> = texts.iter().map(|text| literal(text)).collect();
                GrammarWithLexer::from_lark(format!("start: {}", texts.join(" | ")))
            }
        };
        Ok(self.part(grammar))
    }

    /// The whole, beginning with rule `start`.
    pub(crate) fn finish(self) -> TopLevelGrammar {
        let mut grammars = vec![GrammarWithLexer::from_lark(self.rules)];
        grammars.extend(self.parts);
        TopLevelGrammar { grammars, max_tokens: None }
    }
}

/// A text as a literal.
pub(crate) fn literal(text: &str) -> String {
    let mut out = String::from("\"");
    for c in text.chars() {
        match c {
            '"' | '\\' => out.extend(['\\', c]),
            c if c.is_control() => out.extend(c.encode_utf16(&mut [0; 2]).iter().map(|unit| format!("\\u{unit:04x}"))),
            c => out.push(c),
        }
    }
    out.push('"');
    out
}

/// Exactly these tokens.
pub(crate) fn exactly(tokens: &[TokenId]) -> String {
    tokens.iter().map(|id| format!("<[{id}]>")).collect::<Vec<_>>().join(" ")
}

fn json_grammar(schema: &Value) -> GrammarWithLexer {
    let mut schema = match schema {
        Value::Object(_) => schema.clone(),
        Value::Bool(true) => json!({}),
        other => json!({"allOf": [other]}),
    };
    write_bounds(&mut schema);
    if let Some(map) = schema.as_object_mut() {
        map.insert("x-guidance".to_owned(), json!({"whitespace_pattern": WHITE_SPACE}));
    }
    GrammarWithLexer::from_json_schema(schema)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn literals_are_quoted() {
        assert_eq!(literal("a\"b\\\n\u{7f}é😀"), "\"a\\\"b\\\\\\u000a\\u007fé😀\"");
        assert_eq!(exactly(&[TokenId(3), TokenId(163_587)]), "<[3]> <[163587]>");
    }
}
