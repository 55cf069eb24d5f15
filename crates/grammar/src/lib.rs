//! Compiles what an answer must look like (a JSON schema, an expression, a grammar, calls of tools) into masks over tokens.
//!
//! [`Grammars`] belongs to one vocabulary. It checks a [`Rule`] against [`Limits`], writes it as one grammar over text and
//! control tokens, and has llguidance compile it, within a time limit, on a thread of its own. The result starts one
//! constraint per sequence; thinking is left free, the grammar begins with the channel that follows it.
//!
//! Nothing here knows requests of an API, engines or devices.

mod chat;
mod compiled;
mod constraint;
mod deadline;
mod ebnf;
mod error;
mod grammars;
mod keywords;
mod lark;
mod lark_text;
mod numbers;
mod parameters;
mod pattern;
mod schema;
mod vocabulary;

pub use chat::{Arguments, Calls, ChatRule, Parallel, ToolRule};
pub use compiled::CompiledGrammar;
pub use error::GrammarError;
pub use grammars::{Grammars, Limits, Rule};
pub use lark::TextRule;
