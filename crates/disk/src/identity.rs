//! Who computed a record: states and latents mean something only to the same weights in the same layout.

use sha2::{Digest, Sha256};

/// A digest of everything that a stored unit depends on besides its tokens.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Identity(pub [u8; 32]);

/// Makes an [`Identity`] out of named parts; order counts.
#[derive(Debug, Clone, Default)]
pub struct IdentityHasher(Sha256);

impl IdentityHasher {
    /// Adds a part. Its name and length count, so that no two lists of parts run into each other.
    pub fn part(mut self, name: &str, bytes: &[u8]) -> Self {
        for piece in [name.as_bytes(), bytes] {
            self.0.update((piece.len() as u64).to_le_bytes());
            self.0.update(piece);
        }
        self
    }

    /// The identity.
    pub fn finish(self) -> Identity {
        Identity(self.0.finalize().into())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_part_its_name_and_its_place_count() {
        let make = |parts: &[(&str, &str)]| {
            let parts = parts.iter().fold(IdentityHasher::default(), |h, (name, b)| h.part(name, b.as_bytes()));
            parts.finish()
        };
        let all = [
            make(&[]),
            make(&[("a", "bc")]),
            make(&[("ab", "c")]),
            make(&[("a", "bc"), ("", "")]),
            make(&[("a", "b"), ("c", "d")]),
            make(&[("c", "d"), ("a", "b")]),
        ];
        for (i, a) in all.iter().enumerate() {
            assert!(all[i + 1..].iter().all(|b| a != b));
        }
        assert_eq!(make(&[("a", "b")]), make(&[("a", "b")]));
    }
}
