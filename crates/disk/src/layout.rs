//! A record as bytes: a head that says what it is, then the unit.
//!
//! ```text
//! 8   magic, which includes the version of this layout
//! 4   length of the description, little endian as everything
//! n   description: identity 32, chain 32, chain of the parent 32, digest of the unit 32, length of the unit 8,
//!     id 8, parent 8 (0 for none), kind 1, starts 4, weight version 8,
//!     salt and adapter (each 1 if there, then length 4 and bytes), number of tokens 4, tokens 4 each
//! 32  digest of all before
//! …   the unit, to the end of the file
//! ```
//!
//! The chain is a digest of identity, key and all tokens up to the record's end, so a record that stands behind another
//! parent than its own is found out even where numbers agree.

use perilune_cache::{CacheKey, Record, RecordId, RecordKind};
use perilune_tensor::TokenId;
use sha2::{Digest, Sha256};

use crate::Identity;

const MAGIC: [u8; 8] = *b"PERIDSK1";
/// More than a head with the longest key and block that there are: one that claims more is none.
pub(crate) const MAX_DESCRIPTION: usize = 1 << 20;
/// Bytes before the description.
pub(crate) const PREAMBLE: usize = 12;
/// Bytes of a digest.
pub(crate) const DIGEST: usize = 32;

/// A digest of a prefix.
pub(crate) type Chain = [u8; DIGEST];

/// A record's head.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Head {
    pub(crate) record: Record,
    pub(crate) identity: Identity,
    pub(crate) chain: Chain,
    pub(crate) parent_chain: Chain,
    pub(crate) unit_digest: [u8; DIGEST],
    pub(crate) unit_len: u64,
}

/// The chain at the start of a key's prefixes.
pub(crate) fn root_chain(identity: Identity, key: &CacheKey) -> Chain {
    let mut bytes = Vec::new();
    put_key(&mut bytes, key);
    Sha256::new().chain_update(identity.0).chain_update(&bytes).finalize().into()
}

/// The chain after a record.
pub(crate) fn chain(parent: Chain, record: &Record) -> Chain {
    let mut bytes = vec![kind_code(record.kind)];
    put_tokens(&mut bytes, &record.tokens);
    Sha256::new().chain_update(parent).chain_update(&bytes).finalize().into()
}

pub(crate) fn digest(bytes: &[u8]) -> [u8; DIGEST] {
    Sha256::digest(bytes).into()
}

impl Head {
    /// Everything before the unit.
    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut description = Vec::new();
        for part in [&self.identity.0, &self.chain, &self.parent_chain, &self.unit_digest] {
            description.extend_from_slice(part);
        }
        let record = &self.record;
        for number in [self.unit_len, record.id.0, record.parent.map_or(0, |id| id.0)] {
            description.extend_from_slice(&number.to_le_bytes());
        }
        description.push(kind_code(record.kind));
        description.extend_from_slice(&record.starts.to_le_bytes());
        put_key(&mut description, &record.key);
        put_tokens(&mut description, &record.tokens);
        let mut all = MAGIC.to_vec();
        all.extend_from_slice(&(description.len() as u32).to_le_bytes());
        all.append(&mut description);
        let sum = digest(&all);
        all.extend_from_slice(&sum);
        all
    }

    /// Length of the description that a file's first bytes announce.
    pub(crate) fn description_len(preamble: &[u8; PREAMBLE]) -> Result<usize, &'static str> {
        let (magic, len) = preamble.split_at(MAGIC.len());
        if magic != MAGIC {
            return Err("it is not a record of this version");
        }
        let len = len.iter().rev().fold(0_usize, |len, byte| (len << 8) | usize::from(*byte));
        if len > MAX_DESCRIPTION { Err("its head is too long") } else { Ok(len) }
    }

    /// A head from all bytes before the unit.
    pub(crate) fn decode(bytes: &[u8]) -> Result<Head, &'static str> {
        let (body, sum) = bytes.split_at_checked(bytes.len().saturating_sub(DIGEST)).ok_or(SHORT)?;
        if digest(body) != *sum {
            return Err("the checksum of its head does not fit");
        }
        let mut rest = Reader(body.get(PREAMBLE..).ok_or(SHORT)?);
        let identity = Identity(rest.array()?);
        let (chain, parent_chain, unit_digest) = (rest.array()?, rest.array()?, rest.array()?);
        let (unit_len, id, parent) = (rest.u64()?, RecordId(rest.u64()?), rest.u64()?);
        let kind = match rest.array::<1>()? {
            [0] => RecordKind::Block,
            [1] => RecordKind::Tail,
            [2] => RecordKind::State,
            _ => return Err("its kind is unknown"),
        };
        let starts = rest.u32()?;
        let key = CacheKey { weight_version: rest.u64()?, salt: rest.text()?, adapter: rest.text()? };
        let count = rest.u32()? as usize;
        let tokens = (0..count).map(|_| rest.u32().map(TokenId)).collect::<Result<_, _>>()?;
        if !rest.0.is_empty() {
            return Err("its head goes on too long");
        }
        let parent = (parent != 0).then_some(RecordId(parent));
        let record = Record { id, kind, parent, key, tokens, starts };
        Ok(Head { record, identity, chain, parent_chain, unit_digest, unit_len })
    }
}

const SHORT: &str = "it ends within its head";

fn kind_code(kind: RecordKind) -> u8 {
    match kind {
        RecordKind::Block => 0,
        RecordKind::Tail => 1,
        RecordKind::State => 2,
    }
}

fn put_key(bytes: &mut Vec<u8>, key: &CacheKey) {
    bytes.extend_from_slice(&key.weight_version.to_le_bytes());
    for text in [&key.salt, &key.adapter] {
        bytes.push(u8::from(text.is_some()));
        if let Some(text) = text {
            bytes.extend_from_slice(&(text.len() as u32).to_le_bytes());
            bytes.extend_from_slice(text.as_bytes());
        }
    }
}

fn put_tokens(bytes: &mut Vec<u8>, tokens: &[TokenId]) {
    bytes.extend_from_slice(&(tokens.len() as u32).to_le_bytes());
    tokens.iter().for_each(|token| bytes.extend_from_slice(&token.0.to_le_bytes()));
}

struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    fn take(&mut self, len: usize) -> Result<&'a [u8], &'static str> {
        let (taken, rest) = self.0.split_at_checked(len).ok_or(SHORT)?;
        self.0 = rest;
        Ok(taken)
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], &'static str> {
        self.take(N)?.try_into().map_err(|_| SHORT)
    }

    fn u32(&mut self) -> Result<u32, &'static str> {
        self.array().map(u32::from_le_bytes)
    }

    fn u64(&mut self) -> Result<u64, &'static str> {
        self.array().map(u64::from_le_bytes)
    }

    fn text(&mut self) -> Result<Option<std::sync::Arc<str>>, &'static str> {
        if self.array::<1>()? == [0] {
            return Ok(None);
        }
        let len = self.u32()? as usize;
        let text = std::str::from_utf8(self.take(len)?).map_err(|_| "its key is not text")?;
        Ok(Some(text.into()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn head() -> Head {
        let key = CacheKey { salt: Some("é".into()), weight_version: 7, adapter: None };
        let tokens = (0..5).map(TokenId).collect();
        let (id, parent) = (RecordId(9), Some(RecordId(3)));
        let record = Record { id, kind: RecordKind::Tail, parent, key, tokens, starts: 4 };
        let parent_chain = [5; DIGEST];
        let chain = chain(parent_chain, &record);
        Head { record, identity: Identity([1; 32]), chain, parent_chain, unit_digest: digest(b"unit"), unit_len: 4 }
    }

    #[test]
    fn a_head_comes_back_as_it_was() {
        let bytes = head().encode();
        let len = Head::description_len(bytes[..PREAMBLE].try_into().unwrap()).unwrap();
        assert_eq!(bytes.len(), PREAMBLE + len + DIGEST);
        assert_eq!(Head::decode(&bytes).unwrap(), head());
    }

    #[test]
    fn no_flipped_bit_and_no_missing_byte_goes_unnoticed() {
        let bytes = head().encode();
        for bit in 0..8 * bytes.len() {
            let mut changed = bytes.clone();
            changed[bit / 8] ^= 1 << (bit % 8);
            assert!(Head::decode(&changed).is_err(), "bit {bit}");
        }
        for len in 0..bytes.len() {
            assert!(Head::decode(&bytes[..len]).is_err(), "{len} bytes");
        }
        assert!(Head::description_len(b"PERIDSK1\xff\xff\xff\xff").is_err());
        assert!(Head::description_len(b"PERIDSK0\x10\x00\x00\x00").is_err());
    }

    #[test]
    fn chains_tell_keys_tokens_and_identities_apart() {
        let (one, other) = (Identity([1; 32]), Identity([2; 32]));
        let salted = CacheKey { salt: Some("a".into()), ..CacheKey::default() };
        let adapted = CacheKey { adapter: Some("a".into()), ..CacheKey::default() };
        let roots = [
            root_chain(one, &CacheKey::default()),
            root_chain(other, &CacheKey::default()),
            root_chain(one, &salted),
            root_chain(one, &adapted),
        ];
        for (i, a) in roots.iter().enumerate() {
            assert!(roots[i + 1..].iter().all(|b| a != b));
        }
        let mut record = head().record;
        let first = chain(roots[0], &record);
        record.tokens[2] = TokenId(77);
        assert_ne!(first, chain(roots[0], &record));
    }
}
