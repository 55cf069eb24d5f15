//! Safetensors files, mapped into memory: a single file, or shards with an index.
//!
//! Headers are read and checked against the size of their file when the directory is opened; data pages are read only
//! when a tensor is used. A file that is cut short *while mapped* is beyond what can be caught: replace checkpoints by
//! renaming, never in place.

use std::collections::{BTreeMap, HashMap};
use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use memmap2::Mmap;
use perilune_tensor::{DType, HostBytes, HostTensor, Shape, TensorSpec};
use safetensors::{Dtype, SafeTensors};

use crate::{WeightSource, WeightsError, index};

/// Name of a checkpoint in one file.
pub(crate) const SINGLE_FILE: &str = "model.safetensors";
/// Name of the index of a checkpoint in several files.
pub(crate) const INDEX_FILE: &str = "model.safetensors.index.json";
/// Bytes of the header's own length at the start of a file.
const LENGTH_BYTES: usize = 8;

/// The tensors of a checkpoint directory.
pub struct SafetensorsDir {
    entries: HashMap<String, Entry>,
    files: Vec<PathBuf>,
}

struct Entry {
    file: Arc<Mmap>,
    dtype: Dtype,
    shape: Vec<usize>,
    range: std::ops::Range<usize>,
}

impl SafetensorsDir {
    /// Maps `model.safetensors` of a directory, or the shards that `model.safetensors.index.json` names.
    ///
    /// # Errors
    /// `NoCheckpoint`, `Io`, `Damaged`, `Index`.
    pub fn open(dir: &Path) -> Result<Self, WeightsError> {
        let (single, index_path) = (dir.join(SINGLE_FILE), dir.join(INDEX_FILE));
        let mut this = SafetensorsDir { entries: HashMap::new(), files: Vec::new() };
        if index_path.is_file() {
            let shards = index::read(&index_path)?;
            for (file, names) in &shards {
                let found = this.add_file(&dir.join(file))?;
                check_against_index(&index_path, (file, names), &found)?;
            }
        } else if single.is_file() {
            this.add_file(&single)?;
        } else {
            return Err(WeightsError::NoCheckpoint { dir: dir.to_owned() });
        }
        Ok(this)
    }

    /// The files mapped.
    pub fn files(&self) -> &[PathBuf] {
        &self.files
    }

    /// Maps one file and adds its tensors; returns their names.
    fn add_file(&mut self, path: &Path) -> Result<Vec<String>, WeightsError> {
        let io = |source| WeightsError::Io { path: path.to_owned(), source };
        let damaged = |reason: String| WeightsError::Damaged { path: path.to_owned(), reason };
        let file = File::open(path).map_err(io)?;
        if file.metadata().map_err(io)?.len() < LENGTH_BYTES as u64 {
            return Err(damaged("it is too short for a header".into()));
        }
        // SAFETY: the mapping is read-only and private to this process. Another process that changes the file while it
        // is mapped could change the bytes seen; they are only ever read as plain integers, for which any value is
        // valid.
        let map = Arc::new(unsafe { Mmap::map(&file) }.map_err(io)?);
        let (header, metadata) = SafeTensors::read_metadata(&map).map_err(|error| damaged(error.to_string()))?;
        let start = LENGTH_BYTES + header;
        let mut names = Vec::new();
        for (name, info) in metadata.tensors() {
            let range = start + info.data_offsets.0..start + info.data_offsets.1;
            let entry = Entry { file: map.clone(), dtype: info.dtype, shape: info.shape.clone(), range };
            if self.entries.insert(name.clone(), entry).is_some() {
                return Err(damaged(format!("tensor `{name}` also stands in another file")));
            }
            names.push(name);
        }
        self.files.push(path.to_owned());
        Ok(names)
    }
}

/// The index must place in a shard exactly the tensors that are there.
fn check_against_index(
    index_path: &Path,
    (file, wanted): (&String, &std::collections::BTreeSet<String>),
    found: &[String],
) -> Result<(), WeightsError> {
    let found: std::collections::BTreeSet<&String> = found.iter().collect();
    let fault = |reason| Err(WeightsError::Index { path: index_path.to_owned(), reason });
    if let Some(name) = wanted.iter().find(|name| !found.contains(name)) {
        return fault(format!("tensor `{name}` is said to be in {file}, which does not hold it"));
    }
    if let Some(name) = found.iter().find(|name| !wanted.contains(**name)) {
        return fault(format!("{file} holds tensor `{name}`, which the index does not place there"));
    }
    Ok(())
}

impl Entry {
    fn dtype(&self) -> Option<DType> {
        match self.dtype {
            Dtype::F32 => Some(DType::F32),
            Dtype::BF16 => Some(DType::Bf16),
            Dtype::F16 => Some(DType::F16),
            Dtype::U32 => Some(DType::U32),
            Dtype::U8 => Some(DType::U8),
            _ => None,
        }
    }

    fn tensor(&self, spec: TensorSpec) -> Option<HostTensor> {
        let bytes = &self.file[self.range.clone()];
        if bytes.as_ptr().align_offset(spec.dtype.size_bytes()) == 0 {
            let shared: HostBytes = self.file.clone();
            return HostTensor::from_shared(spec, shared, self.range.clone());
        }
        let aligned = AlignedBytes::copy_of(bytes);
        HostTensor::from_shared(spec, Arc::new(aligned), 0..bytes.len())
    }
}

/// A copy of bytes that starts at a multiple of eight, for tensors that do not in their file.
struct AlignedBytes {
    words: Vec<u64>,
}

impl AlignedBytes {
    fn copy_of(bytes: &[u8]) -> Self {
        let mut words = vec![0u64; bytes.len().div_ceil(8)];
        bytemuck::cast_slice_mut::<u64, u8>(&mut words)[..bytes.len()].copy_from_slice(bytes);
        AlignedBytes { words }
    }
}

impl AsRef<[u8]> for AlignedBytes {
    fn as_ref(&self) -> &[u8] {
        bytemuck::cast_slice(&self.words)
    }
}

impl WeightSource for SafetensorsDir {
    fn names(&self) -> Box<dyn Iterator<Item = &str> + '_> {
        Box::new(self.entries.keys().map(String::as_str))
    }

    fn describe(&self, name: &str) -> Option<String> {
        let entry = self.entries.get(name)?;
        match self.spec(name) {
            Some(spec) => Some(spec.to_string()),
            None => Some(format!("{:?} {:?}", entry.dtype, entry.shape)),
        }
    }

    fn spec(&self, name: &str) -> Option<TensorSpec> {
        let entry = self.entries.get(name)?;
        Some(TensorSpec::new(entry.dtype()?, Shape::new(entry.shape.clone())))
    }

    fn get(&self, name: &str) -> Result<HostTensor, WeightsError> {
        let expected = || "a tensor of F32, BF16, F16, U32 or U8".to_owned();
        let entry =
            self.entries.get(name).ok_or_else(|| WeightsError::Missing { name: name.into(), expected: expected() })?;
        self.spec(name).and_then(|spec| entry.tensor(spec)).ok_or_else(|| WeightsError::Mismatch {
            name: name.into(),
            found: format!("{:?} {:?}", entry.dtype, entry.shape),
            expected: expected(),
        })
    }
}

/// The tensors of each file, smallest name first: only for people.
impl std::fmt::Debug for SafetensorsDir {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let names: BTreeMap<&str, Option<String>> = self.names().map(|name| (name, self.describe(name))).collect();
        f.debug_struct("SafetensorsDir").field("files", &self.files).field("tensors", &names).finish()
    }
}
