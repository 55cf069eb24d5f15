//! The trait a device implements.

use std::ops::Range;

use perilune_tensor::{HostTensor, TensorSpec};

use crate::{
    AttnResidual, BackendError, DeviceInfo, DeviceTensor, Download, DraftAppend, DraftAttend, Embed, GatedAct, Kda,
    KdaFold, KdaVerify, Linear, Mla, MoeExperts, MoeRoute, RmsNorm, RotaryTable, RowDistribution, Sample, SampleRow,
    SampledRow, SelectRows, StepGraph, distribution,
};

/// A device that runs the model's operations, in the order they are called, from one thread.
///
/// Every implementation must pass `perilune_conformance::conformance_tests!`.
pub trait Backend: Send + Sync + 'static {
    /// A tensor on this device.
    type Tensor: DeviceTensor;
    /// A recorded step; [`crate::NoGraph`] where there is none.
    type Graph: StepGraph;

    /// Facts about the device.
    fn info(&self) -> &DeviceInfo;

    /// A new tensor filled with zeros.
    ///
    /// # Errors
    /// `OutOfMemory`.
    fn alloc(&self, spec: &TensorSpec) -> Result<Self::Tensor, BackendError>;

    /// A tensor with the contents of `host`; a backend that computes in host memory may share its bytes.
    ///
    /// # Errors
    /// `OutOfMemory`.
    fn upload(&self, host: &HostTensor) -> Result<Self::Tensor, BackendError>;

    /// Overwrites elements of a `U32` tensor from its start.
    ///
    /// # Errors
    /// `Mismatch` where `values` is longer than the tensor.
    fn write_u32(&self, dst: &mut Self::Tensor, values: &[u32]) -> Result<(), BackendError>;

    /// Sets `rows` of a tensor to zero, a row being everything under one index of the outermost dimension.
    ///
    /// # Errors
    /// `Mismatch` where the range leaves the tensor.
    fn zero(&self, dst: &mut Self::Tensor, rows: Range<usize>) -> Result<(), BackendError>;

    /// Copies a whole tensor to the host.
    ///
    /// # Errors
    /// `Device`.
    fn download(&self, src: &Self::Tensor) -> Result<Download<HostTensor>, BackendError>;

    /// Copies elements of a tensor to another place in it. The two must not overlap.
    ///
    /// # Errors
    /// `Mismatch` where they do, or leave the tensor.
    fn copy_within(&self, tensor: &mut Self::Tensor, from: Range<usize>, to: usize) -> Result<(), BackendError>;

    /// Copies elements of a tensor to the host, as they are when everything enqueued before has run.
    ///
    /// # Errors
    /// `Mismatch` where the range leaves the tensor.
    fn read_range(&self, src: &Self::Tensor, elements: Range<usize>) -> Result<Download<Vec<u8>>, BackendError>;

    /// Overwrites elements of a tensor from element `at` on with the bytes of some.
    ///
    /// # Errors
    /// `Mismatch` where they are no whole elements or leave the tensor.
    fn write_range(&self, dst: &mut Self::Tensor, at: usize, bytes: &[u8]) -> Result<(), BackendError>;

    /// Waits for everything enqueued.
    ///
    /// # Errors
    /// The first fault of it.
    fn synchronize(&self) -> Result<(), BackendError>;

    /// Records what `body` enqueues, without running it. `None` where the backend cannot record, or not yet: operations
    /// of these sizes must have run before, so that nothing has to be allocated. `body` may write no index tensor, read
    /// nothing and wait for nothing.
    ///
    /// # Errors
    /// Those of `body`; `Device`.
    fn record(&self, _body: &mut dyn FnMut() -> Result<(), BackendError>) -> Result<Option<Self::Graph>, BackendError> {
        Ok(None)
    }

    /// Enqueues what was recorded; it sees what its tensors hold by then.
    ///
    /// # Errors
    /// `Unsupported` where the backend cannot record; `Device`.
    fn replay(&self, _graph: &Self::Graph) -> Result<(), BackendError> {
        Err(BackendError::Unsupported { op: "replay", what: "recording a step".into() })
    }

    /// Token embedding.
    ///
    /// # Errors
    /// `Mismatch`; as for every operation below.
    fn embed(&self, op: Embed<'_, Self::Tensor>) -> Result<(), BackendError>;

    /// Row gather.
    ///
    /// # Errors
    /// `Mismatch`.
    fn select_rows(&self, op: SelectRows<'_, Self::Tensor>) -> Result<(), BackendError>;

    /// Several matrix products of one input.
    ///
    /// # Errors
    /// `Mismatch`; `Unsupported` for a weight format not in [`DeviceInfo::formats`].
    fn linear(&self, op: Linear<'_, '_, Self::Tensor>) -> Result<(), BackendError>;

    /// RMS normalisation.
    ///
    /// # Errors
    /// `Mismatch`.
    fn rms_norm(&self, op: RmsNorm<'_, Self::Tensor>) -> Result<(), BackendError>;

    /// Gated activation.
    ///
    /// # Errors
    /// `Mismatch`.
    fn gated_act(&self, op: GatedAct<'_, Self::Tensor>) -> Result<(), BackendError>;

    /// Attention residual mixture.
    ///
    /// # Errors
    /// `Mismatch`.
    fn attn_residual(&self, op: AttnResidual<'_, Self::Tensor>) -> Result<(), BackendError>;

    /// KDA over runs of any length.
    ///
    /// # Errors
    /// `Mismatch`, also for a slot or row out of range where the backend can see it.
    fn kda_prefill(&self, op: Kda<'_, Self::Tensor>) -> Result<(), BackendError>;

    /// KDA over short runs (1 to 8 rows): decode and verify.
    ///
    /// # Errors
    /// As [`Backend::kda_prefill`].
    fn kda_decode(&self, op: Kda<'_, Self::Tensor>) -> Result<(), BackendError>;

    /// The outputs that [`Backend::kda_decode`] would give, bit for bit, without its effect on the state; stores what a
    /// fold needs.
    ///
    /// # Errors
    /// As [`Backend::kda_prefill`].
    fn kda_verify(&self, op: KdaVerify<'_, Self::Tensor>) -> Result<(), BackendError>;

    /// Leaves the states that [`Backend::kda_decode`] of the first rows of a verification would leave, bit for bit.
    ///
    /// # Errors
    /// As [`Backend::kda_prefill`].
    fn kda_fold(&self, op: KdaFold<'_, Self::Tensor>) -> Result<(), BackendError>;

    /// MLA over runs of any length.
    ///
    /// # Errors
    /// `Mismatch`, also for a block out of range where the backend can see it.
    fn mla_prefill(&self, op: Mla<'_, Self::Tensor>) -> Result<(), BackendError>;

    /// MLA over short runs (1 to 8 rows).
    ///
    /// # Errors
    /// As [`Backend::mla_prefill`].
    fn mla_decode(&self, op: Mla<'_, Self::Tensor>) -> Result<(), BackendError>;

    /// Cosines and sines of a step's positions, for draft models.
    ///
    /// # Errors
    /// `Mismatch`; `Unsupported` where the backend runs no draft models, as for the two operations below.
    fn rotary_table(&self, _op: RotaryTable<'_, Self::Tensor>) -> Result<(), BackendError> {
        Err(no_drafts("rotary_table"))
    }

    /// Stores the keys and values of a draft layer.
    ///
    /// # Errors
    /// As [`Backend::rotary_table`]; `Mismatch`, also for a block out of range where the backend can see it.
    fn draft_append(&self, _op: DraftAppend<'_, Self::Tensor>) -> Result<(), BackendError> {
        Err(no_drafts("draft_append"))
    }

    /// Attention of a draft layer.
    ///
    /// # Errors
    /// As [`Backend::draft_append`].
    fn draft_attend(&self, _op: DraftAttend<'_, Self::Tensor>) -> Result<(), BackendError> {
        Err(no_drafts("draft_attend"))
    }

    /// Expert choice.
    ///
    /// # Errors
    /// `Mismatch`.
    fn moe_route(&self, op: MoeRoute<'_, Self::Tensor>) -> Result<(), BackendError>;

    /// Routed experts.
    ///
    /// # Errors
    /// `Mismatch`.
    fn moe_experts(&self, op: MoeExperts<'_, Self::Tensor>) -> Result<(), BackendError>;

    /// Sampling and log-probabilities, one result per row asked for, in their order.
    ///
    /// # Errors
    /// `Mismatch`.
    fn sample(&self, op: Sample<'_, Self::Tensor>) -> Result<Download<Vec<SampledRow>>, BackendError>;

    /// What [`Backend::sample`] would draw each row from. Provided: reads the rows and computes on the host.
    ///
    /// # Errors
    /// `Mismatch`.
    fn distributions(&self, op: Sample<'_, Self::Tensor>) -> Result<Download<Vec<RowDistribution>>, BackendError> {
        let vocabulary = op.dims()?;
        let read = |row: &SampleRow| {
            let start = row.row * vocabulary;
            self.read_range(op.logits, start..start + vocabulary)
        };
        let reads = op.rows.iter().map(read).collect::<Result<Vec<_>, _>>()?;
        let compute = |(row, read): (&SampleRow, Download<Vec<u8>>)| {
            let bytes = read.wait()?;
            let logits: Vec<f32> =
                bytes.chunks_exact(4).map(|b| f32::from_le_bytes([b[0], b[1], b[2], b[3]])).collect();
            Ok(distribution(row, &logits))
        };
        Ok(Download::ready(op.rows.iter().zip(reads).map(compute).collect::<Result<_, BackendError>>()?))
    }
}

fn no_drafts(op: &'static str) -> BackendError {
    BackendError::Unsupported { op, what: "the attention of draft models".into() }
}
