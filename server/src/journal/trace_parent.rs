//! `traceparent` of W3C's Trace Context: which span of which trace a request belongs to.

/// Its version, trace, parent, flags: `00-32 hex-16 hex-2 hex`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct TraceParent {
    /// 32 hexadecimal digits.
    pub trace_id: String,
    /// 16 hexadecimal digits.
    pub span_id: String,
    /// Whether the caller records its trace.
    pub sampled: Sampled,
}

/// Whether a trace is recorded.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Sampled {
    Yes,
    No,
}

impl TraceParent {
    /// Reads the header; `None` for anything the specification calls invalid.
    pub(crate) fn parse(header: &str) -> Option<Self> {
        let mut parts = header.trim().split('-');
        let (version, trace_id, span_id) = (parts.next()?, parts.next()?, parts.next()?);
        let flags = hex(parts.next()?, 2)?;
        let version = hex(version, 2)?;
        // Later versions may add parts.
        if version == "ff" || (version == "00" && parts.next().is_some()) {
            return None;
        }
        let set = |id: &&str| id.bytes().any(|byte| byte != b'0');
        let (trace_id, span_id) = (hex(trace_id, 32).filter(set)?, hex(span_id, 16).filter(set)?);
        let sampled = if u8::from_str_radix(flags, 16).ok()? & 1 == 1 { Sampled::Yes } else { Sampled::No };
        Some(TraceParent { trace_id: trace_id.to_owned(), span_id: span_id.to_owned(), sampled })
    }
}

/// `text`, if it is so many lower-case hexadecimal digits.
fn hex(text: &str, num_digits: usize) -> Option<&str> {
    let digit = |byte: u8| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte);
    (text.len() == num_digits && text.bytes().all(digit)).then_some(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_the_specification_allows() {
        let (trace, span) = ("4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7");
        let parsed = TraceParent::parse(&format!("00-{trace}-{span}-01")).unwrap();
        assert_eq!((parsed.trace_id.as_str(), parsed.span_id.as_str(), parsed.sampled), (trace, span, Sampled::Yes));
        assert_eq!(TraceParent::parse(&format!("00-{trace}-{span}-00")).unwrap().sampled, Sampled::No);
        assert!(TraceParent::parse(&format!("01-{trace}-{span}-01-more")).is_some());
        for bad in [
            String::new(),
            format!("00-{trace}-{span}"),
            format!("00-{trace}-{span}-01-more"),
            format!("ff-{trace}-{span}-01"),
            format!("00-{}-{span}-01", "0".repeat(32)),
            format!("00-{trace}-{}-01", "0".repeat(16)),
            format!("00-{}-{span}-01", trace.to_uppercase()),
            format!("00-{trace}x-{span}-01"),
            "é".repeat(40),
        ] {
            assert_eq!(TraceParent::parse(&bad), None, "{bad}");
        }
    }
}
