//! Cuts text into the pre-tokens inside which byte pairs may merge.
//!
//! What: K3's regular expression, exactly, in linear time. Seven of its eight alternatives go to the `regex` crate, an
//! automaton without backtracking. The other, `\s+(?!\S)`, needs look-ahead and is done by hand: the last two
//! alternatives only ever see a whitespace run without line breaks, and of such a run that a visible character follows
//! the last character is given back. Before that, the vendor's two cuts for extreme inputs apply: pieces of 400,000
//! characters, and within a piece runs of more than 25,000 whitespace or non-whitespace characters.
//!
//! What not: byte pair encoding, special tokens.

use regex::Regex;

use crate::TokenizerError;

/// Longest piece, in characters.
const MAX_PIECE_CHARS: usize = 400_000;
/// Longest run of only whitespace or only non-whitespace within a piece, in characters.
const MAX_RUN_CHARS: usize = 25_000;

/// Alternatives 1 to 6 and 8 of the eight.
const PATTERN: &str = concat!(
    r"[\p{Han}]+",
    r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]*[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]+",
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)?",
    r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]+[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]*",
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)?",
    r"|\p{N}{1,3}",
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*",
    r"|\s*[\r\n]+",
    r"|\s+",
);

/// K3's pre-tokenizer.
///
/// Source: `spec/kimi-k3.md` 5.1.
#[derive(Debug, Clone)]
pub(crate) struct PreTokenizer {
    regex: Regex,
}

impl PreTokenizer {
    /// Compiles the expression. Errors: `Vocabulary`, if the regex crate refuses it (it does not).
    pub(crate) fn new() -> Result<Self, TokenizerError> {
        let regex = Regex::new(PATTERN)
            .map_err(|error| TokenizerError::Vocabulary { reason: format!("pre-tokenizer: {error}") })?;
        Ok(Self { regex })
    }

    /// The pre-tokens of `text` in order; together they are `text`.
    pub(crate) fn split<'a>(&'a self, text: &'a str) -> impl Iterator<Item = &'a str> {
        char_pieces(text).flat_map(runs).flat_map(|piece| PreTokens { regex: &self.regex, piece, at: 0 })
    }
}

struct PreTokens<'a> {
    regex: &'a Regex,
    piece: &'a str,
    at: usize,
}

impl<'a> Iterator for PreTokens<'a> {
    type Item = &'a str;

    fn next(&mut self) -> Option<&'a str> {
        let found = self.regex.find_at(self.piece, self.at)?;
        let end = end_of(found.as_str(), found.start(), self.piece.len());
        self.at = end;
        Some(&self.piece[found.start()..end])
    }
}

/// Where a match that begins at `start` really ends, `\s+(?!\S)` included.
fn end_of(found: &str, start: usize, piece_len: usize) -> usize {
    let end = start + found.len();
    let Some(last) = found.chars().next_back() else { return end };
    let is_blank_run = last.is_whitespace() && !matches!(last, '\r' | '\n') && found.chars().all(char::is_whitespace);
    // greedy, so a visible character follows unless the piece ends here
    if is_blank_run && end < piece_len && found.len() > last.len_utf8() { end - last.len_utf8() } else { end }
}

/// Pieces of at most `MAX_PIECE_CHARS` characters.
fn char_pieces(text: &str) -> impl Iterator<Item = &str> {
    let mut rest = text;
    std::iter::from_fn(move || {
        if rest.is_empty() {
            return None;
        }
        let cut = match rest.len() <= MAX_PIECE_CHARS {
            true => rest.len(),
            false => rest.char_indices().nth(MAX_PIECE_CHARS).map_or(rest.len(), |(at, _)| at),
        };
        let (piece, tail) = rest.split_at(cut);
        rest = tail;
        Some(piece)
    })
}

/// Cuts within a piece wherever a run has reached `MAX_RUN_CHARS` and goes on.
fn runs(piece: &str) -> impl Iterator<Item = &str> {
    let mut rest = piece;
    std::iter::from_fn(move || {
        if rest.is_empty() {
            return None;
        }
        let (head, tail) = rest.split_at(run_cut(rest));
        rest = tail;
        Some(head)
    })
}

fn run_cut(text: &str) -> usize {
    if text.len() <= MAX_RUN_CHARS {
        return text.len();
    }
    let mut run = 0;
    let mut run_is_space = false;
    for (at, char) in text.char_indices() {
        let space = is_python_space(char);
        if run == 0 || space != run_is_space {
            run = 0;
            run_is_space = space;
        } else if run == MAX_RUN_CHARS {
            return at;
        }
        run += 1;
    }
    text.len()
}

/// The vendor's cut asks Python's `str.isspace`, which counts four separators that Unicode's White_Space does not.
fn is_python_space(char: char) -> bool {
    char.is_whitespace() || ('\u{1c}'..='\u{1f}').contains(&char)
}

#[cfg(test)]
pub(crate) mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::tokenizer::tests::fixed_cases;

    /// The expression as published, for engines with look-ahead.
    pub(crate) fn published() -> String {
        let head = PATTERN.strip_suffix(r"|\s+").unwrap();
        format!(r"{head}|\s+(?!\S)|\s+")
    }

    fn oracle(published: &fancy_regex::Regex, text: &str) -> Vec<String> {
        published.find_iter(text).map(|found| found.unwrap().as_str().to_owned()).collect()
    }

    fn check(text: &str, expected: &[&str]) {
        let tokenizer = PreTokenizer::new().unwrap();
        assert_eq!(tokenizer.split(text).collect::<Vec<_>>(), expected);
        assert_eq!(oracle(&fancy_regex::Regex::new(&published()).unwrap(), text), expected);
    }

    #[test]
    fn known_splits() {
        check("Hello world", &["Hello", " world"]);
        check("a  b", &["a", " ", " b"]);
        check("a \n  b", &["a", " \n", " ", " b"]);
        check("a  ", &["a", "  "]);
        check("x\t\ty", &["x", "\t", "\ty"]);
        check("1234567", &["123", "456", "7"]);
        check("don't DON'T", &["don't", " DON'T"]);
        check("北京is首都", &["北京", "is", "首都"]);
        check("HelloWorld", &["Hello", "World"]);
        check("=\"a\"\n\n", &["=\"", "a", "\"\n\n"]);
        check("", &[]);
    }

    /// Characters on which the classes of the expression differ.
    fn pieces() -> impl Strategy<Value = String> {
        let chars = "aZ\u{1c5}\u{2b0}ªº\u{301}北〇\u{16ff0}\u{3005}カ7٣Ⅷ '\"<|!\n\r\t\u{a0}\u{3000}\u{85}\u{1c}\u{2028}😀\u{200d}ſ";
        let chars: Vec<char> = chars.chars().collect();
        let words = proptest::sample::select(vec!["'s", "'LL", "  ", "\r\n", " \n ", "don't", "   x"]);
        let char = proptest::sample::select(chars).prop_map(String::from);
        proptest::collection::vec(prop_oneof![4 => char, 1 => words.prop_map(String::from)], 0..40)
            .prop_map(|parts| parts.concat())
    }

    #[test]
    fn equals_the_published_expression() {
        let tokenizer = PreTokenizer::new().unwrap();
        let published = fancy_regex::Regex::new(&published()).unwrap();
        proptest!(fixed_cases(1500), |(text in pieces(), any in "\\PC{0,20}")| {
            for text in [text, any] {
                let split: Vec<&str> = tokenizer.split(&text).collect();
                prop_assert_eq!(&split, &oracle(&published, &text));
                prop_assert_eq!(split.concat(), text);
            }
        });
    }

    #[test]
    fn pieces_are_cut_at_400_000_characters() {
        let text = "é ".repeat(200_001);
        let lengths: Vec<usize> = char_pieces(&text).map(|piece| piece.chars().count()).collect();
        assert_eq!(lengths, [400_000, 2]);
    }

    #[test]
    fn runs_are_cut_at_25_000_characters() {
        let lengths = |text: &str| runs(text).map(|piece| piece.chars().count()).collect::<Vec<_>>();
        assert_eq!(lengths(&"é".repeat(25_000)), [25_000]);
        assert_eq!(lengths(&"é".repeat(60_000)), [25_000, 25_000, 10_000]);
        assert_eq!(lengths(&" ".repeat(25_001)), [25_000, 1]);
        assert_eq!(lengths(&"a ".repeat(20_000)), [40_000]);
        // the separators count as whitespace here, so neither run is long enough
        assert_eq!(lengths(&format!("{}\u{1c}{}", "a".repeat(24_000), "a".repeat(24_000))), [48_001]);
        // a cut starts a new run of the same kind
        assert_eq!(lengths(&format!("{} {}", "a".repeat(25_001), "b".repeat(25_000))), [25_000, 25_002]);
    }
}
