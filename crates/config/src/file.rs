//! Reads a small text file: regular files only, and not without end.

use std::fs::File;
use std::io::Read;
use std::path::Path;

use crate::ConfigError;

/// Largest configuration file accepted, in bytes; published ones have a few kilobytes.
const MAX_BYTES: u64 = 16 << 20;

/// The text of a file.
///
/// # Errors
/// `Io`; `Parse` for what is no regular file, larger than 16 MiB or no UTF-8.
pub(crate) fn read_text(path: &Path) -> Result<String, ConfigError> {
    let io = |source| ConfigError::Io { path: path.to_owned(), source };
    let fault = |reason: &str| ConfigError::Parse { path: path.to_owned(), reason: reason.to_owned() };
    // Before it is opened: opening a pipe waits for a writer.
    if !std::fs::metadata(path).map_err(io)?.is_file() {
        return Err(fault("it is not a regular file"));
    }
    let mut bytes = Vec::new();
    File::open(path).map_err(io)?.take(MAX_BYTES + 1).read_to_end(&mut bytes).map_err(io)?;
    if bytes.len() as u64 > MAX_BYTES {
        return Err(fault("it is larger than 16 MiB"));
    }
    String::from_utf8(bytes).map_err(|_| fault("it is not UTF-8"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn devices_directories_and_endless_files_are_refused() {
        for path in ["/dev/zero", "."] {
            assert!(read_text(Path::new(path)).unwrap_err().to_string().contains("not a regular file"), "{path}");
        }
        let large = std::env::temp_dir().join(format!("perilune-large-{}", std::process::id()));
        File::create(&large).unwrap().set_len(MAX_BYTES + 1).unwrap();
        let outcome = read_text(&large);
        std::fs::remove_file(&large).unwrap();
        assert!(outcome.unwrap_err().to_string().contains("larger than 16 MiB"));
    }
}
