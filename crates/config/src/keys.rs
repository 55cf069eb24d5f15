//! Typed access to the keys of a JSON object, with errors that name the key, the value and the rule.
//!
//! `null` counts as absent. A key may have several spellings; where two are present they must agree.

use std::path::Path;

use serde_json::{Map, Value};

use crate::ConfigError;

/// Largest extent accepted for any dimension. Keeps every product of sizes far from overflow.
pub(crate) const MAX_EXTENT: usize = 1 << 18;

/// Characters of an offending value that an error shows.
const MAX_SHOWN: usize = 80;

/// One JSON object of a configuration file.
#[derive(Clone, Copy)]
pub(crate) struct Keys<'a> {
    path: &'a Path,
    parent: &'a str,
    map: &'a Map<String, Value>,
}

/// A value and the key it was found under, with its parents.
pub(crate) struct Found<'a> {
    pub(crate) path: &'a Path,
    pub(crate) key: String,
    pub(crate) value: &'a Value,
}

impl Found<'_> {
    /// The error for this value.
    pub(crate) fn refuse(&self, rule: impl Into<String>) -> ConfigError {
        let mut found = self.value.to_string();
        if let Some((end, _)) = found.char_indices().nth(MAX_SHOWN) {
            found.truncate(end);
            found.push('…');
        }
        ConfigError::Unsupported { path: self.path.to_owned(), key: self.key.clone(), found, rule: rule.into() }
    }
}

impl<'a> Keys<'a> {
    /// The keys of a file's outermost object.
    pub(crate) fn root(path: &'a Path, value: &'a Value) -> Result<Self, ConfigError> {
        match value {
            Value::Object(map) => Ok(Keys { path, parent: "", map }),
            _ => Err(ConfigError::Parse { path: path.to_owned(), reason: "the file must hold one JSON object".into() }),
        }
    }

    /// The file.
    pub(crate) fn path(&self) -> &'a Path {
        self.path
    }

    /// An object under `key`.
    pub(crate) fn child(&self, key: &'static str) -> Result<Option<Keys<'a>>, ConfigError> {
        match self.find(&[key])? {
            None => Ok(None),
            Some(Found { value: Value::Object(map), .. }) => Ok(Some(Keys { path: self.path, parent: key, map })),
            Some(other) => Err(other.refuse("an object is expected")),
        }
    }

    /// The value under the first spelling that is present and not null.
    pub(crate) fn find(&self, spellings: &[&str]) -> Result<Option<Found<'a>>, ConfigError> {
        let mut first: Option<Found<'a>> = None;
        for name in spellings {
            let Some(value) = self.map.get(*name).filter(|value| !value.is_null()) else { continue };
            let here = Found { path: self.path, key: self.full(name), value };
            match &first {
                None => first = Some(here),
                Some(earlier) if earlier.value == value => {}
                Some(earlier) => {
                    return Err(here.refuse(format!("`{}` says {} for the same thing", earlier.key, earlier.value)));
                }
            }
        }
        Ok(first)
    }

    /// The value, or an error that names the first spelling.
    pub(crate) fn require(&self, spellings: &[&str]) -> Result<Found<'a>, ConfigError> {
        self.find(spellings)?.ok_or_else(|| ConfigError::Missing {
            path: self.path.to_owned(),
            key: self.full(spellings.first().copied().unwrap_or_default()),
        })
    }

    /// A dimension: a whole number from 1 to [`MAX_EXTENT`].
    pub(crate) fn extent(&self, spellings: &[&str]) -> Result<usize, ConfigError> {
        whole(&self.require(spellings)?, 1, MAX_EXTENT)
    }

    /// A dimension that may be absent.
    pub(crate) fn optional_extent(&self, spellings: &[&str]) -> Result<Option<usize>, ConfigError> {
        self.find(spellings)?.map(|found| whole(&found, 1, MAX_EXTENT)).transpose()
    }

    /// A count that may be zero or absent.
    pub(crate) fn optional_count(&self, spellings: &[&str]) -> Result<Option<usize>, ConfigError> {
        self.find(spellings)?.map(|found| whole(&found, 0, MAX_EXTENT)).transpose()
    }

    /// A finite number.
    pub(crate) fn optional_number(&self, spellings: &[&str]) -> Result<Option<(f32, Found<'a>)>, ConfigError> {
        let Some(found) = self.find(spellings)? else { return Ok(None) };
        match found.value.as_f64().map(|number| number as f32) {
            Some(number) if number.is_finite() => Ok(Some((number, found))),
            _ => Err(found.refuse("a finite number is expected")),
        }
    }

    /// A number greater than zero.
    pub(crate) fn positive(&self, spellings: &[&str]) -> Result<f32, ConfigError> {
        self.require(spellings)?;
        match self.optional_number(spellings)? {
            Some((number, _)) if number > 0.0 => Ok(number),
            _ => Err(self.require(spellings)?.refuse("a number greater than 0 is expected")),
        }
    }

    /// `true` or `false`.
    pub(crate) fn flag(&self, spellings: &[&str]) -> Result<Option<bool>, ConfigError> {
        let Some(found) = self.find(spellings)? else { return Ok(None) };
        found.value.as_bool().map(Some).ok_or_else(|| found.refuse("true or false is expected"))
    }

    /// Refuses any string but those listed; absent is accepted.
    pub(crate) fn one_of(&self, key: &str, accepted: &[&str]) -> Result<(), ConfigError> {
        let Some(found) = self.find(&[key])? else { return Ok(()) };
        match found.value.as_str() {
            Some(text) if accepted.contains(&text) => Ok(()),
            _ => Err(found.refuse(format!("{} is expected", accepted.join(" or ")))),
        }
    }

    fn full(&self, key: &str) -> String {
        if self.parent.is_empty() { key.to_owned() } else { format!("{}.{key}", self.parent) }
    }
}

/// A whole number in a range. A float without a fraction counts, as some writers produce `4.0`.
pub(crate) fn whole(found: &Found<'_>, min: usize, max: usize) -> Result<usize, ConfigError> {
    let exact = found.value.as_u64().or_else(|| {
        let number = found.value.as_f64()?;
        (number >= 0.0 && number <= max as f64 && number.fract() == 0.0).then_some(number as u64)
    });
    match exact.and_then(|number| usize::try_from(number).ok()) {
        Some(number) if (min..=max).contains(&number) => Ok(number),
        _ => Err(found.refuse(format!("a whole number from {min} to {max} is expected"))),
    }
}
