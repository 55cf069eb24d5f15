//! `train-draft`: the target answers, then reads what it said, and a draft learns from it.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use perilune_config::ModelConfig;
use perilune_model::{Kimi, TapSpec, TapStream};
use perilune_tokenizer::{ChatRenderer, Tokenizer};
use perilune_train::{
    AnswerOptions, Answered, Capture, DraftConfig, Place, Progress, Prompt, PromptReader, Run, RunOptions, Schedule,
    Start, TargetEnds, TrainError, Yarn, answer_prompts, read_config, read_prompts,
};
use perilune_weights::{Checkpoint, SafetensorsDir};
use serde_json::Value;

use crate::backend::{Measured, WithBackend};
use crate::cli::{DraftDevice, TapStreamKind, TrainDraftArgs};
use crate::drafting::DraftOptions;
use crate::error::ServerError;
use crate::load::{LoadOptions, WeightCheck, load, server_error};
use crate::model_dir::default_model;
use crate::progress::Show;

/// Prompt tokens that an answer's limit leaves room for.
const PROMPT_ROOM: usize = 1024;
/// Of the reserved tokens, the one that published drafts use as their mask.
const MASK_SLOT: usize = 240;
/// Base of the rotations, as published.
const ROPE_THETA: f64 = 10_000.0;

/// Trains, or measures; returns what is printed.
///
/// # Errors
/// What is wrong with flags, files, checkpoint or device, in a sentence.
pub fn run(args: &TrainDraftArgs) -> Result<String, ServerError> {
    set_threads(args.threads)?;
    let dir = match &args.model {
        Some(dir) => dir.clone(),
        None => default_model()?,
    };
    let config = ModelConfig::from_dir(&dir)?;
    let options = options(args, (&dir, &config))?;
    let mut prompts = prompts(&dir, &args.prompts)?;
    prompts.truncate(args.max_prompts.unwrap_or(prompts.len()));
    if !args.evaluate {
        options.prepare()?;
    }
    let loading = load_options(args, dir.clone(), &options);
    let answered = answers(args, (&options, &prompts), &loading)?;
    tracing::info!(prompts = prompts.len(), parameters = options.draft.num_parameters(), "all prompts are answered");
    let target = target_json(&dir)?;
    let work = Work { args, options: &options, dir: &dir, config: &config, answered: &answered, target: &target };
    let report = args.backend.with(loading.device(), work)?;
    Ok(format!("{report:#}\n"))
}

/// burn's threads are rayon's.
fn set_threads(threads: Option<usize>) -> Result<(), ServerError> {
    let Some(threads) = threads else { return Ok(()) };
    rayon::ThreadPoolBuilder::new().num_threads(threads).build_global().map_err(|error| ServerError::Flag {
        flag: "--threads",
        value: threads.to_string(),
        rule: error.to_string(),
    })
}

/// What is asked for; the draft's shape fits the target.
fn options(args: &TrainDraftArgs, target: (&Path, &ModelConfig)) -> Result<RunOptions, ServerError> {
    let draft = if args.evaluate { read_config(&args.out, target.1)? } else { draft_config(args, target)? };
    let options = RunOptions {
        draft,
        schedule: Schedule {
            steps: args.steps,
            batch: args.batch,
            anchors: args.anchors,
            learning_rate: args.lr,
            warmup: args.warmup,
            seed: args.seed,
        },
        answers: AnswerOptions {
            temperature: args.temperature as f32,
            more: if args.evaluate { 0 } else { args.more_answers },
            more_temperature: args.more_temperature as f32,
            max_tokens: args.max_answer_tokens,
            seed: args.seed,
            concurrency: args.concurrency,
        },
        held_out: args.held_out,
        measure_every: args.measure_every,
        save_every: args.save_every,
        max_tokens: args.max_answer_tokens + PROMPT_ROOM,
        out: args.out.clone(),
        start: if args.resume { Start::Resume } else { Start::Fresh },
        show: perilune_train::Show::Stderr,
    };
    options.draft.check()?;
    Ok(options)
}

fn draft_config(args: &TrainDraftArgs, (dir, target): (&Path, &ModelConfig)) -> Result<DraftConfig, ServerError> {
    let heads = args.heads.unwrap_or((target.hidden_size / args.head_dim.max(1)).max(1));
    let mask_token = match args.mask_token {
        Some(id) => id,
        None => mask_token(dir, target.vocab_size)?,
    };
    Ok(DraftConfig {
        hidden: target.hidden_size,
        vocabulary: target.vocab_size,
        num_layers: args.layers,
        num_heads: heads,
        num_kv_heads: args.kv_heads.unwrap_or((heads / 4).max(1)),
        head_dim: args.head_dim,
        intermediate: args.intermediate.unwrap_or(2 * target.hidden_size),
        block_size: args.block_size,
        markov_rank: args.markov_rank,
        mask_token,
        taps: if args.taps.is_empty() { spread(target.num_layers()) } else { args.taps.clone() },
        stream: match args.tap_stream {
            TapStreamKind::AttnRes => TapStream::AttnRes,
            TapStreamKind::Prefix => TapStream::Prefix,
        },
        eps: 1e-5,
        rope: Yarn { theta: ROPE_THETA, factor: args.rope_factor.max(1.0), original: args.rope_original },
        num_target_layers: target.num_layers(),
    })
}

/// Up to five layers, from early to nearly the last.
fn spread(layers: usize) -> Vec<usize> {
    let mut taps: Vec<usize> = [1, 3, 5, 7, 9].iter().map(|tenth| layers * tenth / 10).collect();
    taps.dedup();
    taps
}

/// A reserved token: the published slot where the vocabulary has it, else its last one.
fn mask_token(dir: &Path, vocab_size: usize) -> Result<u32, ServerError> {
    let slot = Tokenizer::from_dir(dir)?.num_base_tokens() + MASK_SLOT;
    let id = if slot < vocab_size { slot } else { vocab_size.saturating_sub(1) };
    Ok(u32::try_from(id).unwrap_or(u32::MAX))
}

fn load_options(args: &TrainDraftArgs, dir: PathBuf, options: &RunOptions) -> LoadOptions {
    LoadOptions {
        dir,
        backend: args.backend,
        threads: args.threads,
        kernels: args.kernels.clone(),
        context_length: Some(options.max_tokens),
        mem_fraction: 0.8,
        chunked_prefill_size: 512,
        max_running_requests: args.concurrency,
        max_queued_requests: args.concurrency,
        random_seed: None,
        block_size: 64,
        prefixes: perilune_engine::Prefixes::Forget,
        host_cache_bytes: Some(0),
        state_format: perilune_engine::StateFormat::F32,
        disk_cache: None,
        checkpoint_interval: Some(0),
        drafts: DraftOptions::off(),
        quantize: None,
        weight_check: WeightCheck::Full,
        token_ids_only: false,
    }
}

/// Reads the prompts: a bad line is found before anything slow begins.
fn prompts(dir: &Path, path: &Path) -> Result<Vec<Prompt>, ServerError> {
    let tokenizer = Arc::new(Tokenizer::from_dir(dir)?);
    let chat = ChatRenderer::new(tokenizer.clone()).ok();
    Ok(read_prompts(PromptReader { tokenizer: &tokenizer, chat: chat.as_ref() }, path)?)
}

/// Has the prompts answered by an engine that ends before the training begins.
fn answers(
    args: &TrainDraftArgs,
    (options, prompts): (&RunOptions, &[Prompt]),
    loading: &LoadOptions,
) -> Result<Vec<Answered>, ServerError> {
    let served = load(loading, Show::Stderr)?;
    let mut progress = Progress::new("answers", prompts.len() * options.answers.per_prompt(), options.show);
    let path = options.answers_path();
    let store = (!args.evaluate).then_some(path.as_path());
    let answered = answer_prompts(&served.engine, (prompts, &options.answers), store, &mut |done| {
        progress.at(done, "so far");
    });
    progress.finish();
    served.engine.shutdown();
    served.engine.join();
    Ok(answered?)
}

/// The part of the target's configuration that names its tokens.
fn target_json(dir: &Path) -> Result<Value, ServerError> {
    let path = dir.join("config.json");
    let text = std::fs::read_to_string(&path).map_err(|source| TrainError::Io { path: path.clone(), source })?;
    let whole: Value =
        serde_json::from_str(&text).map_err(|error| TrainError::File { path, problem: error.to_string() })?;
    Ok(whole.get("text_config").cloned().unwrap_or(whole))
}

struct Work<'a> {
    args: &'a TrainDraftArgs,
    options: &'a RunOptions,
    dir: &'a Path,
    config: &'a ModelConfig,
    answered: &'a [Answered],
    target: &'a Value,
}

impl WithBackend for Work<'_> {
    type Output = Value;

    fn run<B: Measured>(self, backend: B) -> Result<Value, ServerError> {
        let source = SafetensorsDir::open(self.dir)?;
        let checkpoint = Checkpoint::open(&source, self.config)?;
        let model = Kimi::load(&backend, self.config, &checkpoint, &mut |_| {}).map_err(server_error)?;
        let ends = TargetEnds::read(self.config, &checkpoint)?;
        let taps = TapSpec { layers: self.options.draft.taps.clone(), stream: self.options.draft.stream };
        let mut capture = Capture::new((backend, model), taps, self.options.max_tokens)?;
        let place = Place::training(device(self.args.draft_device));
        let run = Run { options: self.options, capture: &mut capture, ends, target: self.target, place };
        let report = if self.args.evaluate { run.measure(self.answered) } else { run.train(self.answered) };
        Ok(report?)
    }
}

fn device(asked: DraftDevice) -> perilune_train::Device {
    match asked {
        DraftDevice::Cpu => perilune_train::Device::flex(),
        #[cfg(feature = "train-cuda")]
        DraftDevice::Cuda => perilune_train::Device::cuda(0),
        #[cfg(feature = "train-rocm")]
        DraftDevice::Rocm => perilune_train::Device::rocm(0),
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;
    use crate::cli::{Cli, Command};

    fn args(more: &[&str]) -> TrainDraftArgs {
        let line = ["perilune", "train-draft", "--prompts", "p.jsonl"].iter().chain(more);
        let Some(Command::TrainDraft(args)) = Cli::try_parse_from(line).unwrap().command else { unreachable!() };
        *args
    }

    fn shape(more: &[&str]) -> DraftConfig {
        let dir = default_model().unwrap();
        let config = ModelConfig::from_dir(&dir).unwrap();
        draft_config(&args(more), (&dir, &config)).unwrap()
    }

    #[test]
    fn what_is_not_said_follows_from_the_target() {
        let draft = shape(&["--out", "d"]);
        assert_eq!((draft.hidden, draft.vocabulary, draft.num_heads, draft.num_kv_heads), (192, 2272, 3, 1));
        assert_eq!(draft.mask_token, 2016 + 240);
        assert_eq!(draft.taps, [0, 2, 4, 5, 7]);
        draft.check().unwrap();
        let draft = shape(&["--out", "d", "--taps", "1,4,7", "--intermediate", "99", "--kv-heads", "3"]);
        assert_eq!((draft.taps, draft.intermediate, draft.num_kv_heads), (vec![1, 4, 7], 99, 3));
    }

    #[test]
    fn missing_files_and_bad_shapes_are_refused_with_a_sentence() {
        let dir = tempfile::tempdir().unwrap();
        let out = dir.path().join("draft");
        let refused = |more: &[&str]| {
            let all = [&["--out", out.to_str().unwrap()], more].concat();
            run(&args(&all)).unwrap_err().to_string()
        };
        let nowhere = dir.path().join("nowhere");
        assert!(refused(&["--model", nowhere.to_str().unwrap()]).contains("nowhere"));
        assert_eq!(refused(&["--kv-heads", "2"]), "--kv-heads is 2; it must divide --heads, 3");
        assert!(
            refused(&["--taps", "1,8"])
                .starts_with("--taps is [1, 8]; one or more layers of the target in rising order, 0 to 7")
        );
        assert!(refused(&["--evaluate"]).contains("config.json"));
        assert!(!out.exists());
        assert!(refused(&[]).starts_with("p.jsonl: "));
    }
}
