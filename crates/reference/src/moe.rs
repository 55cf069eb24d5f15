//! Routing and routed experts (`kimi-k3.md` 3.6).

use crate::activation::sigmoid;
use crate::linear::linear;

/// How experts are chosen.
#[derive(Debug, Clone, Copy)]
pub struct Routing<'a> {
    /// `[E]`: added for the choice only.
    pub bias: &'a [f32],
    /// Experts per token.
    pub top_k: usize,
    /// Groups; 0 or 1 turns the group step off.
    pub num_groups: usize,
    /// Groups that stay eligible.
    pub topk_groups: usize,
    /// Divide the weights by their sum where `top_k > 1`.
    pub renormalize: bool,
    /// Factor on the weights.
    pub scale: f32,
}

/// Chosen experts of one row of logits `[E]`, in falling order of the choice score, with their weights.
pub fn route(logits: &[f32], routing: &Routing<'_>) -> Vec<(usize, f32)> {
    let scores: Vec<f32> = logits.iter().map(|x| sigmoid(*x)).collect();
    let mut choice: Vec<f32> = scores.iter().zip(routing.bias).map(|(s, b)| s + b).collect();
    mask_groups(&mut choice, routing);
    let mut order: Vec<usize> = (0..choice.len()).collect();
    order.sort_by(|a, b| choice[*b].total_cmp(&choice[*a]).then(a.cmp(b)));
    order.truncate(routing.top_k);
    let sum: f32 = order.iter().map(|e| scores[*e]).sum();
    let divisor = if routing.renormalize && routing.top_k > 1 { sum + 1e-20 } else { 1.0 };
    order.into_iter().map(|e| (e, scores[e] / divisor * routing.scale)).collect()
}

/// Leaves the groups with the largest sums of their two best choice scores; the others become `-inf`.
fn mask_groups(choice: &mut [f32], routing: &Routing<'_>) {
    if routing.num_groups <= 1 {
        return;
    }
    let size = choice.len() / routing.num_groups;
    let best_two = |group: &[f32]| {
        let mut sorted = group.to_vec();
        sorted.sort_by(|a, b| b.total_cmp(a));
        sorted.iter().take(2).sum::<f32>()
    };
    let sums: Vec<f32> = choice.chunks_exact(size).map(best_two).collect();
    let mut order: Vec<usize> = (0..sums.len()).collect();
    order.sort_by(|a, b| sums[*b].total_cmp(&sums[*a]).then(a.cmp(b)));
    for group in &order[routing.topk_groups.min(order.len())..] {
        choice[group * size..(group + 1) * size].fill(f32::NEG_INFINITY);
    }
}

/// Matrices of one expert: gate `[I, L]`, up `[I, L]`, down `[L, I]`.
#[derive(Debug, Clone)]
pub struct Expert {
    /// `w1`.
    pub gate: Vec<f32>,
    /// `w3`.
    pub up: Vec<f32>,
    /// `w2`.
    pub down: Vec<f32>,
}

/// `Σ_j weight_j down_e(act(gate_e x, up_e x))`, in the order of the choices.
pub fn experts(x: &[f32], chosen: &[(usize, f32)], experts: &[Expert], act: impl Fn(f32, f32) -> f32) -> Vec<f32> {
    let mut out = vec![0.0; x.len()];
    for (e, weight) in chosen {
        let expert = &experts[*e];
        let inner: Vec<f32> =
            linear(x, &expert.gate).into_iter().zip(linear(x, &expert.up)).map(|(g, u)| act(g, u)).collect();
        out.iter_mut().zip(linear(&inner, &expert.down)).for_each(|(o, y)| *o += weight * y);
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    const PLAIN: Routing<'static> =
        Routing { bias: &[0.0; 4], top_k: 2, num_groups: 1, topk_groups: 1, renormalize: true, scale: 2.5 };

    #[test]
    fn weights_are_unbiased_and_sum_to_the_scale() {
        let bias = [0.0, 0.0, 5.0, 0.0];
        let chosen = route(&[2.0, 1.0, -9.0, 0.0], &Routing { bias: &bias, ..PLAIN });
        assert_eq!([chosen[0].0, chosen[1].0], [2, 0]);
        assert!(chosen[0].1 < 1e-3, "the bias chooses but does not weigh");
        assert!((chosen.iter().map(|c| c.1).sum::<f32>() - 2.5).abs() < 1e-6);
    }

    #[test]
    fn one_expert_is_not_renormalised() {
        let chosen = route(&[0.0, -1.0, -1.0, -1.0], &Routing { top_k: 1, scale: 1.0, ..PLAIN });
        assert_eq!(chosen, [(0, 0.5)]);
    }

    #[test]
    fn ties_go_to_the_lower_id() {
        let ids: Vec<usize> = route(&[1.0; 4], &PLAIN).iter().map(|c| c.0).collect();
        assert_eq!(ids, [0, 1]);
    }

    #[test]
    fn masked_groups_lose_also_against_negative_scores() {
        let bias = [-9.0, -9.0, -20.0, 0.0];
        let routing = Routing { bias: &bias, num_groups: 2, topk_groups: 1, ..PLAIN };
        // Group 0 has sum -18 + 2σ, group 1 has -20 + 2σ: group 0 wins although expert 3 is the best of all.
        let ids: Vec<usize> = route(&[1.0, 2.0, 0.0, 3.0], &routing).iter().map(|c| c.0).collect();
        assert_eq!(ids, [1, 0]);
    }
}
