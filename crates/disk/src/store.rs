//! A directory of records, one file each, named by number.
//!
//! A record is written under another name and renamed when it is complete; a process that dies in between leaves a file
//! that the next start removes. Nothing is forced to the platter: a record that a power cut tears is found out by its
//! checksums. Files with names that are not ours are left alone.

use std::collections::HashMap;
use std::fs::{File, TryLockError};
use std::io::{Read, Write};
use std::path::{Path, PathBuf};

use perilune_cache::{Record, RecordId};

use crate::layout::{Chain, DIGEST, Head, PREAMBLE, chain, digest, root_chain};
use crate::{DiskError, Identity};

const SUFFIX: &str = "record";
const PARTIAL: &str = "partial";
const LOCK: &str = "lock";
/// Numbers end here: no process writes so many records, and whoever counts on from a higher one might come round.
const MAX_ID: RecordId = RecordId(1 << 62);

/// A directory of records that this process alone uses.
#[derive(Debug)]
pub struct DiskStore {
    dir: PathBuf,
    identity: Identity,
    /// Of every record that is here: the digest of its prefix.
    chains: HashMap<RecordId, Chain>,
    /// Held until the store is dropped.
    _lock: File,
}

/// What a directory holds.
#[derive(Debug, Default)]
pub struct Found {
    /// Whole records of this identity, as far as their heads say.
    pub records: Vec<Record>,
    /// Files that were removed: torn, changed, or of another identity.
    pub removed: usize,
}

impl DiskStore {
    /// Opens a directory, made where it is absent, and removes every record that is not whole or of another identity.
    ///
    /// # Errors
    /// `InUse`; `Io` where it cannot be written.
    pub fn open(dir: &Path, identity: Identity) -> Result<(DiskStore, Found), DiskError> {
        std::fs::create_dir_all(dir).map_err(DiskError::io(dir))?;
        let path = dir.join(LOCK);
        let lock = private().create(true).truncate(false).open(&path).map_err(DiskError::io(&path))?;
        match lock.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => return Err(DiskError::InUse { path: dir.to_owned() }),
            Err(TryLockError::Error(cause)) => return Err(DiskError::Io { path, cause }),
        }
        let mut store = DiskStore { dir: dir.to_owned(), identity, chains: HashMap::new(), _lock: lock };
        store.probe()?;
        let found = store.scan()?;
        Ok((store, found))
    }

    /// Writes a record.
    ///
    /// # Errors
    /// `Io`; `NotWhole` where the record that it continues is not here, or another one has its number.
    pub fn write(&mut self, record: &Record, unit: &[u8]) -> Result<(), DiskError> {
        let path = self.path(record.id);
        if self.chains.contains_key(&record.id) {
            return Err(DiskError::NotWhole { path, what: "another record has its number" });
        }
        let parent_chain = self.parent_chain(record);
        let parent_chain =
            parent_chain.ok_or_else(|| DiskError::NotWhole { path: path.clone(), what: "its parent is not here" })?;
        let head = Head {
            chain: chain(parent_chain, record),
            parent_chain,
            unit_digest: digest(unit),
            unit_len: unit.len() as u64,
            identity: self.identity,
            record: record.clone(),
        };
        let partial = path.with_extension(PARTIAL);
        let written = write_all(&partial, [&head.encode(), unit]).and_then(|()| std::fs::rename(&partial, &path));
        if let Err(cause) = written {
            // There may be nothing to remove; what stays is removed at the next start.
            let _ = std::fs::remove_file(&partial);
            return Err(DiskError::Io { path, cause });
        }
        self.chains.insert(record.id, head.chain);
        Ok(())
    }

    /// The unit of a record, every byte checked. One that is not whole is removed.
    ///
    /// # Errors
    /// `Io`, `NotWhole`.
    pub fn read(&mut self, id: RecordId) -> Result<Vec<u8>, DiskError> {
        let path = self.path(id);
        let unit = read_head(&path).and_then(|(mut file, head)| {
            let not_whole = |what| DiskError::NotWhole { path: path.clone(), what };
            if self.chains.get(&id) != Some(&head.chain) || head.identity != self.identity {
                return Err(not_whole("it is another prefix's"));
            }
            let mut unit = Vec::new();
            file.read_to_end(&mut unit).map_err(DiskError::io(&path))?;
            if digest(&unit) != head.unit_digest {
                return Err(not_whole("the checksum of its unit does not fit"));
            }
            Ok(unit)
        });
        if unit.is_err() {
            self.remove(id);
        }
        unit
    }

    /// Removes a record; one that is not here is no error, and one that cannot be removed is found again at the next start.
    pub fn remove(&mut self, id: RecordId) {
        self.chains.remove(&id);
        // See above.
        let _ = std::fs::remove_file(self.path(id));
    }

    fn parent_chain(&self, record: &Record) -> Option<Chain> {
        match record.parent {
            Some(parent) => self.chains.get(&parent).copied(),
            None => Some(root_chain(self.identity, &record.key)),
        }
    }

    /// Whether files can be made here.
    fn probe(&self) -> Result<(), DiskError> {
        let path = self.dir.join(format!("probe.{PARTIAL}"));
        write_all(&path, [b"probe", b""]).and_then(|()| std::fs::remove_file(&path)).map_err(DiskError::io(path))
    }

    fn scan(&mut self) -> Result<Found, DiskError> {
        let mut found = Found::default();
        let mut heads = Vec::new();
        for entry in std::fs::read_dir(&self.dir).map_err(DiskError::io(&self.dir))? {
            let path = entry.map_err(DiskError::io(&self.dir))?.path();
            let Some((id, suffix)) = name_of(&path) else { continue };
            let head = if suffix == SUFFIX { self.usable_head(&path, id) } else { None };
            match head {
                Some(head) => heads.push(head),
                None => {
                    found.removed += 1;
                    // One that stays is looked at again at the next start.
                    let _ = std::fs::remove_file(&path);
                }
            }
        }
        // Whatever is continued was numbered before what continues it.
        heads.sort_by_key(|head| head.record.id);
        for Head { record, chain: own, parent_chain, .. } in heads {
            let fits = self.parent_chain(&record) == Some(parent_chain) && chain(parent_chain, &record) == own;
            if fits {
                self.chains.insert(record.id, own);
                found.records.push(record);
            } else {
                found.removed += 1;
                self.remove(record.id);
            }
        }
        Ok(found)
    }

    fn usable_head(&self, path: &Path, id: RecordId) -> Option<Head> {
        if !std::fs::metadata(path).ok()?.is_file() {
            // A pipe, say, would never be read to its end.
            return None;
        }
        let (_, head) = read_head(path).ok()?;
        (head.identity == self.identity && head.record.id == id && id <= MAX_ID).then_some(head)
    }

    fn path(&self, id: RecordId) -> PathBuf {
        self.dir.join(format!("{}.{SUFFIX}", stem_of(id)))
    }
}

/// Files that only this user may read: tokens are what people wrote.
fn private() -> std::fs::OpenOptions {
    let mut options = File::options();
    options.write(true);
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
    options
}

fn write_all(path: &Path, pieces: [&[u8]; 2]) -> std::io::Result<()> {
    let mut file = private().create(true).truncate(true).open(path)?;
    pieces.into_iter().try_for_each(|piece| file.write_all(piece))
}

/// An open file behind its head, whose length is what the head says.
fn read_head(path: &Path) -> Result<(File, Head), DiskError> {
    let io = || DiskError::io(path);
    let not_whole = |what| DiskError::NotWhole { path: path.to_owned(), what };
    let mut file = File::open(path).map_err(io())?;
    let meta = file.metadata().map_err(io())?;
    if !meta.is_file() {
        return Err(not_whole("it is not a file"));
    }
    let mut bytes = vec![0; PREAMBLE];
    file.read_exact(&mut bytes).map_err(io())?;
    let preamble: &[u8; PREAMBLE] = bytes.first_chunk().ok_or_else(|| not_whole("it is too short"))?;
    let len = Head::description_len(preamble).map_err(not_whole)?;
    if meta.len() < (PREAMBLE + len + DIGEST) as u64 {
        return Err(not_whole("it ends within its head"));
    }
    bytes.resize(PREAMBLE + len + DIGEST, 0);
    file.read_exact(&mut bytes[PREAMBLE..]).map_err(io())?;
    let head = Head::decode(&bytes).map_err(not_whole)?;
    if meta.len() - bytes.len() as u64 != head.unit_len {
        return Err(not_whole("it ends too early or too late"));
    }
    Ok((file, head))
}

/// The name of a record's file without its ending.
fn stem_of(id: RecordId) -> String {
    format!("{:016x}", id.0)
}

/// Number and ending of a file of ours.
fn name_of(path: &Path) -> Option<(RecordId, &str)> {
    let (stem, suffix) = path.file_name()?.to_str()?.split_once('.')?;
    let ours = suffix == SUFFIX || suffix == PARTIAL;
    let id = RecordId(u64::from_str_radix(stem, 16).ok().filter(|_| ours)?);
    // Other spellings of the number are not ours.
    (stem == stem_of(id)).then_some((id, suffix))
}
