//! Reads every stored value once and refuses what is not finite.
//!
//! Runs on several threads over pieces of the tensors; on a mapped checkpoint it also brings the pages into memory.
//! Packed MXFP4 nibbles have no non-finite values, so only their scales are looked at.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc;

use perilune_tensor::{DType, HostTensor};

use crate::checkpoint::Stored;
use crate::{Checkpoint, Progress, Stage, WeightsError};

/// Bytes looked at between two checks for a bad value.
const BLOCK_BYTES: usize = 1 << 14;

/// Checks every tensor of a model; `report` is called on this thread as tensors are finished.
///
/// # Errors
/// `Value` for the bad element of the first tensor (by name) that has one; `Io` as reading does.
pub fn check_finite(checkpoint: &Checkpoint<'_>, report: &mut dyn FnMut(Progress)) -> Result<(), WeightsError> {
    let mut names: Vec<&str> = checkpoint.stored().flat_map(stored_names).collect();
    names.sort_unstable();
    let threads = std::thread::available_parallelism().map_or(1, usize::from).min(names.len().max(1));
    let next = AtomicUsize::new(0);
    let (sender, receiver) = mpsc::channel();
    let mut failures = Vec::new();
    std::thread::scope(|scope| {
        for _ in 0..threads {
            let (sender, next, names) = (sender.clone(), &next, &names);
            scope.spawn(move || {
                while let Some(name) = names.get(next.fetch_add(1, Ordering::Relaxed)) {
                    if sender.send(check_tensor(checkpoint, name).map_err(|error| (*name, error))).is_err() {
                        return;
                    }
                }
            });
        }
        drop(sender);
        let mut progress = Progress::start(Stage::Checking, names.len(), checkpoint.size_bytes());
        for outcome in receiver {
            match outcome {
                Ok(bytes) => {
                    progress.tensors_done += 1;
                    progress.bytes_done += bytes;
                    report(progress);
                }
                Err(failure) => failures.push(failure),
            }
        }
    });
    failures.sort_by(|a, b| a.0.cmp(b.0));
    failures.into_iter().next().map_or(Ok(()), |(_, error)| Err(error))
}

fn stored_names(stored: &Stored) -> impl Iterator<Item = &str> {
    let (first, second) = match stored {
        Stored::Plain(name) => (name.as_str(), None),
        Stored::Packed { data, scales } => (data.as_str(), Some(scales.as_str())),
    };
    std::iter::once(first).chain(second)
}

/// Checks one tensor; returns its size in bytes.
fn check_tensor(checkpoint: &Checkpoint<'_>, name: &str) -> Result<u64, WeightsError> {
    let tensor = checkpoint.source().get(name)?;
    if let Some(element) = first_bad(name, &tensor) {
        let size = tensor.spec().dtype.size_bytes();
        let bytes = &tensor.bytes()[element * size..(element + 1) * size];
        return Err(WeightsError::Value {
            name: name.into(),
            element,
            found: shown(tensor.spec().dtype, bytes),
            rule: if size == 1 { "a scale of 255 is not a number" } else { "every weight must be a finite number" },
        });
    }
    Ok(tensor.spec().size_bytes() as u64)
}

/// Index of the first value that is not finite.
fn first_bad(name: &str, tensor: &HostTensor) -> Option<usize> {
    let bytes = tensor.bytes();
    match tensor.spec().dtype {
        DType::F32 => position::<4>(bytes, |b| u32::from_le_bytes(b) & 0x7f80_0000 == 0x7f80_0000),
        DType::Bf16 => position::<2>(bytes, |b| u16::from_le_bytes(b) & 0x7f80 == 0x7f80),
        DType::F16 => position::<2>(bytes, |b| u16::from_le_bytes(b) & 0x7c00 == 0x7c00),
        DType::U8 if name.ends_with("_scale") => position::<1>(bytes, |b| b[0] == u8::MAX),
        DType::U8 | DType::U32 => None,
    }
}

/// Index of the first element for which `bad` holds, blockwise so that the usual case needs no branch per element.
fn position<const N: usize>(bytes: &[u8], bad: impl Fn([u8; N]) -> bool) -> Option<usize> {
    let is_bad = |chunk: &[u8]| chunk.first_chunk::<N>().is_some_and(|chunk| bad(*chunk));
    for (block, part) in bytes.chunks(BLOCK_BYTES).enumerate() {
        if part.chunks_exact(N).fold(false, |any, chunk| any | is_bad(chunk)) {
            return part.chunks_exact(N).position(is_bad).map(|at| block * (BLOCK_BYTES / N) + at);
        }
    }
    None
}

fn shown(dtype: DType, bytes: &[u8]) -> String {
    match (dtype, bytes) {
        (DType::F32, &[a, b, c, d]) => f32::from_le_bytes([a, b, c, d]).to_string(),
        (DType::Bf16, &[a, b]) => half::bf16::from_le_bytes([a, b]).to_string(),
        (DType::F16, &[a, b]) => half::f16::from_le_bytes([a, b]).to_string(),
        _ => format!("{bytes:?}"),
    }
}
