//! What an answer must be, from what a request says: the rule that a grammar is compiled from, and whose fault it is
//! where that fails.

use perilune_engine::SharedGrammar;
use perilune_grammar::{Arguments, Calls, ChatRule, GrammarError, Parallel, Rule, TextRule, ToolRule};
use perilune_protocol::{
    ChatCompletionRequest, Function, Message, OutputForm, ParallelCalls, ResponseFormat, Strictness, StructuredOutput,
    ToolChoice, Tools,
};
use perilune_tokenizer::OutputStart;
use serde_json::{Value, json};

use crate::app::TextSide;
use crate::error::{ApiError, Overload};
use crate::ready_chat::FieldNames;

/// The rule for a chat's answer; `None` where it is free. `start` is where the prompt will leave it.
pub(crate) fn chat_rule(request: &ChatCompletionRequest, start: OutputStart) -> Option<ChatRule> {
    let response = match (&request.response_format, &request.options.structured) {
        (ResponseFormat::JsonObject, _) => Some(TextRule::Json(json!({"type": "object"}))),
        (ResponseFormat::JsonSchema(schema), _) => Some(TextRule::Json(schema.clone())),
        (ResponseFormat::Text, structured) => structured.as_ref().map(text_rule),
    };
    let declared = request.known_tools();
    let (calls, tools) = match &request.tool_choice {
        ToolChoice::None => (Calls::None, Vec::new()),
        ToolChoice::Auto => (Calls::Optional, declared.iter().map(|tool| optional_tool(tool)).collect()),
        ToolChoice::Required => (Calls::Required, declared.iter().map(|tool| held_tool(tool)).collect()),
        ToolChoice::Named(name) => {
            (Calls::Required, declared.iter().filter(|tool| tool.name == *name).map(|tool| held_tool(tool)).collect())
        }
    };
    let parallel = match request.parallel_calls {
        ParallelCalls::Several => Parallel::Several,
        ParallelCalls::One => Parallel::One,
    };
    // A named tool is called once, as it is elsewhere.
    let parallel = if matches!(request.tool_choice, ToolChoice::Named(_)) { Parallel::One } else { parallel };
    let strict = declared.iter().any(|tool| tool.strict == Strictness::Held);
    let bound = match calls {
        Calls::None => response.is_some(),
        Calls::Required => true,
        Calls::Optional => response.is_some() || strict || (parallel == Parallel::One && !declared.is_empty()),
    };
    bound.then_some(ChatRule { start, response, calls, parallel, tools })
}

/// The rule for plain text.
pub(crate) fn text_rule(structured: &StructuredOutput) -> TextRule {
    match &structured.form {
        OutputForm::Json(schema) => TextRule::Json(schema.clone()),
        OutputForm::Regex(pattern) => TextRule::Regex(pattern.clone()),
        OutputForm::Grammar(text) => TextRule::Ebnf(text.clone()),
        OutputForm::Choice(texts) => TextRule::Choice(texts.clone()),
    }
}

/// Compiles a chat's rule.
///
/// # Errors
/// 400 naming the field, and the place within a schema; what `overload` says where too many are being compiled.
pub(crate) fn compile_chat(
    (text, overload): (&TextSide, Overload),
    rule: ChatRule,
    (request, fields): (&ChatCompletionRequest, FieldNames),
) -> Result<SharedGrammar, ApiError> {
    if request.options.ignore_eos {
        let message = "`ignore_eos` is true; an answer that must have a form cannot go on after its end";
        return Err(ApiError::invalid(message, Some("ignore_eos")));
    }
    let names: Vec<String> = rule.tools.iter().map(|tool| tool.name.clone()).collect();
    compile(text, &Rule::Chat(rule)).map_err(|error| {
        let field = match error.tool() {
            Some(index) => format!("{}.{}", place_of(request, names.get(index)), fields.parameters),
            None => match (&request.response_format, &request.options.structured) {
                (ResponseFormat::JsonSchema(_), _) => fields.schema.to_owned(),
                (ResponseFormat::Text, Some(structured)) => structured.field.clone(),
                (ResponseFormat::Text, None) => "tools".to_owned(),
                _ => "response_format".to_owned(),
            },
        };
        refusal(&field, &error, overload)
    })
}

/// Where a tool is declared; the last place, as that counts.
fn place_of(request: &ChatCompletionRequest, name: Option<&String>) -> String {
    let within = |tools: &Tools| tools.functions().iter().rposition(|tool| Some(&tool.name) == name);
    let added = request.messages.iter().enumerate().rev().find_map(|(i, message)| match message {
        Message::System { tools: Some(tools), .. } => Some(format!("messages[{i}].tools[{}]", within(tools)?)),
        _ => None,
    });
    added.unwrap_or_else(|| format!("tools[{}]", request.tools.as_ref().and_then(within).unwrap_or(0)))
}

/// Compiles the rule of plain text.
///
/// # Errors
/// As [`compile_chat`].
pub(crate) fn compile_text(
    (text, overload): (&TextSide, Overload),
    structured: &StructuredOutput,
) -> Result<SharedGrammar, ApiError> {
    let rule = Rule::Text(text_rule(structured));
    compile(text, &rule).map_err(|error| refusal(&structured.field, &error, overload))
}

fn compile(text: &TextSide, rule: &Rule) -> Result<SharedGrammar, GrammarError> {
    let compiled = text.grammars.compile(rule)?;
    Ok(SharedGrammar(compiled))
}

fn refusal(field: &str, error: &GrammarError, overload: Overload) -> ApiError {
    if let GrammarError::Busy(_) = error {
        return ApiError::overloaded(overload, error.to_string()).with_code("compiling");
    }
    let param = match error.path() {
        Some(path) if !path.is_empty() => format!("{field}.{path}"),
        _ => field.to_owned(),
    };
    ApiError::invalid(format!("`{field}` cannot be enforced: {error}"), Some(&param))
}

/// A tool that the model may call as it sees fit.
fn optional_tool(tool: &Function) -> ToolRule {
    match tool.strict {
        Strictness::Held => held_tool(tool),
        Strictness::Told => ToolRule { name: tool.name.clone(), arguments: Arguments::Any },
    }
}

/// A tool whose calls keep to its schema.
fn held_tool(tool: &Function) -> ToolRule {
    let none = || json!({"type": "object", "properties": {}, "additionalProperties": false});
    let schema: Value = tool.parameters.clone().unwrap_or_else(none);
    ToolRule { name: tool.name.clone(), arguments: Arguments::Schema(schema) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rule(extra: Value) -> Option<ChatRule> {
        let mut body = json!({"messages": [{"role": "user", "content": "hi"}]});
        body.as_object_mut().unwrap().extend(extra.as_object().unwrap().clone());
        let request = ChatCompletionRequest::parse(body.to_string().as_bytes()).unwrap();
        chat_rule(&request, OutputStart::Reasoning)
    }

    #[test]
    fn only_what_promises_something_is_bound() {
        let tool = |name: &str, strict: bool| json!({"type": "function", "function": {"name": name, "strict": strict}});
        let free = [tool("f", false)];
        assert_eq!(rule(json!({})), None);
        assert_eq!(rule(json!({"tools": free})), None);
        assert_eq!(rule(json!({"tools": free, "tool_choice": "none"})), None);
        assert_eq!(rule(json!({"parallel_tool_calls": false})), None);
        let calls = |extra: Value| rule(extra).map(|rule| (rule.calls, rule.parallel, rule.tools.len()));
        let expected = Some((Calls::Optional, Parallel::One, 1));
        assert_eq!(calls(json!({"tools": free, "parallel_tool_calls": false})), expected);
        let two = json!([tool("f", true), tool("g", false)]);
        let bound = rule(json!({"tools": two})).unwrap();
        assert_eq!((bound.calls, &bound.tools[1].arguments), (Calls::Optional, &Arguments::Any));
        assert!(matches!(bound.tools[0].arguments, Arguments::Schema(_)));
        let required = json!({"tools": two, "tool_choice": "required"});
        assert_eq!(calls(required), Some((Calls::Required, Parallel::Several, 2)));
        let named = json!({"tools": two, "tool_choice": {"type": "function", "function": {"name": "g"}}});
        assert_eq!(calls(named), Some((Calls::Required, Parallel::One, 1)));
        let format = rule(json!({"response_format": {"type": "json_object"}})).unwrap();
        assert_eq!((format.calls, format.tools.len()), (Calls::Optional, 0));
        assert!(format.response.is_some());
        assert!(rule(json!({"regex": "a"})).unwrap().response.is_some());
    }
}
