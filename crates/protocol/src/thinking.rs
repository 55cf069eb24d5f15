//! Whether the model thinks before it answers, and how hard.
//!
//! Clients say it in three places: `thinking {type, keep, effort}`, `reasoning_effort`, and
//! `chat_template_kwargs {thinking, thinking_effort}`. The first of these that says something decides; reasoning of
//! earlier turns is always kept, which is what Kimi K3 is trained for. K3 has three levels; the words of OpenAI's clients
//! between and beyond them mean the nearest one ([`EFFORT_WORDS`]).

use serde_json::Value;

use crate::ProtocolError;
use crate::fields::Fields;

/// How hard to think: the levels Kimi K3 accepts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EffortLevel {
    /// Briefly.
    Low,
    /// Thoroughly.
    High,
    /// As long as it takes.
    Max,
}

/// Words for effort from least to most, and the level each means; `None` is no thinking at all.
pub const EFFORT_WORDS: [(&str, Option<EffortLevel>); 7] = [
    ("none", None),
    ("minimal", Some(EffortLevel::Low)),
    ("low", Some(EffortLevel::Low)),
    ("medium", Some(EffortLevel::High)),
    ("high", Some(EffortLevel::High)),
    ("xhigh", Some(EffortLevel::Max)),
    ("max", Some(EffortLevel::Max)),
];

/// What the client says about thinking.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ThinkingOptions {
    /// Answer at once.
    Off,
    /// Think first, with the effort named, or the default.
    On(Option<EffortLevel>),
}

impl ThinkingOptions {
    pub(crate) fn read(fields: &mut Fields) -> Result<Self, ProtocolError> {
        let (switch, nested) = read_thinking(fields)?;
        let flat = read_effort(fields, "reasoning_effort")?;
        let mut template = (None, None);
        if let Some(mut kwargs) = fields.object("chat_template_kwargs")? {
            template.0 = kwargs.boolean("thinking")?;
            template.1 = read_effort(&mut kwargs, "thinking_effort")?;
        }
        let wish = nested.or(flat).or(template.1);
        let on = switch.or(template.0).unwrap_or(wish != Some(None));
        Ok(if on { ThinkingOptions::On(wish.flatten()) } else { ThinkingOptions::Off })
    }
}

/// What a word says: `None` where there is none, `Some(None)` where it says not to think.
pub(crate) type Wish = Option<Option<EffortLevel>>;

/// `thinking`: its switch and its effort.
fn read_thinking(fields: &mut Fields) -> Result<(Option<bool>, Wish), ProtocolError> {
    let Some(mut thinking) = fields.object("thinking")? else { return Ok((None, None)) };
    let switch = match thinking.string("type")? {
        None => None,
        Some(word) => match word.as_str() {
            "enabled" => Some(true),
            "disabled" => Some(false),
            _ => return Err(thinking.refuse("type", &Value::String(word), "it must be `enabled` or `disabled`")),
        },
    };
    if let Some(word) = thinking.string("keep")?.filter(|word| word != "all") {
        return Err(thinking.refuse("keep", &Value::String(word), "it must be `all`: earlier reasoning is kept"));
    }
    Ok((switch, read_effort(&mut thinking, "effort")?))
}

pub(crate) fn read_effort(fields: &mut Fields, key: &str) -> Result<Wish, ProtocolError> {
    let Some(word) = fields.string(key)? else { return Ok(None) };
    if let Some((_, level)) = EFFORT_WORDS.iter().find(|(known, _)| *known == word) {
        return Ok(Some(*level));
    }
    let known = EFFORT_WORDS.map(|(known, _)| format!("`{known}`")).join(", ");
    Err(fields.refuse(key, &Value::String(word), &format!("it must be one of {known}")))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn read(value: Value) -> Result<ThinkingOptions, ProtocolError> {
        ThinkingOptions::read(&mut Fields::of(String::new(), value)?)
    }

    #[test]
    fn the_three_places_and_their_order() {
        use EffortLevel::{High, Low, Max};
        use ThinkingOptions::{Off, On};
        let cases = [
            (json!({}), On(None)),
            (json!({"reasoning_effort": "low"}), On(Some(Low))),
            (json!({"reasoning_effort": "none"}), Off),
            (json!({"reasoning_effort": "minimal"}), On(Some(Low))),
            (json!({"reasoning_effort": "medium"}), On(Some(High))),
            (json!({"reasoning_effort": "xhigh"}), On(Some(Max))),
            (json!({"thinking": {"effort": "none"}, "reasoning_effort": "low"}), Off),
            (json!({"thinking": {"type": "enabled"}, "reasoning_effort": "none"}), On(None)),
            (json!({"thinking": {"type": "disabled"}}), Off),
            (json!({"thinking": {"type": "disabled"}, "reasoning_effort": "max"}), Off),
            (json!({"thinking": {"type": "enabled", "keep": "all", "effort": "high"}}), On(Some(High))),
            (json!({"thinking": {"effort": "max"}, "reasoning_effort": "low"}), On(Some(Max))),
            (json!({"chat_template_kwargs": {"thinking": false, "thinking_effort": "low"}}), Off),
            (json!({"chat_template_kwargs": {"thinking_effort": "low", "other": 1}}), On(Some(Low))),
            (json!({"thinking": {"type": "enabled"}, "chat_template_kwargs": {"thinking": false}}), On(None)),
        ];
        for (value, expected) in cases {
            assert_eq!(read(value.clone()), Ok(expected), "{value}");
        }
    }

    #[test]
    fn wrong_values_are_named() {
        let cases = [
            (json!({"reasoning_effort": "enormous"}), "reasoning_effort"),
            (json!({"reasoning_effort": 3}), "reasoning_effort"),
            (json!({"thinking": true}), "thinking"),
            (json!({"thinking": {"type": "maybe"}}), "thinking.type"),
            (json!({"thinking": {"keep": "none"}}), "thinking.keep"),
            (json!({"thinking": {"effort": "little"}}), "thinking.effort"),
            (json!({"chat_template_kwargs": {"thinking": "yes"}}), "chat_template_kwargs.thinking"),
            (json!({"chat_template_kwargs": {"thinking_effort": ""}}), "chat_template_kwargs.thinking_effort"),
        ];
        for (value, param) in cases {
            assert_eq!(read(value.clone()).unwrap_err().param(), Some(param), "{value}");
        }
    }
}
