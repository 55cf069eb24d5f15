//! Grammars that callers write in Lark themselves: what they may not hold.

/// What a grammar in Lark may not hold: tokens by name, which would be no text, and schemas, which are not checked here.
pub(crate) fn foreign_part(text: &str) -> Option<&'static str> {
    let mut rest = text.chars().peekable();
    while let Some(c) = rest.next() {
        match c {
            '"' => skip_to(&mut rest, '"'),
            '/' if rest.peek() == Some(&'/') => skip_line(&mut rest),
            '/' => skip_to(&mut rest, '/'),
            '#' => skip_line(&mut rest),
            '<' => return Some("a token (`<…>`) is no text; write the text itself"),
            '%' => {
                let word: String = std::iter::from_fn(|| rest.next_if(|c| c.is_ascii_alphabetic())).collect();
                match word.as_str() {
                    "json" => return Some("`%json` is not taken; send the schema as `response_format`"),
                    "lark" | "llguidance" => return Some("a grammar within a grammar is not taken"),
                    _ => {}
                }
            }
            _ => {}
        }
    }
    None
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
    }
}
