//! A tiny target and a random draft for it, both on the CPU, and several sequences.

use perilune_backend::{Backend, Choice, Penalties, SampleRow};
use perilune_config::{DraftConfig, ModelConfig};
use perilune_cpu::{CpuBackend, CpuOptions};
use perilune_model::{
    BatchPlan, CacheShape, Caches, Effect, ForwardBatch, Kimi, LateTaps, LogitRows, Run, StepLimits, Workspace,
};
use perilune_speculate::{Draft, DraftLimits, DraftRequest, DraftSource, DsparkDraft, Proposal, TappedStep};
use perilune_tensor::TokenId;
use perilune_tests::{data_dir, tiny_checkpoint};
use perilune_weights::{Checkpoint, MemorySource, RandomOptions, SafetensorsDir, write_random_draft};
use serde_json::{Value, json};

use crate::oracle::{Oracle, Row};

const BLOCK_SIZE: usize = 4;
/// Blocks that each sequence has.
const BLOCKS: u32 = 12;
const MAX_ROWS: usize = 40;

/// A draft of grouped heads for the tiny targets.
pub fn spec_forge() -> Value {
    json!({
        "architectures": ["DSparkDraftModel"], "model_type": "qwen3", "block_size": 7, "hidden_size": 32,
        "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2,
        "head_dim": 10, "rms_norm_eps": 1e-5, "rope_theta": 10000.0, "vocab_size": 64, "num_target_layers": 7,
        "dflash_config": {"target_layer_ids": [1, 2, 6], "mask_token_id": 60, "markov_rank": 8,
            "markov_head_type": "vanilla", "enable_confidence_head": true, "confidence_head_with_markov": true},
    })
}

/// A draft of latent heads for the tiny targets.
pub fn k3_dspark() -> Value {
    json!({
        "model_type": "k3_dspark", "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 3,
        "num_attention_heads": 3, "q_lora_rank": 12, "kv_lora_rank": 14, "qk_nope_head_dim": 9, "qk_rope_head_dim": 6,
        "v_head_dim": 11, "rms_norm_eps": 1e-5, "vocab_size": 64, "target_layer_ids": [0, 3], "block_size": 7,
        "num_target_layers": 2, "mask_token_id": 61, "markov_rank": 8, "markov_head_type": "vanilla",
        "enable_confidence_head": true, "confidence_head_with_markov": true,
    })
}

/// The target's configuration.
pub fn target(tag: &str) -> ModelConfig {
    let text = std::fs::read_to_string(data_dir().join("vectors.json")).unwrap();
    let all: Value = serde_json::from_str(&text).unwrap();
    ModelConfig::from_json_str(&all[tag]["config"].to_string()).unwrap()
}

pub struct Rig {
    pub backend: CpuBackend,
    kimi: Kimi<CpuBackend>,
    workspace: Workspace<CpuBackend>,
    batch: ForwardBatch<CpuBackend>,
    pub caches: Caches<CpuBackend>,
    pub draft: DsparkDraft<CpuBackend>,
    pub oracle: Oracle,
    late: LateTaps<CpuBackend>,
    _files: tempfile::TempDir,
}

impl Rig {
    /// A draft with this configuration for the tiny `k3` target.
    pub fn new(draft: &Value) -> Rig {
        let (backend, config) = (CpuBackend::new(CpuOptions::default()).unwrap(), target("k3"));
        let source: MemorySource = tiny_checkpoint(&config, "k3");
        let kimi = Kimi::load(&backend, &config, &Checkpoint::open(&source, &config).unwrap(), &mut |_| {}).unwrap();
        let draft_config = DraftConfig::from_json_str(&draft.to_string()).unwrap();
        let files = tempfile::tempdir().unwrap();
        write_random_draft(&draft_config, RandomOptions::default(), files.path()).unwrap();
        let tensors = SafetensorsDir::open(files.path()).unwrap();
        let checkpoint = Checkpoint::open_draft(&tensors, &draft_config).unwrap();
        let limits = DraftLimits { max_rows: MAX_ROWS, max_sequences: 2, max_blocks: 3 * BLOCKS as usize };
        let loaded = DraftSource { config: &draft_config, checkpoint: &checkpoint, target: &config };
        let dspark = DsparkDraft::load(&backend, loaded, limits).unwrap();
        let limits = StepLimits {
            max_rows: MAX_ROWS,
            max_runs: 4,
            max_blocks: 4 * BLOCKS as usize,
            max_logit_rows: 4,
            max_snapshots: 1,
            max_verify_rows: 16,
        };
        let mut workspace = Workspace::new(&backend, &config, limits).unwrap();
        let context_len = Draft::<CpuBackend>::context_len(&dspark);
        workspace.capture((&backend, &config), Draft::<CpuBackend>::taps(&dspark).unwrap().clone()).unwrap();
        let shape = CacheShape::with_draft(&config, (BLOCK_SIZE, context_len), 4 << 20);
        Rig {
            batch: ForwardBatch::new(&backend, limits).unwrap(),
            caches: Caches::new(&backend, &config, shape).unwrap(),
            oracle: Oracle::new(draft, &tensors, &source),
            late: LateTaps::new(&backend, (MAX_ROWS, limits)).unwrap(),
            draft: dspark,
            workspace,
            kimi,
            backend,
            _files: files,
        }
    }

    /// Blocks of a sequence, scattered among those of the others.
    pub fn blocks(sequence: u32) -> Vec<u32> {
        (0..BLOCKS).map(|block| block * 5 % BLOCKS * 4 + sequence).collect()
    }

    /// Runs the next tokens of some sequences, `(sequence, tokens, position)`, and lets the draft see them; returns the
    /// features that the oracle makes of each run's streams.
    pub fn step(&mut self, runs: &[(u32, &[u32], usize)]) -> Vec<Vec<Row>> {
        self.step_as(runs, Effect::Advance)
    }

    pub fn step_as(&mut self, runs: &[(u32, &[u32], usize)], effect: Effect) -> Vec<Vec<Row>> {
        self.forward(runs, effect);
        let step = TappedStep { rows: self.batch.tapped(), taps: self.workspace.taps(), caches: &mut self.caches };
        self.draft.observe(&self.backend, step).unwrap();
        let streams: Vec<Vec<f32>> =
            self.workspace.taps().iter().map(|t| self.backend.download(t).unwrap().wait().unwrap().to_f32()).collect();
        let width = self.kimi.config().hidden_size;
        let row = |row: usize| -> Row {
            let taps: Vec<Row> = streams
                .iter()
                .map(|stream| stream[row * width..(row + 1) * width].iter().map(|v| f64::from(*v)).collect())
                .collect();
            self.oracle.feature(&taps)
        };
        let rows = |i: usize| (0..runs[i].1.len()).map(|t| row(self.batch.first_row(i) + t)).collect();
        (0..runs.len()).map(rows).collect()
    }

    /// Runs the next token of some sequences, `(sequence, token, position)`, which the draft sees later.
    pub fn step_late(&mut self, runs: &[(u32, u32, usize)]) {
        assert!(self.late.has_room(runs.len()));
        self.late.make_way((&self.backend, runs.len()), &mut self.workspace).unwrap();
        let tokens: Vec<[u32; 1]> = runs.iter().map(|run| [run.1]).collect();
        let runs: Vec<(u32, &[u32], usize)> =
            runs.iter().zip(&tokens).map(|(run, token)| (run.0, &token[..], run.2)).collect();
        self.forward(&runs, Effect::Advance);
        self.late.add();
    }

    /// Lets the draft see what was late; `positions` are those of the last step.
    pub fn settle(&mut self, positions: &[usize]) {
        let rows = self.late.take((&self.backend, &self.batch), positions.iter().copied()).unwrap();
        let step = TappedStep { rows, taps: self.workspace.taps(), caches: &mut self.caches };
        self.draft.observe(&self.backend, step).unwrap();
    }

    /// Everything that sequences have left behind.
    pub fn arena(&mut self) -> Vec<f32> {
        let (arena, _) = self.caches.draft_context();
        self.backend.download(arena).unwrap().wait().unwrap().to_f32()
    }

    fn forward(&mut self, runs: &[(u32, &[u32], usize)], effect: Effect) {
        let tokens: Vec<Vec<TokenId>> = runs.iter().map(|run| run.1.iter().map(|id| TokenId(*id)).collect()).collect();
        let blocks: Vec<Vec<u32>> = runs.iter().map(|run| Rig::blocks(run.0)).collect();
        let last_slot = self.caches.shape().slots().count as u32 - 1;
        let run = |i: usize| Run {
            tokens: &tokens[i],
            position: runs[i].2,
            slot: last_slot - runs[i].0,
            blocks: &blocks[i],
            logits: LogitRows::Last,
            snapshots: &[],
            effect,
        };
        let plan = BatchPlan { runs: (0..runs.len()).map(run).collect() };
        self.batch.fill(&self.backend, &plan).unwrap();
        self.kimi.forward(&self.backend, &mut self.workspace, &self.batch, &mut self.caches).unwrap();
    }

    /// Proposals for sequences with these histories: `(sequence, history, drafts)`.
    pub fn propose(&mut self, asked: &[(u32, &[u32], usize)], rows: &[SampleRow]) -> Vec<Proposal> {
        let histories: Vec<Vec<TokenId>> =
            asked.iter().map(|ask| ask.1.iter().map(|id| TokenId(*id)).collect()).collect();
        let blocks: Vec<Vec<u32>> = asked.iter().map(|ask| Rig::blocks(ask.0)).collect();
        let request = |i: usize| DraftRequest {
            history: &histories[i],
            // As many as the tokens before the anchor need.
            blocks: &blocks[i][..(histories[i].len() - 1).div_ceil(BLOCK_SIZE)],
            max_drafts: asked[i].2,
            rows,
        };
        let requests: Vec<DraftRequest<'_>> = (0..asked.len()).map(request).collect();
        self.draft.propose((&self.backend, &self.kimi), &requests, &mut self.caches).unwrap()
    }
}

/// How the target draws eight tokens.
pub fn rows(temperature: f32, seed: u64) -> Vec<SampleRow> {
    let row = |step| SampleRow {
        row: 0,
        choice: Choice::Draw { temperature, top_k: 0, top_p: 1.0, min_p: 0.0, seed, step },
        bias: vec![],
        banned: vec![],
        allowed: None,
        penalties: Penalties { repetition: 1.0, presence: 0.0, frequency: 0.0 },
        counts: vec![],
        top_logprobs: None,
    };
    (0..8).map(row).collect()
}
