//! Stop strings in a stream of text.
//!
//! What: finds the stop string that is complete first, however the text is cut, and holds back only what may still
//! become one. What not: stop token ids (the engine's).

use crate::TokenizerError;

/// What a piece of text led to.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct StopStep {
    /// Text that is certain to come before any stop string.
    pub text: String,
    /// The stop string that matched, by position in the list; the stop string itself is never in `text`.
    pub matched: Option<usize>,
}

/// Looks for several stop strings at once, in one pass: O(length of the text × number of stop strings).
///
/// The match that *ends* first wins, and of those the one that begins first, so that a generation ends as soon as it
/// can and the result does not depend on how the text was cut into tokens.
#[derive(Debug, Clone)]
pub struct StopMatcher {
    stops: Vec<Stop>,
    held: String,
    ended: bool,
}

impl StopMatcher {
    /// A matcher at the beginning of a text; with no stop strings, text passes through.
    ///
    /// Errors: `EmptyStop` for a stop string without a character.
    pub fn new<S: AsRef<str>>(stops: &[S]) -> Result<Self, TokenizerError> {
        let stop = |(index, stop): (usize, &S)| match stop.as_ref().as_bytes() {
            [] => Err(TokenizerError::EmptyStop { index }),
            bytes => Ok(Stop::new(bytes)),
        };
        let stops = stops.iter().enumerate().map(stop).collect::<Result<_, _>>()?;
        Ok(Self { stops, held: String::new(), ended: false })
    }

    /// Takes the next piece of text. After a match everything is swallowed.
    pub fn push(&mut self, text: &str) -> StopStep {
        if self.ended {
            return StopStep::default();
        }
        for (index, byte) in text.bytes().enumerate() {
            if let Some(matched) = self.step(byte) {
                self.held.push_str(text.get(..=index).unwrap_or(text));
                self.held.truncate(self.held.len().saturating_sub(self.stops[matched].text.len()));
                self.ended = true;
                return StopStep { text: std::mem::take(&mut self.held), matched: Some(matched) };
            }
        }
        self.held.push_str(text);
        let num_pending = self.stops.iter().map(|stop| stop.num_matched).max().unwrap_or_default();
        let pending = self.held.split_off(self.held.len() - num_pending);
        StopStep { text: std::mem::replace(&mut self.held, pending), matched: None }
    }

    /// Ends the text and returns what was held back for a stop string that did not come. The matcher then begins a new
    /// text, unless a stop string had matched.
    pub fn finish(&mut self) -> String {
        for stop in &mut self.stops {
            stop.num_matched = 0;
        }
        std::mem::take(&mut self.held)
    }

    fn step(&mut self, byte: u8) -> Option<usize> {
        let mut matched: Option<usize> = None;
        for index in 0..self.stops.len() {
            let longer = matched.is_none_or(|best| self.stops[best].text.len() < self.stops[index].text.len());
            if self.stops[index].step(byte) && longer {
                matched = Some(index);
            }
        }
        matched
    }
}

/// One stop string and how much of it the text so far ends with (Knuth, Morris and Pratt 1977).
#[derive(Debug, Clone)]
struct Stop {
    text: Vec<u8>,
    /// `fallback[i]`: length of the longest proper prefix of `text[..=i]` that is also its suffix.
    fallback: Vec<usize>,
    num_matched: usize,
}

impl Stop {
    fn new(text: &[u8]) -> Self {
        let mut fallback = vec![0; text.len()];
        let mut length = 0;
        for index in 1..text.len() {
            while length > 0 && text[index] != text[length] {
                length = fallback[length - 1];
            }
            length += usize::from(text[index] == text[length]);
            fallback[index] = length;
        }
        Self { text: text.to_vec(), fallback, num_matched: 0 }
    }

    /// Takes a byte; whether the text now ends with the whole stop string.
    fn step(&mut self, byte: u8) -> bool {
        while self.num_matched > 0 && self.text[self.num_matched] != byte {
            self.num_matched = self.fallback[self.num_matched - 1];
        }
        self.num_matched += usize::from(self.text[self.num_matched] == byte);
        self.num_matched == self.text.len()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::tokenizer::tests::fixed_cases;

    /// Feeds `pieces` and returns all text and the match.
    fn run(stops: &[&str], pieces: &[&str]) -> (String, Option<usize>) {
        let mut matcher = StopMatcher::new(stops).unwrap();
        let mut text = String::new();
        for piece in pieces {
            let step = matcher.push(piece);
            text += &step.text;
            if step.matched.is_some() {
                assert_eq!(matcher.push("swallowed"), StopStep::default());
                return (text + &matcher.finish(), step.matched);
            }
        }
        (text + &matcher.finish(), None)
    }

    #[test]
    fn a_stop_over_several_pieces_is_found_and_left_out() {
        assert_eq!(run(&["END"], &["some E", "N", "D more"]), ("some ".to_owned(), Some(0)));
        assert_eq!(run(&["界。"], &["世", "界", "。x"]), ("世".to_owned(), Some(0)));
        assert_eq!(run(&[], &["a", "b"]), ("ab".to_owned(), None));
    }

    #[test]
    fn only_what_may_become_a_stop_is_held_back() {
        let mut matcher = StopMatcher::new(&["\n\nQ:", "aab"]).unwrap();
        assert_eq!(matcher.push("x\n").text, "x");
        assert_eq!(matcher.push("y").text, "\ny");
        assert_eq!(matcher.push("aa").text, "");
        assert_eq!(matcher.push("a").text, "a");
        assert_eq!(matcher.push("c").text, "aac");
    }

    #[test]
    fn text_held_back_is_delivered_at_the_end() {
        let mut matcher = StopMatcher::new(&["STOP"]).unwrap();
        assert_eq!(matcher.push("the STO").text, "the ");
        assert_eq!(matcher.finish(), "STO");
        assert_eq!(matcher.push("P").text, "P", "finish begins a new text");
    }

    #[test]
    fn the_first_to_end_wins_then_the_first_to_begin() {
        assert_eq!(run(&["abcd", "bc"], &["xabcd"]), ("xa".to_owned(), Some(1)));
        assert_eq!(run(&["c", "bc"], &["xabcd"]), ("xa".to_owned(), Some(1)));
    }

    #[test]
    fn an_empty_stop_is_refused_by_position() {
        assert!(matches!(StopMatcher::new(&["a", ""]), Err(TokenizerError::EmptyStop { index: 1 })));
    }

    fn naive(stops: &[String], text: &str) -> (String, Option<usize>) {
        for end in (0..=text.len()).filter(|end| text.is_char_boundary(*end)) {
            let ending = stops.iter().enumerate().filter(|(_, stop)| text[..end].ends_with(stop.as_str()));
            let first = ending.min_by_key(|(index, stop)| (end - stop.len(), *index));
            if let Some((index, stop)) = first {
                return (text[..end - stop.len()].to_owned(), Some(index));
            }
        }
        (text.to_owned(), None)
    }

    proptest! {
        #![proptest_config(fixed_cases(4000))]
        #[test]
        fn equals_a_search_in_the_whole_text(
            stops in proptest::collection::vec("[abé😀]{1,4}", 0..4),
            pieces in proptest::collection::vec("[abé😀c]{0,3}", 0..12),
        ) {
            let stop_refs: Vec<&str> = stops.iter().map(String::as_str).collect();
            let piece_refs: Vec<&str> = pieces.iter().map(String::as_str).collect();
            prop_assert_eq!(run(&stop_refs, &piece_refs), naive(&stops, &pieces.concat()));
        }
    }
}
