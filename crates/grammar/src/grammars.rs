//! The grammars of one vocabulary: checks, writes and compiles rules; remembers what it compiled last.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Duration;

use llguidance::api::{ParserLimits, TopLevelGrammar};
use llguidance::toktrie::InferenceCapabilities;
use llguidance::{Matcher, ParserFactory};
use perilune_tensor::{TokenId, TokenMask};
use perilune_tokenizer::{OutputStart, Tokenizer};
use serde_json::Value;

use crate::chat::{Arguments, ChatTokens, Markup};
use crate::constraint::Thinking;
use crate::deadline::Places;
use crate::lark::Lark;
use crate::numbers::number_format;
use crate::{ChatRule, CompiledGrammar, GrammarError, TextRule, ToolRule, schema, vocabulary};

/// Begins the library's refusal of a `oneOf` that it cannot treat as `anyOf`.
const ONE_OF: &str = "oneOf constraints are not supported";
/// States of expressions: one or two kilobytes each, for every grammar that runs.
const MAX_LEXER_STATES: usize = 50_000;

/// What is compiled at most.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Limits {
    /// Size of a schema as JSON text.
    pub max_schema_bytes: usize,
    /// Schemas within schemas.
    pub max_schema_depth: usize,
    /// Size of an expression or a grammar, and of all choices together.
    pub max_text_bytes: usize,
    /// Time to compile.
    pub timeout: Duration,
    /// Compilations at once.
    pub max_compilations: usize,
    /// Compiled grammars that are kept for requests to come.
    pub kept: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Limits {
            max_schema_bytes: 512 << 10,
            max_schema_depth: 64,
            max_text_bytes: 64 << 10,
            timeout: Duration::from_secs(5),
            max_compilations: 4,
            kept: 64,
        }
    }
}

/// What is to be enforced.
#[derive(Debug, Clone, PartialEq)]
pub enum Rule {
    /// The whole output is this text.
    Text(TextRule),
    /// The answer of a chat.
    Chat(ChatRule),
}

/// Compiles rules over one vocabulary.
pub struct Grammars {
    tokenizer: Arc<Tokenizer>,
    limits: Limits,
    places: Places,
    /// Made with the first grammar: building the trie of a large vocabulary takes a while.
    factory: Arc<OnceLock<Result<Factory, String>>>,
    kept: Mutex<VecDeque<(Rule, Arc<CompiledGrammar>)>>,
}

struct Factory {
    parsers: ParserFactory,
    thinking: Option<Arc<Thinking>>,
    tokens: Option<ChatTokens>,
}

impl Grammars {
    /// Grammars over the vocabulary of `tokenizer`.
    pub fn new(tokenizer: Arc<Tokenizer>, limits: Limits) -> Self {
        let places = Places::new(limits.max_compilations.max(1));
        Grammars { tokenizer, limits, places, factory: Arc::default(), kept: Mutex::default() }
    }

    /// A rule ready to be started, from memory or compiled now; waits for that.
    ///
    /// # Errors
    /// See [`GrammarError`].
    pub fn compile(&self, rule: &Rule) -> Result<Arc<CompiledGrammar>, GrammarError> {
        if let Some(found) = self.remembered(rule) {
            return Ok(found);
        }
        self.check(rule)?;
        let (factory, tokenizer, asked) = (self.factory.clone(), self.tokenizer.clone(), rule.clone());
        let compiled = self.places.run(self.limits.timeout, move || {
            let factory = factory.get_or_init(|| Factory::new(&tokenizer)).as_ref();
            let factory = factory.map_err(|error| GrammarError::Vocabulary(error.clone()))?;
            factory.compile(&tokenizer, &asked)
        })??;
        let compiled = Arc::new(compiled);
        self.remember(rule, &compiled);
        Ok(compiled)
    }

    fn check(&self, rule: &Rule) -> Result<(), GrammarError> {
        let (text, tools) = match rule {
            Rule::Text(text) => (Some(text), &[][..]),
            Rule::Chat(chat) => (chat.response.as_ref(), chat.tools.as_slice()),
        };
        let bytes = match text {
            Some(TextRule::Json(schema)) => return self.check_schemas(Some(schema), tools),
            Some(TextRule::Regex(text) | TextRule::Ebnf(text)) => text.len(),
            Some(TextRule::Choice(texts)) => texts.iter().map(String::len).sum(),
            None => 0,
        };
        if bytes > self.limits.max_text_bytes {
            let what = "its size in bytes is".to_owned();
            return Err(GrammarError::Limit { what, found: bytes, limit: self.limits.max_text_bytes });
        }
        self.check_schemas(None, tools)
    }

    fn check_schemas(&self, response: Option<&Value>, tools: &[ToolRule]) -> Result<(), GrammarError> {
        response.map_or(Ok(()), |schema| schema::check(schema, &self.limits))?;
        schemas_of(tools)
            .try_for_each(|(index, schema)| schema::check(schema, &self.limits).map_err(|error| error.of_tool(index)))
    }

    fn remembered(&self, rule: &Rule) -> Option<Arc<CompiledGrammar>> {
        let mut kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        let place = kept.iter().position(|(known, _)| known == rule)?;
        let entry = kept.remove(place)?;
        let found = entry.1.clone();
        kept.push_back(entry);
        Some(found)
    }

    fn remember(&self, rule: &Rule, compiled: &Arc<CompiledGrammar>) {
        let mut kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        kept.push_back((rule.clone(), compiled.clone()));
        while kept.len() > self.limits.kept {
            kept.pop_front();
        }
    }
}

impl Factory {
    fn new(tokenizer: &Arc<Tokenizer>) -> Result<Self, String> {
        let environment = vocabulary::environment(tokenizer.clone(), tokenizer.stop_ids());
        let capabilities = InferenceCapabilities::default();
        let slices = llguidance::earley::SlicedBiasComputer::general_slices();
        let mut parsers = ParserFactory::new(&environment, capabilities, &slices).map_err(|error| error.to_string())?;
        parsers.quiet();
        let max_lexer_states = MAX_LEXER_STATES;
        *parsers.limits_mut() = ParserLimits { verbose_errors: false, max_lexer_states, ..ParserLimits::default() };
        let tokens = ChatTokens::find(tokenizer);
        let thinking = match tokens {
            Some(ChatTokens::Xtml(tokens)) => {
                let marker = Markup { tokenizer, tokens }.closing("think");
                let controls: Vec<_> = (tokenizer.num_base_tokens()..tokenizer.vocab_size())
                    .map(|id| TokenId(id as u32))
                    .filter(|id| *id != tokens.close)
                    .collect();
                let free = TokenMask::all_but(&controls, tokenizer.vocab_size());
                Some(Arc::new(Thinking { close: tokens.close, rest: marker[1..].to_vec(), free }))
            }
            _ => None,
        };
        Ok(Factory { parsers, thinking, tokens })
    }

    fn compile(&self, tokenizer: &Tokenizer, rule: &Rule) -> Result<CompiledGrammar, GrammarError> {
        let (matcher, thinks) = match rule {
            Rule::Text(text) => (self.text_matcher(text)?, false),
            Rule::Chat(chat) => (self.chat_matcher(tokenizer, chat)?, chat.start == OutputStart::Reasoning),
        };
        let thinking = if thinks { self.thinking.clone() } else { None };
        Ok(CompiledGrammar::new(matcher, thinking, tokenizer.vocab_size()))
    }

    fn text_matcher(&self, text: &TextRule) -> Result<Matcher, GrammarError> {
        let mut lark = Lark::default();
        let part = lark.text(text)?;
        lark.rule("start", &part);
        self.matcher(lark.finish()).map_err(|error| {
            let bad = if let TextRule::Json(schema) = text { self.bad_schema(schema) } else { None };
            bad.unwrap_or(GrammarError::Compile(error))
        })
    }

    /// Its parts are compiled by themselves first: what comes late in an answer does not show at the first token.
    fn chat_matcher(&self, tokenizer: &Tokenizer, chat: &ChatRule) -> Result<Matcher, GrammarError> {
        let none = "the vocabulary has no chat format";
        let tokens = self.tokens.ok_or_else(|| GrammarError::Vocabulary(none.to_owned()))?;
        chat.response.as_ref().map(|text| self.text_matcher(text)).transpose()?;
        if let Some(error) = schemas_of(&chat.tools).find_map(|(i, schema)| Some(self.bad_schema(schema)?.of_tool(i))) {
            return Err(error);
        }
        self.matcher(chat.write(tokenizer, tokens)?.finish()).map_err(GrammarError::Compile)
    }

    /// A matcher that has a first token.
    fn matcher(&self, grammar: TopLevelGrammar) -> Result<Matcher, String> {
        let mut matcher = Matcher::new(self.parsers.create_parser(grammar));
        let mask = matcher.compute_mask_or_eos().map_err(|error| first_line(&error.to_string()))?;
        if mask.num_set() == 0 { Err("nothing can satisfy it".to_owned()) } else { Ok(matcher) }
    }

    /// What is wrong with a schema: the smallest part, or the keyword in it, that cannot be compiled by itself.
    fn bad_schema(&self, schema: &Value) -> Option<GrammarError> {
        let BadPart { place, keyword, reason } = self.bad_part(schema, schema)?;
        let rule = format!("it cannot be enforced: {reason}");
        match keyword {
            Some((key, value)) => Some(schema::wrong(&place, Some(&key), &value, &rule)),
            None if place.is_empty() => Some(GrammarError::Compile(reason)),
            None => Some(GrammarError::Schema { path: schema::path(&place), found: "a schema".to_owned(), rule }),
        }
    }

    fn bad_part(&self, root: &Value, part: &Value) -> Option<BadPart> {
        let reason = self.reason_against(root, part)?;
        let mut inner = part.as_object().map(schema::children).unwrap_or_default();
        // What is referred to before what refers to it.
        inner.sort_by_key(|(place, _)| !place.first().is_some_and(|key| schema::DEFINITIONS.contains(&key.as_str())));
        let deeper = inner.into_iter().find_map(|(place, child)| {
            let bad = self.bad_part(root, child)?;
            Some(BadPart { place: [place, bad.place].concat(), ..bad })
        });
        deeper.or_else(|| self.bad_keyword(part)).or_else(|| {
            let keyword = blamed(part, &reason);
            Some(BadPart { place: Vec::new(), keyword, reason: in_plain_words(reason) })
        })
    }

    /// The keyword that would be refused in any schema.
    fn bad_keyword(&self, part: &Value) -> Option<BadPart> {
        let alone = |key: &str, value: &Value| {
            let schema = Value::Object([(key.to_owned(), value.clone())].into_iter().collect());
            self.reason_against(&Value::Null, &schema)
        };
        let bad = |place: Vec<String>, (key, value): (&str, &Value), reason| {
            let keyword = Some((key.to_owned(), value.clone()));
            BadPart { place, keyword, reason }
        };
        let part = part.as_object()?;
        part.iter().find_map(|(key, value)| match (key.as_str(), value) {
            ("patternProperties", Value::Object(members)) => members.iter().find_map(|(name, schema)| {
                let any = Value::Object([(name.clone(), Value::Bool(true))].into_iter().collect());
                Some(bad(vec![key.clone()], (name, schema), alone(key, &any)?))
            }),
            ("format", _) if number_format(part).is_some() => None,
            (key, value) if schema::stands_alone(key) => Some(bad(Vec::new(), (key, value), alone(key, value)?)),
            _ => None,
        })
    }

    /// Why a part of a schema cannot be compiled by itself.
    fn reason_against(&self, root: &Value, part: &Value) -> Option<String> {
        let mut with_definitions = part.clone();
        if let (Some(map), Some(root)) = (with_definitions.as_object_mut(), root.as_object()) {
            let definitions = root.iter().filter(|(key, _)| schema::DEFINITIONS.contains(&key.as_str()));
            map.extend(definitions.map(|(key, value)| (key.clone(), value.clone())));
        }
        let mut lark = Lark::default();
        let name = lark.json(&with_definitions);
        lark.rule("start", &name);
        self.matcher(lark.finish()).err()
    }
}

/// A part of a schema that cannot be compiled by itself.
struct BadPart {
    place: Vec<String>,
    /// The keyword at fault and its value, where it is one alone.
    keyword: Option<(String, Value)>,
    reason: String,
}

/// The schemas of tools, with their numbers.
fn schemas_of(tools: &[ToolRule]) -> impl Iterator<Item = (usize, &Value)> {
    tools.iter().enumerate().filter_map(|(index, tool)| match &tool.arguments {
        Arguments::Schema(schema) => Some((index, schema)),
        Arguments::Any => None,
    })
}

/// The keyword of a schema that the library's reason is about, with its value.
fn blamed(part: &Value, reason: &str) -> Option<(String, Value)> {
    let keywords: &[&str] = match reason {
        reason if reason.contains(ONE_OF) => &["oneOf"],
        reason if reason.contains("maxProperties") => &["minProperties", "maxProperties"],
        reason if reason.contains("minProperties") => &["minProperties"],
        _ => return None,
    };
    let found = |key: &&str| Some(((*key).to_owned(), part.get(*key)?.clone()));
    keywords.iter().find_map(found)
}

/// The library's reason, where it speaks of itself, as a rule about schemas.
fn in_plain_words(reason: String) -> String {
    if reason.contains(ONE_OF) {
        return "its branches cannot be told apart; use `anyOf`, or give each a required property of its own value"
            .to_owned();
    }
    if reason.contains("min/maxProperties") {
        return "properties can be counted only where all of `properties` are `required`".to_owned();
    }
    reason
}

/// What the library says, without the dump that may follow. Of an expression that cannot be parsed the reason comes last,
/// below a drawing of the place.
fn first_line(text: &str) -> String {
    let first = text.lines().next().unwrap_or_default();
    match text.lines().find_map(|line| line.trim_start().strip_prefix("error: ")) {
        Some(reason) => format!("{first} {reason}"),
        None => first.to_owned(),
    }
}

impl std::fmt::Debug for Grammars {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Grammars({} tokens)", self.tokenizer.vocab_size())
    }
}
