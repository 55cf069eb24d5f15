//! The head of an element the model wrote: tag and attributes.
//!
//! What: the text between `<|open|>` or `<|close|>` and `<|sep|>`. What not: what the element means (`channel`).

/// A tag with its attributes, such as `call tool="f" index="1"`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Header {
    pub(super) tag: String,
    attributes: Vec<(String, String)>,
}

impl Header {
    /// Reads a head; whatever is no attribute is passed over, since the model may err.
    pub(super) fn parse(text: &str) -> Self {
        let text = text.trim();
        let (tag, mut rest) = text.split_once(' ').unwrap_or((text, ""));
        let mut attributes = Vec::new();
        while let Some((key, tail)) = rest.split_once("=\"") {
            let Some((value, tail)) = tail.split_once('"') else { break };
            let key = key.rsplit(char::is_whitespace).next().unwrap_or(key);
            attributes.push((key.to_owned(), value.replace("&quot;", "\"").replace("&amp;", "&")));
            rest = tail;
        }
        Self { tag: tag.to_owned(), attributes }
    }

    /// The value of an attribute; `None` where it is absent.
    pub(super) fn attribute(&self, key: &str) -> Option<&str> {
        let found = self.attributes.iter().find(|(name, _)| name == key);
        found.map(|(_, value)| value.as_str())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tags_and_attributes_are_read_and_unescaped() {
        let header = Header::parse(r#"argument key="a &quot;b&quot; &amp;quot; c" type="string" empty="""#);
        assert_eq!(header.tag, "argument");
        assert_eq!(header.attribute("key"), Some(r#"a "b" &quot; c"#));
        assert_eq!(header.attribute("type"), Some("string"));
        assert_eq!(header.attribute("empty"), Some(""));
        assert_eq!(header.attribute("none"), None);
    }

    #[test]
    fn malformed_heads_give_what_they_hold() {
        assert_eq!(Header::parse("think").tag, "think");
        assert_eq!(Header::parse("").tag, "");
        assert_eq!(Header::parse("call tool=\"f").attribute("tool"), None);
        assert_eq!(Header::parse("call junk tool=\"f\" index").attribute("tool"), Some("f"));
    }
}
