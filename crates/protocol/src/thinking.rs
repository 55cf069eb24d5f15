//! Whether the model thinks before it answers, and how hard.
//!
//! Clients say it in three places: `thinking {type, keep, effort}`, `reasoning_effort`, and
//! `chat_template_kwargs {thinking, thinking_effort}`. The first of these that says something decides; reasoning of
//! earlier turns is always kept, which is what Kimi K3 is trained for.

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
        let flat = match fields.string("reasoning_effort")? {
            Some(word) if word == "none" => Some(None),
            Some(word) => Some(Some(effort(fields, "reasoning_effort", word)?)),
            None => None,
        };
        let mut template = (None, None);
        if let Some(mut kwargs) = fields.object("chat_template_kwargs")? {
            template.0 = kwargs.boolean("thinking")?;
            template.1 = read_effort(&mut kwargs, "thinking_effort")?;
        }
        let off_by_effort = flat == Some(None);
        let on = switch.or(template.0).unwrap_or(!off_by_effort);
        let level = nested.or(flat.flatten()).or(template.1);
        Ok(if on { ThinkingOptions::On(level) } else { ThinkingOptions::Off })
    }
}

/// `thinking`: its switch and its effort.
fn read_thinking(fields: &mut Fields) -> Result<(Option<bool>, Option<EffortLevel>), ProtocolError> {
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

fn read_effort(fields: &mut Fields, key: &str) -> Result<Option<EffortLevel>, ProtocolError> {
    fields.string(key)?.map(|word| effort(fields, key, word)).transpose()
}

fn effort(fields: &Fields, key: &str, word: String) -> Result<EffortLevel, ProtocolError> {
    match word.as_str() {
        "low" => Ok(EffortLevel::Low),
        "high" => Ok(EffortLevel::High),
        "max" => Ok(EffortLevel::Max),
        _ => Err(fields.refuse(key, &Value::String(word), "it must be `low`, `high` or `max`")),
    }
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
            (json!({"reasoning_effort": "medium"}), "reasoning_effort"),
            (json!({"reasoning_effort": 3}), "reasoning_effort"),
            (json!({"thinking": true}), "thinking"),
            (json!({"thinking": {"type": "maybe"}}), "thinking.type"),
            (json!({"thinking": {"keep": "none"}}), "thinking.keep"),
            (json!({"thinking": {"effort": "medium"}}), "thinking.effort"),
            (json!({"chat_template_kwargs": {"thinking": "yes"}}), "chat_template_kwargs.thinking"),
            (json!({"chat_template_kwargs": {"thinking_effort": ""}}), "chat_template_kwargs.thinking_effort"),
        ];
        for (value, param) in cases {
            assert_eq!(read(value.clone()).unwrap_err().param(), Some(param), "{value}");
        }
    }
}
