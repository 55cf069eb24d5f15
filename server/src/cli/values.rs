//! What the value of a flag must be. Every refusal is a rule; clap puts the flag and the value before it.

use std::net::{IpAddr, ToSocketAddrs};
use std::ops::RangeInclusive;

use perilune_protocol::EFFORT_WORDS;

/// Most threads: beyond any machine this serves on, and far below what a system refuses.
const MAX_THREADS: usize = 1024;
/// Most prompt tokens of a step: the buffers of a step grow with them.
const MAX_CHUNK: usize = 65_536;
/// Longest time, one year: sums of times and clocks stay far from overflow.
const MAX_SECONDS: u64 = 31_536_000;

/// A count of at least one.
pub(super) fn positive(text: &str) -> Result<usize, String> {
    match text.parse::<usize>() {
        Ok(value) if value > 0 => Ok(value),
        _ => Err("it must be an integer from 1".to_owned()),
    }
}

/// A count that may be 0.
pub(super) fn count<T: std::str::FromStr>(text: &str) -> Result<T, String> {
    text.parse().map_err(|_| "it must be an integer from 0".to_owned())
}

/// An amount of something that can be divided.
pub(super) fn amount(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(value) if value.is_finite() && value >= 0.0 => Ok(value),
        _ => Err("it must be a number from 0".to_owned()),
    }
}

/// A number of drafts that can be verified with the token before them.
pub(super) fn num_drafts(text: &str) -> Result<usize, String> {
    let most = perilune_model::MAX_DECODE_ROWS - 1;
    match text.parse::<usize>() {
        Ok(value) if (1..=most).contains(&value) => Ok(value),
        _ => Err(format!("it must be an integer from 1 to {most}; --speculative off is for none")),
    }
}

/// A number of threads.
pub(super) fn thread_count(text: &str) -> Result<usize, String> {
    integer(text, 1..=MAX_THREADS)
}

/// A number of prompt tokens per step.
pub(super) fn chunk_size(text: &str) -> Result<usize, String> {
    integer(text, 1..=MAX_CHUNK)
}

/// A time in seconds.
pub(super) fn seconds(text: &str) -> Result<u64, String> {
    integer(text, 0..=MAX_SECONDS)
}

/// A share of something.
pub(super) fn fraction(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(value) if value > 0.0 && value <= 1.0 => Ok(value),
        _ => Err("it must be a number above 0 and at most 1".to_owned()),
    }
}

/// A rate of requests; `inf` for no limit.
pub(super) fn rate(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(value) if value > 0.0 => Ok(value),
        _ => Err("it must be a number above 0, or `inf`".to_owned()),
    }
}

/// A sampling temperature.
pub(super) fn temperature(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(value) if (0.0..=2.0).contains(&value) => Ok(value),
        _ => Err("it must be a number from 0 to 2".to_owned()),
    }
}

/// A word for the effort of thinking.
pub(super) fn effort(text: &str) -> Result<String, String> {
    let words = EFFORT_WORDS.map(|(word, _)| word);
    if words.contains(&text) {
        return Ok(text.to_owned());
    }
    Err(format!("it must be one of {}", words.join(", ")))
}

/// A model's name in requests.
pub(super) fn model_name(text: &str) -> Result<String, String> {
    if text.trim().is_empty() {
        return Err("a name needs at least one character".to_owned());
    }
    Ok(text.to_owned())
}

/// The base of a server's addresses.
pub(super) fn url(text: &str) -> Result<String, String> {
    match text.strip_prefix("http://").or_else(|| text.strip_prefix("https://")) {
        Some(rest) if !rest.is_empty() => Ok(text.to_owned()),
        Some(_) => Err("the host is missing".to_owned()),
        None => Err(format!("it must begin with `http://` or `https://`: http://{text}")),
    }
}

/// An address, or the first one of a name; IPv4 where the name has both.
pub(super) fn host(text: &str) -> Result<IpAddr, String> {
    if let Ok(address) = text.parse() {
        return Ok(address);
    }
    let rule = |reason: String| format!("it must be an IP address or a name that resolves to one ({reason})");
    let found = (text, 0).to_socket_addrs().map_err(|error| rule(error.to_string()))?;
    let mut addresses: Vec<IpAddr> = found.map(|address| address.ip()).collect();
    addresses.sort_by_key(IpAddr::is_ipv6);
    addresses.first().copied().ok_or_else(|| rule("it has no address".to_owned()))
}

fn integer<T: std::str::FromStr + PartialOrd + std::fmt::Display>(
    text: &str,
    range: RangeInclusive<T>,
) -> Result<T, String> {
    match text.parse::<T>() {
        Ok(value) if range.contains(&value) => Ok(value),
        _ => Err(format!("it must be an integer from {} to {}", range.start(), range.end())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn edges_are_accepted_and_what_lies_beyond_is_not() {
        assert_eq!((thread_count("1"), thread_count("1024")), (Ok(1), Ok(1024)));
        for bad in ["0", "1025", "20000", "-1", "two", ""] {
            assert_eq!(thread_count(bad), Err("it must be an integer from 1 to 1024".to_owned()), "{bad}");
        }
        assert!(chunk_size("65536").is_ok() && chunk_size("65537").is_err());
        assert!(seconds("0").is_ok() && seconds("18446744073709551615").is_err());
        assert!(temperature("2").is_ok() && temperature("2.1").is_err() && temperature("NaN").is_err());
    }

    #[test]
    fn words_and_names() {
        assert!(
            ["none", "minimal", "low", "medium", "high", "xhigh", "max"].into_iter().all(|word| effort(word).is_ok())
        );
        assert!(effort("foo").unwrap_err().contains("minimal, low"));
        assert!(model_name("").is_err() && model_name(" ").is_err() && model_name("k3").is_ok());
    }

    #[test]
    fn a_url_needs_its_scheme() {
        assert!(url("http://127.0.0.1:8000").is_ok() && url("https://host/v1").is_ok());
        assert!(url("127.0.0.1:8000").unwrap_err().ends_with("http://127.0.0.1:8000"));
        assert!(url("http://").is_err());
    }

    #[test]
    fn hosts_are_addresses_or_names() {
        assert_eq!(host("0.0.0.0"), Ok(IpAddr::from([0, 0, 0, 0])));
        assert_eq!(host("localhost"), Ok(IpAddr::from([127, 0, 0, 1])));
        assert!(host("no such host").unwrap_err().contains("an IP address or a name"));
    }
}
