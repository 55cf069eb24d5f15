//! `perilune bench-model`: a random checkpoint of any configuration, to measure speed with.

use perilune_config::ModelConfig;
use perilune_weights::{RandomOptions, Sharding, StoredExperts, write_random_checkpoint};

use crate::cli::{BenchModelArgs, ExpertFormat};
use crate::error::ServerError;

/// Files of a checkpoint are at most this large.
const SHARD_BYTES: u64 = 4 << 30;

/// Writes `config.json` and random weights. The checkpoint has no tokenizer: serve it with `--skip-tokenizer-init`.
///
/// # Errors
/// A configuration that cannot run; `Io`.
pub fn write(args: &BenchModelArgs) -> Result<(), ServerError> {
    let config = ModelConfig::from_file(&args.config)?;
    let io = |what: &str| {
        let what = format!("cannot write {what}");
        move |source| ServerError::Io { what, source }
    };
    std::fs::create_dir_all(&args.out).map_err(io(&args.out.display().to_string()))?;
    let experts = match args.experts {
        ExpertFormat::Bf16 => StoredExperts::Bf16,
        ExpertFormat::Mxfp4 => StoredExperts::Mxfp4,
    };
    let sharding = Sharding::UpTo { bytes: SHARD_BYTES };
    write_random_checkpoint(&config, RandomOptions { seed: args.seed, experts, sharding, prefix: "" }, &args.out)?;
    let copy = args.out.join("config.json");
    std::fs::copy(&args.config, &copy).map_err(io(&copy.display().to_string()))?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    #[test]
    fn what_is_written_can_be_inspected() {
        let folder = tempfile::tempdir().unwrap();
        let out = folder.path().join("model");
        let config = Path::new(env!("CARGO_MANIFEST_DIR")).join("../models/demo/config.json");
        write(&BenchModelArgs { config, out: out.clone(), experts: ExpertFormat::Mxfp4, seed: 1 }).unwrap();
        let args = crate::cli::InspectArgs {
            path: Some(out),
            context_length: None,
            tensors: false,
            cache: None,
            api_key: None,
        };
        assert!(crate::inspect::inspect(&args).unwrap().contains("MXFP4: 672 tensors"));
    }
}
