//! The directory for stored prefixes: whose they are, and how much of it may be used.

use std::path::{Path, PathBuf};
use std::time::UNIX_EPOCH;

use perilune_config::ModelConfig;
use perilune_engine::{CacheConfig, DiskConfig, DiskPatience, DiskStore, DiskTier, Identity, IdentityHasher};
use perilune_weights::{SafetensorsDir, WeightSource};

use crate::cli::ModelArgs;
use crate::error::ServerError;
use crate::load::LoadOptions;

/// How much may lie in the directory where nothing is said, in MiB.
const DEFAULT_MIB: usize = 8192;
/// Tensors of which a few bytes are part of a checkpoint's identity.
const SAMPLED_TENSORS: usize = 4096;
/// How many bytes of each, at its beginning, middle and end.
const SAMPLE_BYTES: usize = 64;

/// Where prefixes are kept on disk, and how many.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DiskCache {
    /// The directory.
    pub dir: PathBuf,
    /// Bytes of units that may lie there.
    pub bytes: usize,
}

impl DiskCache {
    /// What flags ask for.
    ///
    /// # Errors
    /// `Flag` for a size without a directory.
    pub fn from_args(args: &ModelArgs) -> Result<Option<Self>, ServerError> {
        match (&args.disk_cache, args.disk_cache_mib) {
            (Some(dir), mib) => {
                let bytes = mib.unwrap_or(DEFAULT_MIB).saturating_mul(1 << 20);
                Ok(Some(DiskCache { dir: dir.clone(), bytes }))
            }
            (None, None) => Ok(None),
            (None, Some(mib)) => Err(ServerError::Flag {
                flag: "--disk-cache-mib",
                value: mib.to_string(),
                rule: "nothing is kept on disk: name a directory with --disk-cache".to_owned(),
            }),
        }
    }
}

/// What a stored unit depends on, besides its tokens.
pub(crate) struct Computed<'a> {
    pub(crate) options: &'a LoadOptions,
    pub(crate) config: &'a ModelConfig,
    pub(crate) source: &'a SafetensorsDir,
    pub(crate) device: &'a str,
    pub(crate) cache: &'a CacheConfig,
}

/// Opens the directory that the options name.
///
/// # Errors
/// `Flag` where it cannot be used.
pub(crate) fn open(disk: &DiskCache, computed: &Computed<'_>) -> Result<DiskTier, ServerError> {
    let refuse = |rule: String| ServerError::Flag { flag: "--disk-cache", value: disk.dir.display().to_string(), rule };
    let (store, found) = DiskStore::open(&disk.dir, identity(computed)?).map_err(|error| refuse(error.to_string()))?;
    let config = DiskConfig { len: disk.bytes / 4, queue_len: DiskTier::queue_len(computed.cache) };
    Ok(DiskTier { store, found, config, patience: DiskPatience::default() })
}

/// Everything that decides the bits of a state: this program's version, the configuration, the weights and how they are
/// rounded, the device with its instruction set and threads, and the sizes of units.
fn identity(computed: &Computed<'_>) -> Result<Identity, ServerError> {
    let Computed { options, config, source, device, cache } = computed;
    let arena = cache.arena;
    let layout = format!(
        "f32 {} blocks of {} tokens, {} elements, slots of {} kept as {:?}",
        if cfg!(target_endian = "little") { "little" } else { "big" },
        cache.block_size,
        arena.block_len,
        arena.slot_len,
        options.state_format,
    );
    let mut hasher = IdentityHasher::default()
        .part("version", env!("CARGO_PKG_VERSION").as_bytes())
        .part("config", format!("{config:?}").as_bytes())
        .part("quantize", format!("{:?}", options.quantize).as_bytes())
        .part("drafts", format!("{:?}", options.drafts).as_bytes())
        .part("device", device.as_bytes())
        .part("layout", layout.as_bytes());
    for file in source.files() {
        hasher = hasher.part("file", file_identity(file)?.as_bytes());
    }
    let mut names: Vec<&str> = source.names().collect();
    names.sort_unstable();
    for name in names.iter().step_by(names.len().div_ceil(SAMPLED_TENSORS).max(1)) {
        // A tensor of a kind that models do not use is told by its name alone.
        let sample = source.get(name).map(|tensor| sample(tensor.bytes())).unwrap_or_default();
        hasher = hasher.part(name, &sample);
    }
    Ok(hasher.finish())
}

fn file_identity(path: &Path) -> Result<String, ServerError> {
    let io = |source| ServerError::Io { what: format!("cannot ask about {}", path.display()), source };
    let meta = path.metadata().map_err(io)?;
    let changed = meta.modified().map_err(io)?.duration_since(UNIX_EPOCH).unwrap_or_default();
    let name = path.file_name().unwrap_or_default().display();
    Ok(format!("{name}, {} bytes, {} ns", meta.len(), changed.as_nanos()))
}

fn sample(bytes: &[u8]) -> Vec<u8> {
    let len = SAMPLE_BYTES.min(bytes.len());
    let at = |start: usize| &bytes[start..start + len];
    [at(0), at((bytes.len() - len) / 2), at(bytes.len() - len)].concat()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn beginnings_middles_and_ends_are_sampled() {
        assert!(sample(&[]).is_empty());
        assert_eq!(sample(&[1, 2]), [1, 2, 1, 2, 1, 2]);
        let bytes: Vec<u8> = (0..1000_u32).map(|i| (i / 4) as u8).collect();
        let sample = sample(&bytes);
        assert_eq!((sample.len(), sample[0], sample[64], sample[191]), (192, 0, 117, 249));
    }
}
