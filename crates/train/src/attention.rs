//! Grouped-query attention of blocks: every row sees the context before its anchor and all rows of its own block.
//!
//! All blocks of a sequence go through one masked product with the context, and one batched product with themselves. The
//! two share a softmax by their sums, so scores of rows against foreign blocks never exist.

use burn::module::{Module, Param};
use burn::tensor::Tensor;

use crate::draft::{deviation, normal, ones, project};
use crate::draft_config::DraftConfig;
use crate::place::Place;
use crate::rope::Rotation;

/// Weights of an attention.
#[derive(Module, Debug)]
pub struct Attention {
    pub(crate) q: Param<Tensor<2>>,
    pub(crate) k: Param<Tensor<2>>,
    pub(crate) v: Param<Tensor<2>>,
    pub(crate) o: Param<Tensor<2>>,
    pub(crate) q_norm: Param<Tensor<1>>,
    pub(crate) k_norm: Param<Tensor<1>>,
}

/// What all layers read of the tokens before the anchors.
#[derive(Debug)]
pub(crate) struct Context {
    /// `[T, H]`.
    pub(crate) features: Tensor<2>,
    pub(crate) rotation: Rotation,
    /// Added to scores, `[1, 1, R, T]`: 0 where a row may look, very low where not.
    pub(crate) visible: Tensor<4>,
}

/// Sizes of one call: key heads, queries per key head, head width, rows, rows per block.
#[derive(Debug, Clone, Copy)]
struct Sizes {
    kv: usize,
    group: usize,
    dim: usize,
    rows: usize,
    block: usize,
}

/// Root-mean-square norm of each head.
fn head_norm(x: Tensor<3>, weight: &Param<Tensor<1>>, eps: f64) -> Tensor<3> {
    let scale = x.clone().square().mean_dim(2).add_scalar(eps).sqrt().recip();
    x * scale * weight.val().unsqueeze()
}

impl Attention {
    pub(crate) fn new(config: &DraftConfig, place: &Place) -> Self {
        let (h, q, kv) = (config.hidden, config.num_heads * config.head_dim, config.num_kv_heads * config.head_dim);
        let residual = deviation(q) / (2.0 * config.num_layers as f64).sqrt();
        Attention {
            q: normal([q, h], deviation(h), place),
            k: normal([kv, h], deviation(h), place),
            v: normal([kv, h], deviation(h), place),
            o: normal([h, q], residual, place),
            q_norm: ones(config.head_dim, place),
            k_norm: ones(config.head_dim, place),
        }
    }

    /// `x` and the result are `[R, H]`, block after block.
    pub(crate) fn forward(
        &self,
        config: &DraftConfig,
        x: Tensor<2>,
        (context, rotation): (&Context, &Rotation),
    ) -> Tensor<2> {
        let [rows, _] = x.dims();
        let (kv, dim) = (config.num_kv_heads, config.head_dim);
        let sizes = Sizes { kv, group: config.num_heads / kv, dim, rows, block: config.block_size };
        let heads = |x: Tensor<2>, heads: usize| {
            let rows = x.dims()[0];
            x.reshape([rows, heads, dim])
        };
        let key =
            |x: Tensor<2>, at: &Rotation| at.apply(head_norm(heads(project(x, &self.k), kv), &self.k_norm, config.eps));
        let value = |x: Tensor<2>| heads(project(x, &self.v), kv);
        let q = head_norm(heads(project(x.clone(), &self.q), config.num_heads), &self.q_norm, config.eps);
        let q = rotation.apply(q).mul_scalar((dim as f64).sqrt().recip());
        let q = q.reshape([rows, kv, sizes.group, dim]).permute([1, 2, 0, 3]);
        let own = (key(x.clone(), rotation), value(x));
        let far = (key(context.features.clone(), &context.rotation), value(context.features.clone()));
        let out = sizes.attend(q, own, (far.0, far.1, context.visible.clone()));
        let out = out.permute([2, 0, 1, 3]).reshape([rows, config.num_heads * dim]);
        project(out, &self.o)
    }
}

impl Sizes {
    /// `q` and the result are `[kv, group, R, dim]`, keys and values `[rows, kv, dim]`.
    fn attend(
        self,
        q: Tensor<4>,
        (own_k, own_v): (Tensor<3>, Tensor<3>),
        (far_k, far_v, visible): (Tensor<3>, Tensor<3>, Tensor<4>),
    ) -> Tensor<4> {
        let Sizes { kv, group, dim, rows, block } = self;
        let context = far_k.dims()[0];
        let flat = q.clone().reshape([kv, group * rows, dim]);
        let far = flat.matmul(far_k.permute([1, 2, 0])).reshape([kv, group, rows, context]) + visible;
        let blocks = rows / block;
        let in_blocks = |x: Tensor<3>| x.reshape([blocks, block, kv, dim]).permute([2, 0, 1, 3]);
        // Heads of a group share keys: their rows stand side by side in one product per block.
        let side_by_side = |x: Tensor<4>, width: usize| {
            x.reshape([kv, group, blocks, block * width]).swap_dims(1, 2).reshape([kv, blocks, group * block, width])
        };
        let apart = |x: Tensor<4>, width: usize| {
            x.reshape([kv, blocks, group, block * width]).swap_dims(1, 2).reshape([kv, group, rows, width])
        };
        let own = apart(side_by_side(q, dim).matmul(in_blocks(own_k).transpose()), block);
        // The largest score only keeps the exponentials in range; it has no part in the result or in its gradient.
        let top = far.clone().detach().max_dim(3).max_pair(own.clone().detach().max_dim(3));
        let (far, own) = ((far - top.clone()).exp(), (own - top).exp());
        let total = far.clone().sum_dim(3) + own.clone().sum_dim(3);
        let from_far = far.reshape([kv, group * rows, context]).matmul(far_v.permute([1, 0, 2]));
        let from_own = apart(side_by_side(own, block).matmul(in_blocks(own_v)), dim);
        (from_far.reshape([kv, group, rows, dim]) + from_own) / total
    }
}
