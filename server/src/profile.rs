//! Whose rules a request must keep, beyond what can be computed.

use clap::ValueEnum;
use perilune_protocol::{GenerationOptions, StreamMode, UsageReport};

use crate::error::ApiError;

/// The service whose rules apply.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, ValueEnum)]
pub enum ApiProfile {
    /// Whatever can be computed.
    #[default]
    Open,
    /// Those of Kimi's own API: what its model was not tuned for is refused, and streams end with the usage.
    Kimi,
}

/// The only nucleus of Kimi's API, and its temperature where a request names none.
const KIMI_TOP_P: f64 = 0.95;
const KIMI_TEMPERATURE: f64 = 1.0;

impl ApiProfile {
    /// Checks what a request asks for, and fills in what it leaves open.
    ///
    /// # Errors
    /// 400 naming field, value and rule.
    pub fn apply(self, options: &mut GenerationOptions) -> Result<(), ApiError> {
        if self == ApiProfile::Open {
            return Ok(());
        }
        let zero = |value: f64| value == 0.0;
        refuse("temperature", options.temperature, |value| value <= 1.0, "must be at most 1")?;
        refuse("top_p", options.top_p, |value| value == KIMI_TOP_P, "can only be 0.95")?;
        refuse("presence_penalty", options.presence_penalty, zero, "can only be 0")?;
        refuse("frequency_penalty", options.frequency_penalty, zero, "can only be 0")?;
        refuse("repetition_penalty", options.repetition_penalty, |value| value == 1.0, "can only be 1")?;
        refuse("n", Some(options.n as f64), |value| value == 1.0, "can only be 1")?;
        options.temperature.get_or_insert(KIMI_TEMPERATURE);
        options.top_p.get_or_insert(KIMI_TOP_P);
        Ok(())
    }

    /// How an answer is delivered.
    pub fn stream(self, asked: StreamMode) -> StreamMode {
        match (self, asked) {
            (ApiProfile::Kimi, StreamMode::Events(UsageReport::Off)) => StreamMode::Events(UsageReport::Final),
            _ => asked,
        }
    }
}

fn refuse(field: &str, value: Option<f64>, fits: impl Fn(f64) -> bool, rule: &str) -> Result<(), ApiError> {
    match value.filter(|value| !fits(*value)) {
        Some(value) => {
            Err(ApiError::invalid(format!("`{field}` is {value}; it {rule} (--api-profile kimi)"), Some(field)))
        }
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn options() -> GenerationOptions {
        GenerationOptions { n: 1, ..GenerationOptions::default() }
    }

    #[test]
    fn kimi_fills_in_its_own_sampling_and_keeps_what_fits() {
        let mut absent = options();
        ApiProfile::Kimi.apply(&mut absent).unwrap();
        assert_eq!((absent.temperature, absent.top_p), (Some(1.0), Some(0.95)));
        let mut given = GenerationOptions { temperature: Some(0.0), presence_penalty: Some(0.0), ..options() };
        ApiProfile::Kimi.apply(&mut given).unwrap();
        assert_eq!(given.temperature, Some(0.0));
        let mut open = GenerationOptions { n: 5, top_p: Some(0.5), ..options() };
        ApiProfile::Open.apply(&mut open).unwrap();
        assert_eq!((open.temperature, open.top_p), (None, Some(0.5)));
    }

    #[test]
    fn what_kimi_refuses_names_its_field() {
        let cases = [
            ("temperature", GenerationOptions { temperature: Some(1.01), ..options() }),
            ("top_p", GenerationOptions { top_p: Some(1.0), ..options() }),
            ("presence_penalty", GenerationOptions { presence_penalty: Some(-0.1), ..options() }),
            ("frequency_penalty", GenerationOptions { frequency_penalty: Some(2.0), ..options() }),
            ("repetition_penalty", GenerationOptions { repetition_penalty: Some(1.1), ..options() }),
            ("n", GenerationOptions { n: 2, ..options() }),
        ];
        for (field, mut options) in cases {
            let error = ApiProfile::Kimi.apply(&mut options).unwrap_err().body().error;
            assert_eq!(error.param.as_deref(), Some(field), "{}", error.message);
        }
    }
}
