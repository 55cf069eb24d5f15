//! Feed-forward networks: dense, and routed experts beside shared ones.

use perilune_backend::{
    Activation, Backend, BackendError, Expert, GatedAct, Linear, LinearPart, MoeExperts, MoeRoute, Renormalize, Weight,
    Write,
};

use crate::residual::Norm;
use crate::workspace::{GluSpace, MoeSpace};

/// The feed-forward network of a layer.
#[derive(Debug)]
pub(crate) enum FeedForward<T> {
    Dense(Glu<T>),
    Moe(Box<Moe<T>>),
}

/// Weights of a gated network.
#[derive(Debug)]
pub(crate) struct Glu<T> {
    pub(crate) gate: Weight<T>,
    pub(crate) up: Weight<T>,
    pub(crate) down: Weight<T>,
}

/// Weights and rules of a mixture of experts.
#[derive(Debug)]
pub(crate) struct Moe<T> {
    pub(crate) router: Weight<T>,
    pub(crate) bias: T,
    pub(crate) rules: RouteRules,
    pub(crate) experts: Vec<Expert<T>>,
    pub(crate) latent: Option<Latent<T>>,
    pub(crate) shared: Option<Glu<T>>,
}

/// How experts are chosen.
#[derive(Debug, Clone, Copy)]
pub(crate) struct RouteRules {
    pub(crate) num_groups: usize,
    pub(crate) topk_groups: usize,
    pub(crate) renormalize: Renormalize,
    pub(crate) scale: f32,
}

/// Projections into and out of the experts' latent.
#[derive(Debug)]
pub(crate) struct Latent<T> {
    pub(crate) down: Weight<T>,
    pub(crate) norm: Option<Norm<T>>,
    pub(crate) up: Weight<T>,
}

/// Where a network's result goes.
pub(crate) struct Target<'a, T> {
    pub(crate) out: &'a mut T,
    pub(crate) write: Write,
}

/// The device, the number of rows, and the activation.
pub(crate) type Call<'a, B> = (&'a B, usize, Activation);

impl<T> Glu<T> {
    pub(crate) fn run<B: Backend<Tensor = T>>(
        &self,
        call: Call<'_, B>,
        x: &T,
        space: &mut GluSpace<T>,
        target: Target<'_, T>,
    ) -> Result<(), BackendError> {
        let (backend, rows, _) = call;
        backend.linear(Linear { rows, x, parts: &mut self.inner_parts(space) })?;
        self.finish(call, space, target)
    }

    /// The products of the input, to be computed together with others of the same input.
    fn inner_parts<'a>(&'a self, space: &'a mut GluSpace<T>) -> [LinearPart<'a, T>; 2] {
        [LinearPart::replace(&self.gate, &mut space.gate), LinearPart::replace(&self.up, &mut space.up)]
    }

    /// Activation and down projection.
    fn finish<B: Backend<Tensor = T>>(
        &self,
        (backend, rows, act): Call<'_, B>,
        space: &mut GluSpace<T>,
        target: Target<'_, T>,
    ) -> Result<(), BackendError> {
        let GluSpace { gate, up, act: out } = space;
        backend.gated_act(GatedAct { rows, act, gate, up, out })?;
        let part = LinearPart { weight: &self.down, out: target.out, write: target.write };
        backend.linear(Linear { rows, x: out, parts: &mut [part] })
    }
}

impl<T> Moe<T> {
    /// Routed experts overwrite or add as the target says; shared experts add.
    pub(crate) fn run<B: Backend<Tensor = T>>(
        &self,
        call: Call<'_, B>,
        x: &T,
        space: &mut MoeSpace<T>,
        target: Target<'_, T>,
    ) -> Result<(), BackendError> {
        let (backend, rows, act) = call;
        self.project((backend, rows), x, space)?;
        let RouteRules { num_groups, topk_groups, renormalize, scale } = self.rules;
        let MoeSpace { router, ids, weights, latent, shared } = space;
        let (logits, bias) = (&*router, &self.bias);
        backend.moe_route(MoeRoute {
            rows,
            logits,
            bias,
            num_groups,
            topk_groups,
            renormalize,
            scale,
            ids,
            weights,
        })?;
        let experts = &self.experts;
        match (&self.latent, latent) {
            (Some(weights_of), Some([input, mixture, normed])) => {
                let write = Write::Replace;
                backend.moe_experts(MoeExperts { rows, x: input, ids, weights, experts, act, out: mixture, write })?;
                let mut x = &*mixture;
                if let Some(norm) = &weights_of.norm {
                    norm.apply((backend, rows), mixture, normed)?;
                    x = normed;
                }
                let part = LinearPart { weight: &weights_of.up, out: &mut *target.out, write: target.write };
                backend.linear(Linear { rows, x, parts: &mut [part] })?;
            }
            _ => {
                let (out, write) = (&mut *target.out, target.write);
                backend.moe_experts(MoeExperts { rows, x, ids, weights, experts, act, out, write })?;
            }
        }
        match (&self.shared, shared) {
            (Some(glu), Some(space)) => glu.finish(call, space, Target { out: target.out, write: Write::Add }),
            _ => Ok(()),
        }
    }

    /// All products of the input in one operation: router, latent, shared gate and up.
    fn project<B: Backend<Tensor = T>>(
        &self,
        (backend, rows): (&B, usize),
        x: &T,
        space: &mut MoeSpace<T>,
    ) -> Result<(), BackendError> {
        let mut parts = vec![LinearPart::replace(&self.router, &mut space.router)];
        if let (Some(latent), Some([input, ..])) = (&self.latent, &mut space.latent) {
            parts.push(LinearPart::replace(&latent.down, input));
        }
        if let (Some(shared), Some(glu)) = (&self.shared, &mut space.shared) {
            parts.extend(shared.inner_parts(glu));
        }
        backend.linear(Linear { rows, x, parts: &mut parts })
    }
}
