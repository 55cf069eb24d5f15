//! Relative links in Markdown files lead to something.

use std::path::Path;

use anyhow::Result;

use crate::process::root;

/// Findings for links whose target does not exist.
pub(super) fn check(files: &[String]) -> Result<Vec<String>> {
    let mut findings = Vec::new();
    for file in files.iter().filter(|f| f.ends_with(".md")) {
        let text = std::fs::read_to_string(root().join(file))?;
        let folder = Path::new(file).parent().unwrap_or(Path::new(""));
        for target in targets(&text) {
            if !root().join(folder).join(target).exists() {
                findings.push(format!("{file}: the link to `{target}` leads nowhere"));
            }
        }
    }
    Ok(findings)
}

/// Paths of relative links, without fragments.
fn targets(text: &str) -> impl Iterator<Item = &str> {
    let inside = text.split("](").skip(1).filter_map(|rest| rest.split_once(')').map(|(link, _)| link));
    inside
        .filter(|link| !link.contains("://") && !link.starts_with('#') && !link.starts_with("mailto:"))
        .map(|link| link.split_once('#').map_or(link, |(path, _)| path))
}

#[cfg(test)]
mod tests {
    #[test]
    fn finds_relative_links_only() {
        let text = "[a](docs/x.md#part) [b](https://e.org) [c](#here) ![d](y.png)";
        assert_eq!(super::targets(text).collect::<Vec<_>>(), ["docs/x.md", "y.png"]);
    }
}
