//! What is wrong with a grammar somebody asked for.

use std::time::Duration;

/// Why a rule cannot be enforced. Paths are relative to the schema (`properties.a.pattern`), empty for its root.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum GrammarError {
    /// A keyword that would change what is valid, and that cannot be enforced.
    #[error("it uses `{keyword}` at `{path}`, which cannot be enforced; {rule}")]
    Keyword {
        /// Where the keyword stands, itself included.
        path: String,
        /// The keyword.
        keyword: String,
        /// What to do instead.
        rule: &'static str,
    },
    /// A schema that is not one.
    #[error("`{path}` in it is {found}; {rule}")]
    Schema {
        /// The offending place.
        path: String,
        /// What stands there.
        found: String,
        /// What may stand there.
        rule: String,
    },
    /// More than is compiled.
    #[error("{what} {found}; the limit is {limit}")]
    Limit {
        /// What is too large, as the beginning of a sentence with the place in it.
        what: String,
        /// Its size.
        found: usize,
        /// The largest one accepted.
        limit: usize,
    },
    /// The grammar cannot be compiled.
    #[error("it cannot be compiled: {0}")]
    Compile(String),
    /// Others are being compiled, and have been for this long.
    #[error("the compiler of grammars has been busy with others for {0:?}")]
    Busy(Duration),
    /// It takes too long.
    #[error("it takes longer than {0:?} to compile")]
    TimedOut(Duration),
    /// The arguments of one tool.
    #[error("{error}")]
    Tool {
        /// The tool's number, from 0.
        index: usize,
        /// What is wrong with its schema.
        error: Box<GrammarError>,
    },
    /// The vocabulary cannot express it.
    #[error("{0}")]
    Vocabulary(String),
}

impl GrammarError {
    /// The place within the schema, where there is one.
    pub fn path(&self) -> Option<&str> {
        match self {
            GrammarError::Keyword { path, .. } | GrammarError::Schema { path, .. } => Some(path),
            GrammarError::Tool { error, .. } => error.path(),
            _ => None,
        }
    }

    /// Which tool it is about.
    pub fn tool(&self) -> Option<usize> {
        match self {
            GrammarError::Tool { index, .. } => Some(*index),
            _ => None,
        }
    }

    pub(crate) fn of_tool(self, index: usize) -> Self {
        GrammarError::Tool { index, error: Box::new(self) }
    }
}
