//! EBNF as people know it from GBNF (`root ::= "a" digit+`) in the language of llguidance.
//!
//! Rules may refer to each other and to themselves, but not at their own beginning, and each must be able to end: what
//! never produces a text is refused here rather than found out while a model writes. Text without `::=` is taken for Lark.

use std::collections::{BTreeMap, BTreeSet};

use crate::GrammarError;
use crate::lark::literal;
use crate::lark_text::foreign_part;

/// Most rules of a grammar.
const MAX_RULES: usize = 2000;

/// The grammar in Lark.
///
/// # Errors
/// `Compile` with the line, for what cannot be read; for rules that are missing, empty, begin with themselves or never end.
pub(crate) fn to_lark(text: &str) -> Result<String, GrammarError> {
    if text.trim().is_empty() {
        return Err(compile("the grammar is empty"));
    }
    if !text.contains("::=") {
        return foreign_part(text).map_or(Ok(text.to_owned()), |reason| Err(compile(reason)));
    }
    let rules = Reader::new(text).rules()?;
    check(&rules)?;
    let lines = rules.iter().map(|(name, body)| format!("{}: {}\n", rule_name(name), body.lark()));
    Ok(lines.collect())
}

fn compile(reason: impl Into<String>) -> GrammarError {
    GrammarError::Compile(reason.into())
}

/// Lark's name of a rule: it begins at `start`, names are lower case, and an underscore or a capital means something.
fn rule_name(name: &str) -> String {
    if name == "root" {
        return "start".to_owned();
    }
    let hex = |c: char| {
        if c.is_ascii_lowercase() || c.is_ascii_digit() { c.to_string() } else { format!("_{:x}_", c as u32) }
    };
    format!("rule_{}", name.chars().map(hex).collect::<String>())
}

#[derive(Debug, Clone)]
enum Expression {
    Text(String),
    Class(String),
    Rule(String),
    Sequence(Vec<Expression>),
    Choice(Vec<Expression>),
    Repeat(Box<Expression>, usize, Option<usize>),
}

impl Expression {
    fn lark(&self) -> String {
        match self {
            Expression::Text(text) => literal(text),
            Expression::Class(class) => format!("/{}/", class.replace('/', "\\/")),
            Expression::Rule(name) => rule_name(name),
            Expression::Sequence(parts) if parts.is_empty() => "\"\"".to_owned(),
            Expression::Sequence(parts) => parts.iter().map(Expression::lark).collect::<Vec<_>>().join(" "),
            Expression::Choice(parts) => {
                format!("({})", parts.iter().map(Expression::lark).collect::<Vec<_>>().join(" | "))
            }
            Expression::Repeat(part, least, most) => {
                let most = most.map_or_else(String::new, |most| most.to_string());
                format!("({}){{{least},{most}}}", part.lark())
            }
        }
    }

    /// Whether it can be no text, given the rules known to be able to.
    fn nullable(&self, known: &BTreeSet<&str>) -> bool {
        match self {
            Expression::Text(text) => text.is_empty(),
            Expression::Class(_) => false,
            Expression::Rule(name) => known.contains(name.as_str()),
            Expression::Sequence(parts) => parts.iter().all(|part| part.nullable(known)),
            Expression::Choice(parts) => parts.iter().any(|part| part.nullable(known)),
            Expression::Repeat(part, least, _) => *least == 0 || part.nullable(known),
        }
    }

    /// Whether it can be some text, given the rules known to be able to.
    fn ends(&self, known: &BTreeSet<&str>) -> bool {
        match self {
            Expression::Text(_) | Expression::Class(_) => true,
            Expression::Rule(name) => known.contains(name.as_str()),
            Expression::Sequence(parts) => parts.iter().all(|part| part.ends(known)),
            Expression::Choice(parts) => parts.iter().any(|part| part.ends(known)),
            Expression::Repeat(part, least, _) => *least == 0 || part.ends(known),
        }
    }

    /// Rules that may stand at its beginning.
    fn first<'a>(&'a self, nullable: &BTreeSet<&str>, out: &mut BTreeSet<&'a str>) {
        match self {
            Expression::Text(_) | Expression::Class(_) => {}
            Expression::Rule(name) => {
                out.insert(name);
            }
            Expression::Choice(parts) => parts.iter().for_each(|part| part.first(nullable, out)),
            Expression::Repeat(part, ..) => part.first(nullable, out),
            Expression::Sequence(parts) => {
                for part in parts {
                    part.first(nullable, out);
                    if !part.nullable(nullable) {
                        break;
                    }
                }
            }
        }
    }

    fn all<'a>(&'a self, out: &mut BTreeSet<&'a str>) {
        match self {
            Expression::Text(_) | Expression::Class(_) => {}
            Expression::Rule(name) => {
                out.insert(name);
            }
            Expression::Sequence(parts) | Expression::Choice(parts) => parts.iter().for_each(|part| part.all(out)),
            Expression::Repeat(part, ..) => part.all(out),
        }
    }
}

type Rules = BTreeMap<String, Expression>;

fn check(rules: &Rules) -> Result<(), GrammarError> {
    if !rules.contains_key("root") {
        return Err(compile("there is no rule `root`, where a grammar begins"));
    }
    let mut used = BTreeSet::new();
    rules.values().for_each(|body| body.all(&mut used));
    if let Some(name) = used.iter().find(|name| !rules.contains_key(**name)) {
        return Err(compile(format!("there is no rule `{name}`")));
    }
    let ending = grow(rules, Expression::ends);
    if let Some(name) = rules.keys().find(|name| !ending.contains(name.as_str())) {
        return Err(compile(format!("rule `{name}` never ends: every way through it comes back to it")));
    }
    let nullable = grow(rules, Expression::nullable);
    let first = |name: &str| {
        let mut out = BTreeSet::new();
        if let Some(body) = rules.get(name) {
            body.first(&nullable, &mut out);
        }
        out
    };
    for name in rules.keys() {
        let (mut seen, mut open) = (BTreeSet::new(), first(name));
        while let Some(next) = open.pop_first() {
            if next == name {
                return Err(compile(format!("rule `{name}` begins with itself; write the repetition with `*` or `+`")));
            }
            if seen.insert(next) {
                open.extend(first(next));
            }
        }
    }
    Ok(())
}

/// The rules of which something holds, where it may rest on other rules of which it holds.
fn grow(rules: &Rules, holds: fn(&Expression, &BTreeSet<&str>) -> bool) -> BTreeSet<&str> {
    let mut known = BTreeSet::new();
    loop {
        let before = known.len();
        let more: Vec<&str> =
            rules.iter().filter(|(_, body)| holds(body, &known)).map(|(name, _)| name.as_str()).collect();
        known.extend(more);
        if known.len() == before {
            return known;
        }
    }
}

/// Longest nesting of groups.
const MAX_DEPTH: usize = 64;

struct Reader<'a> {
    text: &'a str,
    at: usize,
    depth: usize,
}

impl<'a> Reader<'a> {
    fn new(text: &'a str) -> Self {
        Reader { text, at: 0, depth: 0 }
    }

    fn rules(mut self) -> Result<Rules, GrammarError> {
        let mut rules = Rules::new();
        self.skip();
        while self.at < self.text.len() {
            let name = self.name().ok_or_else(|| self.expected("the name of a rule"))?;
            self.skip();
            if !self.take("::=") {
                return Err(self.expected("`::=`"));
            }
            let body = self.choice()?;
            if matches!(&body, Expression::Sequence(parts) if parts.is_empty()) {
                return Err(compile(format!("rule `{name}` is empty")));
            }
            if rules.len() == MAX_RULES {
                let what = "the number of rules is".to_owned();
                return Err(GrammarError::Limit { what, found: MAX_RULES + 1, limit: MAX_RULES });
            }
            if rules.insert(name.clone(), body).is_some() {
                return Err(compile(format!("rule `{name}` is written twice")));
            }
            self.skip();
        }
        Ok(rules)
    }

    fn choice(&mut self) -> Result<Expression, GrammarError> {
        self.depth += 1;
        if self.depth > MAX_DEPTH {
            let what = "groups are nested deeper than allowed:".to_owned();
            return Err(GrammarError::Limit { what, found: self.depth, limit: MAX_DEPTH });
        }
        let mut parts = vec![self.sequence()?];
        while self.take("|") {
            parts.push(self.sequence()?);
        }
        self.depth -= 1;
        Ok(if parts.len() == 1 { parts.remove(0) } else { Expression::Choice(parts) })
    }

    fn sequence(&mut self) -> Result<Expression, GrammarError> {
        let mut parts = Vec::new();
        loop {
            self.skip();
            let Some(atom) = self.atom()? else { break };
            parts.push(self.repeated(atom)?);
        }
        Ok(if parts.len() == 1 { parts.remove(0) } else { Expression::Sequence(parts) })
    }

    fn atom(&mut self) -> Result<Option<Expression>, GrammarError> {
        let Some(next) = self.text[self.at..].chars().next() else { return Ok(None) };
        match next {
            '"' => self.quoted().map(Some),
            '[' => self.class().map(Some),
            '.' => {
                self.at += 1;
                Ok(Some(Expression::Class("(?s:.)".to_owned())))
            }
            '(' => {
                self.at += 1;
                let inner = self.choice()?;
                self.skip();
                if self.take(")") { Ok(Some(inner)) } else { Err(self.expected("`)`")) }
            }
            _ => {
                // A name before `::=` begins the next rule.
                let before = self.at;
                let Some(name) = self.name() else { return Ok(None) };
                self.skip();
                if self.text[self.at..].starts_with("::=") {
                    self.at = before;
                    return Ok(None);
                }
                Ok(Some(Expression::Rule(name)))
            }
        }
    }

    fn repeated(&mut self, atom: Expression) -> Result<Expression, GrammarError> {
        let repeat = |least, most| Expression::Repeat(Box::new(atom.clone()), least, most);
        Ok(match self.text[self.at..].chars().next() {
            Some('*') => self.after(1, repeat(0, None)),
            Some('+') => self.after(1, repeat(1, None)),
            Some('?') => self.after(1, repeat(0, Some(1))),
            Some('{') => {
                let rest = &self.text[self.at + 1..];
                let end = rest.find('}').ok_or_else(|| self.expected("`}`"))?;
                let (least, most) = match rest[..end].split_once(',') {
                    Some((least, "")) => (least.trim().parse().ok(), Some(None)),
                    Some((least, most)) => (least.trim().parse().ok(), most.trim().parse().ok().map(Some)),
                    None => (rest[..end].trim().parse().ok(), rest[..end].trim().parse().ok().map(Some)),
                };
                match (least, most) {
                    (Some(least), Some(most)) if most.is_none_or(|most| most >= least && most > 0) => {
                        self.after(end + 2, repeat(least, most))
                    }
                    _ => return Err(self.expected("a repetition such as `{2,5}`")),
                }
            }
            _ => atom,
        })
    }

    fn after(&mut self, len: usize, expression: Expression) -> Expression {
        self.at += len;
        expression
    }

    fn quoted(&mut self) -> Result<Expression, GrammarError> {
        let mut text = String::new();
        let mut chars = self.text[self.at + 1..].char_indices();
        while let Some((i, c)) = chars.next() {
            match c {
                '"' => {
                    self.at += i + 2;
                    return Ok(Expression::Text(text));
                }
                '\\' => match chars.next().map(|(_, c)| c) {
                    Some('n') => text.push('\n'),
                    Some('r') => text.push('\r'),
                    Some('t') => text.push('\t'),
                    Some(kind @ ('x' | 'u' | 'U')) => {
                        let len = match kind {
                            'x' => 2,
                            'u' => 4,
                            _ => 8,
                        };
                        let digits: String = chars.by_ref().take(len).map(|(_, c)| c).collect();
                        let code = u32::from_str_radix(&digits, 16).ok().and_then(char::from_u32);
                        text.push(code.ok_or_else(|| self.expected("a code point in hexadecimal digits"))?);
                    }
                    Some(c) => text.push(c),
                    None => break,
                },
                c => text.push(c),
            }
        }
        Err(self.expected("the end of a quoted text"))
    }

    fn class(&mut self) -> Result<Expression, GrammarError> {
        let rest = &self.text[self.at..];
        let mut escaped = false;
        for (i, c) in rest.char_indices().skip(1) {
            match c {
                _ if escaped => escaped = false,
                '\\' => escaped = true,
                ']' if i > 1 => {
                    self.at += i + 1;
                    return Ok(Expression::Class(rest[..=i].replace('\n', "\\n")));
                }
                _ => {}
            }
        }
        Err(self.expected("the end of a class of characters"))
    }

    fn name(&mut self) -> Option<String> {
        let rest = &self.text[self.at..];
        let end = rest.find(|c: char| !(c.is_ascii_alphanumeric() || c == '_' || c == '-')).unwrap_or(rest.len());
        self.at += end;
        (end > 0).then(|| rest[..end].to_owned())
    }

    fn take(&mut self, text: &str) -> bool {
        let here = self.text[self.at..].starts_with(text);
        self.at += if here { text.len() } else { 0 };
        here
    }

    /// White space and comments.
    fn skip(&mut self) {
        loop {
            let rest = &self.text[self.at..];
            let trimmed = rest.trim_start();
            self.at += rest.len() - trimmed.len();
            if !trimmed.starts_with('#') {
                return;
            }
            self.at += trimmed.find('\n').unwrap_or(trimmed.len());
        }
    }

    fn expected(&self, what: &str) -> GrammarError {
        let line = self.text[..self.at].lines().count().max(1);
        let here: String = self.text[self.at..].chars().take(20).collect();
        compile(format!("line {line}: {what} was expected at {here:?}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_grammar_becomes_lark() {
        let text = "# sums\nroot ::= term (\"+\" term)* # more\nterm ::= [0-9]{1,3} | \"(\" root \")\" |\n  a-B_1?\na-B_1 ::= \"\\x41\\n\\\"/\" .";
        let lark = to_lark(text).unwrap();
        let expected = "rule_a_2d__42__5f_1: \"A\\u000a\\\"/\" /(?s:.)/\n\
                        start: rule_term (\"+\" rule_term){0,}\n\
                        rule_term: ((/[0-9]/){1,3} | \"(\" start \")\" | (rule_a_2d__42__5f_1){0,1})\n";
        assert_eq!(lark, expected);
        assert_eq!(to_lark("start: \"a\"").unwrap(), "start: \"a\"");
    }

    #[test]
    fn what_cannot_work_is_refused() {
        let cases = [
            ("", "empty"),
            ("root ::= ", "rule `root` is empty"),
            ("root ::= \"a\" b\nb ::= ", "rule `b` is empty"),
            ("a ::= \"x\"", "no rule `root`"),
            ("root ::= b", "no rule `b`"),
            ("root ::= root \"a\" | \"a\"", "begins with itself"),
            ("root ::= (b | \"x\")? c\nb ::= \"b\"\nc ::= b* root | \"c\"", "begins with itself"),
            ("root ::= \"a\" root", "never ends"),
            ("root ::= \"a", "quoted"),
            ("root ::= [a", "class"),
            ("root ::= (\"a\"", "`)`"),
            ("root ::= \"a\"{3,2}", "repetition"),
            ("root ::= \"a\"\nroot ::= \"b\"", "twice"),
            ("::= \"a\"", "name"),
        ];
        for (text, expected) in cases {
            let error = to_lark(text).unwrap_err().to_string();
            assert!(error.contains(expected), "{text:?}: {error}");
        }
        let deep = format!("root ::= {}\"a\"{}", "(".repeat(5000), ")".repeat(5000));
        assert!(matches!(to_lark(&deep), Err(GrammarError::Limit { .. })));
    }
}
