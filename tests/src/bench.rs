//! A model on a backend that takes runs of several sequences and returns logits.

use std::path::PathBuf;

use perilune_backend::{Backend, BackendError};
use perilune_config::{LayerKind, ModelConfig};
use perilune_cpu::{CpuBackend, CpuOptions};
use perilune_model::{
    BatchPlan, CacheShape, Caches, Effect, FoldBatch, FoldRun, ForwardBatch, Kimi, LogitRows, Run, StepGraphs,
    StepLimits, TapSpec, Workspace,
};
use perilune_tensor::TokenId;
use perilune_weights::{Checkpoint, WeightSource};

/// Tokens per latent block.
const BLOCK: usize = 16;
/// Blocks of each sequence.
const BLOCKS_EACH: usize = 16;

/// The folder of test data.
pub fn data_dir() -> PathBuf {
    PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/data"))
}

/// The shipped demo checkpoint.
pub fn demo_dir() -> PathBuf {
    PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/../models/demo"))
}

/// A loaded model with caches for some sequences, and how far each has come.
pub struct Bench<B: Backend = CpuBackend> {
    backend: B,
    model: Kimi<B>,
    workspace: Workspace<B>,
    batch: ForwardBatch<B>,
    folds: FoldBatch<B>,
    caches: Caches<B>,
    position: Vec<usize>,
    graphs: Option<StepGraphs<B>>,
}

impl Bench {
    /// A model from a source on the CPU, with room for `sequences` of up to 256 tokens.
    pub fn new(config: &ModelConfig, source: &dyn WeightSource, sequences: usize) -> Bench {
        Self::with_options(config, source, sequences, CpuOptions::default())
    }

    /// The same with options of the backend.
    pub fn with_options(
        config: &ModelConfig,
        source: &dyn WeightSource,
        sequences: usize,
        options: CpuOptions,
    ) -> Bench {
        Bench::on(CpuBackend::new(options).unwrap(), config, source, sequences)
    }
}

impl<B: Backend> Bench<B> {
    /// A model from a source on any backend, with room for `sequences` of up to 256 tokens.
    pub fn on(backend: B, config: &ModelConfig, source: &dyn WeightSource, sequences: usize) -> Bench<B> {
        let checkpoint = Checkpoint::open(source, config).unwrap();
        let model = Kimi::load(&backend, config, &checkpoint, &mut |_| {}).unwrap();
        let limits = StepLimits {
            max_rows: 256 * sequences,
            max_runs: sequences,
            max_blocks: BLOCKS_EACH * sequences,
            max_logit_rows: 256 * sequences,
            max_snapshots: sequences,
            max_verify_rows: 8 * sequences,
        };
        let shape = CacheShape::with_room(config, BLOCK, (BLOCKS_EACH * sequences, sequences));
        let workspace = Workspace::new(&backend, config, limits).unwrap();
        let batch = ForwardBatch::new(&backend, limits).unwrap();
        let folds = FoldBatch::new(&backend, limits).unwrap();
        let caches = Caches::new(&backend, config, shape).unwrap();
        Bench { backend, model, workspace, batch, folds, caches, position: vec![0; sequences], graphs: None }
    }

    /// From now on steps that can be recorded are, and replayed.
    pub fn with_graphs(mut self) -> Bench<B> {
        self.graphs = Some(StepGraphs::default());
        self
    }

    /// Recordings so far.
    pub fn recorded(&self) -> usize {
        self.graphs.as_ref().map_or(0, StepGraphs::recorded)
    }

    /// Forgets a sequence.
    pub fn restart(&mut self, sequence: usize) {
        self.position[sequence] = 0;
        let slot = self.slot(sequence);
        self.caches.zero_slot(&self.backend, slot).unwrap();
    }

    /// The next tokens of some sequences in one step; the logits of every token, a row each, per sequence.
    pub fn step(&mut self, runs: &[(usize, &[u32])]) -> Vec<Vec<Vec<f32>>> {
        self.step_with(runs, &[])
    }

    /// The same, where the runs of some sequences are only verified: they have not come further until
    /// [`Bench::fold`].
    pub fn step_with(&mut self, runs: &[(usize, &[u32])], verified: &[usize]) -> Vec<Vec<Vec<f32>>> {
        let tokens: Vec<Vec<TokenId>> =
            runs.iter().map(|(_, ids)| ids.iter().map(|id| TokenId(*id)).collect()).collect();
        // Interleaved, so that neighbouring blocks belong to different sequences.
        let stride = self.position.len();
        let blocks: Vec<Vec<u32>> =
            runs.iter().map(|(s, _)| (0..BLOCKS_EACH).map(|b| (b * stride + s) as u32).collect()).collect();
        let plan = BatchPlan {
            runs: runs
                .iter()
                .enumerate()
                .map(|(i, (sequence, ids))| Run {
                    tokens: &tokens[i],
                    position: self.position[*sequence],
                    slot: self.slot(*sequence) as u32,
                    blocks: &blocks[i],
                    logits: LogitRows::Range(0..ids.len()),
                    snapshots: &[],
                    effect: if verified.contains(sequence) { Effect::Verify } else { Effect::Advance },
                })
                .collect(),
        };
        self.batch.fill(&self.backend, &plan).unwrap();
        let Bench { backend, model, workspace, batch, caches, graphs, .. } = self;
        let mut forward = || model.forward(backend, workspace, batch, caches);
        match graphs {
            Some(graphs) => graphs.run((backend, batch.shape()), forward).unwrap(),
            None => forward().unwrap(),
        }
        for (sequence, ids) in runs.iter().filter(|(sequence, _)| !verified.contains(sequence)) {
            self.position[*sequence] += ids.len();
        }
        let logits = self.read(self.workspace.logits());
        let width = self.model.config().vocab_size;
        let rows = |i: usize| self.batch.logit_rows(i).map(|r| logits[r * width..(r + 1) * width].to_vec()).collect();
        (0..runs.len()).map(rows).collect()
    }

    /// Keeps the first tokens of verified runs of the last step: run, sequence, how many.
    pub fn fold(&mut self, kept: &[(usize, usize, usize)]) {
        let fold = |(run, sequence, rows): &(usize, usize, usize)| FoldRun {
            first_row: self.batch.first_row(*run),
            rows: *rows,
            slot: self.slot(*sequence) as u32,
            snapshots: &[],
        };
        let folds: Vec<FoldRun<'_>> = kept.iter().map(fold).collect();
        self.folds.fill(&self.backend, &folds).unwrap();
        self.model.fold(&self.backend, &self.workspace, &self.folds, &mut self.caches).unwrap();
        kept.iter().for_each(|(_, sequence, rows)| self.position[*sequence] += rows);
    }

    /// Keeps streams of every later step.
    pub fn capture(&mut self, spec: TapSpec) {
        self.try_capture(spec).unwrap();
    }

    /// The same, or why not.
    pub fn try_capture(&mut self, spec: TapSpec) -> Result<(), BackendError> {
        self.workspace.capture((&self.backend, self.model.config()), spec)
    }

    /// The kept streams of a run of the last step: per tap, `H` values per row.
    pub fn taps(&self, run: usize, rows: usize) -> Vec<Vec<f32>> {
        let (hidden, first) = (self.model.config().hidden_size, self.batch.first_row(run));
        let part = |tap: &B::Tensor| self.read(tap)[first * hidden..(first + rows) * hidden].to_vec();
        self.workspace.taps().iter().map(part).collect()
    }

    /// One sequence from its start in chunks of these lengths; the logits of every token.
    pub fn chunked(&mut self, sequence: usize, ids: &[u32], lengths: &[usize]) -> Vec<Vec<f32>> {
        self.restart(sequence);
        let mut rest = ids;
        let mut rows = Vec::new();
        for len in lengths {
            let (chunk, later) = rest.split_at(*len);
            rows.extend(self.step(&[(sequence, chunk)]).remove(0));
            rest = later;
        }
        assert!(rest.is_empty(), "chunks must cover the prompt");
        rows
    }

    /// Recurrent state of a sequence in a KDA layer, `[heads, D, D]`.
    pub fn kda_state(&self, layer: usize, sequence: usize) -> Vec<f32> {
        self.elements(self.caches.kda_state(layer, self.slot(sequence)).unwrap())
    }

    /// Convolution tail of a sequence in a KDA layer, `[3, taps - 1, P]`.
    pub fn kda_conv(&self, layer: usize, sequence: usize) -> Vec<f32> {
        self.elements(self.caches.kda_conv(layer, self.slot(sequence)).unwrap())
    }

    /// Latents of a sequence in an MLA layer, `[tokens, C + r]`.
    pub fn latents(&self, layer: usize, sequence: usize) -> Vec<f32> {
        let (stride, tokens) = (self.position.len(), self.position[sequence]);
        let block = |b: usize| self.elements(self.caches.mla_latent(layer, b * stride + sequence).unwrap());
        let mut all: Vec<f32> = (0..tokens.div_ceil(BLOCK)).flat_map(block).collect();
        all.truncate(tokens * self.model.config().mla.latent_width());
        all
    }

    /// Latents of a sequence in all MLA layers.
    pub fn latents_of_mla(&self, config: &ModelConfig, sequence: usize) -> Vec<Vec<f32>> {
        let mla = |layer: &usize| config.layers[*layer] == LayerKind::Mla;
        (0..config.num_layers()).filter(mla).map(|layer| self.latents(layer, sequence)).collect()
    }

    /// Weights of the chosen experts in the last layer with experts, `K` a row, for the first `rows` rows of the last
    /// step.
    pub fn routing_weights(&self, rows: usize) -> Vec<Vec<f32>> {
        let top_k = self.model.config().moe.unwrap().top_k;
        let all = self.read(self.workspace.routing().unwrap().1);
        all.chunks(top_k).take(rows).map(<[f32]>::to_vec).collect()
    }

    /// Slots lie at the end of the arena.
    fn slot(&self, sequence: usize) -> usize {
        self.caches.shape().slots().count - 1 - sequence
    }

    fn elements(&self, range: std::ops::Range<usize>) -> Vec<f32> {
        let bytes = self.caches.read(&self.backend, range).unwrap().wait().unwrap();
        bytes.chunks_exact(4).map(|b| f32::from_le_bytes([b[0], b[1], b[2], b[3]])).collect()
    }

    fn read(&self, tensor: &B::Tensor) -> Vec<f32> {
        self.backend.download(tensor).unwrap().wait().unwrap().to_f32()
    }
}
