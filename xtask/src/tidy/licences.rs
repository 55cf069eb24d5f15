//! Every crate that is linked carries a licence that allows it.

use serde_json::Value;

/// Licences a dependency may choose; one of an `OR` expression is enough, all of an `AND` are needed.
const ALLOWED: &[&str] = &[
    "0BSD",
    "Apache-2.0",
    "Apache-2.0 WITH LLVM-exception",
    "BSD-2-Clause",
    "BSD-3-Clause",
    "BSL-1.0",
    "CC0-1.0",
    "CDLA-Permissive-2.0",
    "ISC",
    "MIT",
    "MIT-0",
    "MPL-2.0",
    "NCSA",
    "Unicode-3.0",
    "Unlicense",
    "Zlib",
];

/// Packages that name a licence file instead of an expression, and what the file says.
const BY_FILE: &[(&str, &str)] = &[("cfg_block", "Apache-2.0")];

/// Findings for packages whose licence expression is not satisfied by [`ALLOWED`].
pub(super) fn check(metadata: &Value) -> Vec<String> {
    let packages = metadata["packages"].as_array().map(Vec::as_slice).unwrap_or_default();
    let foreign = packages.iter().filter(|p| !p["source"].is_null());
    let by_file = |name: &Value| BY_FILE.iter().find(|(known, _)| name == known).map(|(_, licence)| *licence);
    let refused = foreign.filter(|p| !p["license"].as_str().or(by_file(&p["name"])).is_some_and(is_allowed));
    refused
        .map(|p| format!("licence {} of {} is not on the list in xtask/src/tidy/licences.rs", p["license"], p["name"]))
        .collect()
}

fn is_allowed(expression: &str) -> bool {
    let plain = expression.replace(['(', ')'], "").replace('/', " OR ");
    plain.split(" AND ").all(|part| part.split(" OR ").any(|name| ALLOWED.contains(&name.trim())))
}

#[cfg(test)]
mod tests {
    use super::is_allowed;

    #[test]
    fn expressions() {
        assert!(is_allowed("MIT OR Apache-2.0"));
        assert!(is_allowed("MIT/Apache-2.0"));
        assert!(is_allowed("(MIT OR GPL-3.0) AND Unicode-3.0"));
        assert!(!is_allowed("GPL-3.0"));
        assert!(!is_allowed("MIT AND GPL-3.0"));
    }
}
