//! Grammars that callers write in Lark themselves: what they may not hold.

/// What a grammar in Lark may not hold: tokens by name, which would be no text; schemas, which are not checked here; and what
/// must match several expressions at once, whose states multiply until memory ends (`~` twice makes an `&`).
pub(crate) fn foreign_part(text: &str) -> Option<&'static str> {
    let mut rest = text.chars().peekable();
    let mut complements = 0;
    while let Some(c) = rest.next() {
        match c {
            '"' => skip_to(&mut rest, '"'),
            '/' if rest.peek() == Some(&'/') => skip_line(&mut rest),
            '/' => skip_to(&mut rest, '/'),
            '#' => skip_line(&mut rest),
            '<' => return Some("a token (`<…>`) is no text; write the text itself"),
            '&' => return Some("`&` is not taken: the states of both expressions multiply"),
            '~' if !is_count(rest.clone()) => {
                complements += 1;
                if complements > 1 {
                    return Some("`~` before an expression is taken once in a grammar: states multiply");
                }
            }
            '%' => {
                let word: String = std::iter::from_fn(|| rest.next_if(|c| c.is_ascii_alphabetic())).collect();
                if word.starts_with("json") {
                    return Some("`%json` is not taken; send the schema as `response_format`");
                }
                if word.starts_with("lark") || word.starts_with("llguidance") {
                    return Some("a grammar within a grammar is not taken");
                }
            }
            _ => {}
        }
    }
    None
}

/// Whether what follows a `~` is a number of repetitions; comments and spaces may come first.
fn is_count(mut rest: std::iter::Peekable<std::str::Chars<'_>>) -> bool {
    loop {
        match rest.next() {
            Some(' ' | '\t') => {}
            Some('#') => skip_line(&mut rest),
            Some('/') if rest.peek() == Some(&'/') => skip_line(&mut rest),
            next => return next.is_some_and(|c| c.is_ascii_digit() || c == '+' || c == '-'),
        }
    }
}

/// To the end of a text or an expression; a backslash protects what follows.
fn skip_to(rest: &mut std::iter::Peekable<std::str::Chars<'_>>, end: char) {
    while let Some(c) = rest.next() {
        match c {
            '\\' => drop(rest.next()),
            c if c == end => return,
            _ => {}
        }
    }
}

fn skip_line(rest: &mut std::iter::Peekable<std::str::Chars<'_>>) {
    while rest.next_if(|c| *c != '\n').is_some() {}
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn grammars_in_lark_hold_text_alone() {
        for fine in
            ["start: \"<a>\" /[<%]json/ // <b> %json\n", "%import common.INT\nstart: INT", "start: \"\\\"<\" # <x>"]
        {
            assert_eq!(foreign_part(fine), None, "{fine}");
        }
        for wrong in ["start: \"x\" <|end_of_msg|>", "start: <[5]>", "start: %json {}", "start: %lark { start: \"a\" }"]
        {
            assert!(foreign_part(wrong).is_some(), "{wrong}");
        }
        for wrong in ["start: %json{}", "start: %jsonA", "start: %llguidance{}", "start: %larkstart: \"a\""] {
            assert!(foreign_part(wrong).is_some(), "{wrong}");
        }
    }

    #[test]
    fn expressions_are_not_multiplied() {
        for fine in ["start: \"a\" ~ 3..5", "start: \"a\"~3 \"b\" ~ // c\n", "start: ~/a&~/ \"&~\" \"b\"~2 // ~ &"] {
            assert_eq!(foreign_part(fine), None, "{fine}");
        }
        for wrong in ["start: A\nA: /a/ & /b/", "A: ~(~/a/ | ~/b/)", "A: ~ # 3\n/a/ | ~/b/", "A: ~~/a/"] {
            assert!(foreign_part(wrong).is_some(), "{wrong}");
        }
    }
}
