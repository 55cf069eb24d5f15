//! Where `pattern` means one thing to JSON Schema (ECMA-262) and another to the library (Rust's `regex`): such expressions
//! are refused, as an answer would be held to the other meaning.

/// What is wrong with an expression.
pub(crate) fn wrong_pattern(pattern: &str) -> Option<&'static str> {
    let mut rest = pattern.chars().peekable();
    while let Some(c) = rest.next() {
        match c {
            '\\' => {
                rest.next();
            }
            '[' => {
                let problem = wrong_class(&mut rest);
                if problem.is_some() {
                    return problem;
                }
            }
            _ => {}
        }
    }
    None
}

/// Reads a class to its end.
fn wrong_class(rest: &mut std::iter::Peekable<std::str::Chars<'_>>) -> Option<&'static str> {
    rest.next_if_eq(&'^');
    if rest.peek() == Some(&']') {
        return Some("a class of nothing (`[]`) and its opposite (`[^]`) cannot be enforced");
    }
    while let Some(c) = rest.next() {
        match c {
            ']' => return None,
            '\\' => {
                rest.next();
            }
            '[' => return Some("a `[` within a class must be written `\\[`"),
            '&' | '-' | '~' if rest.peek() == Some(&c) => {
                return Some("`&&`, `--` and `~~` within a class must be written with a `\\` before each character");
            }
            _ => {}
        }
    }
    // It does not end; the library says so.
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_means_the_same_everywhere_is_fine() {
        for pattern in [r"^[a-z\[\]]+$", r"\[[a]\]", "a&&b--c~~", "[a&b-]", "[^a]", r"[\]]", "[a-z", r"\d{3}-\d{4}"] {
            assert_eq!(wrong_pattern(pattern), None, "{pattern}");
        }
    }

    #[test]
    fn what_does_not_is_refused() {
        for pattern in ["^[[a]]$", "[[:alpha:]]", "[a&&b]", "[a-z--b]", "[a~~b]", "[]", "[^]", r"x[\\[]"] {
            assert!(wrong_pattern(pattern).is_some(), "{pattern}");
        }
    }
}
