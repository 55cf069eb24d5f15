//! Block verification (Sun et al., arXiv 2403.10444): which drafted tokens are kept, and what follows them, so that the
//! output has the target's distribution exactly and as many tokens as possible are kept.

use perilune_tensor::TokenId;

/// Drafted tokens of one sequence and the distributions on both sides.
#[derive(Debug, Clone, Copy)]
pub struct Block<'a> {
    /// The drafted tokens `X_1 .. X_γ`.
    pub drafts: &'a [TokenId],
    /// What each was drawn from; `None` where each was certain.
    pub proposed: Option<&'a [Vec<f32>]>,
    /// The target's distribution after each prefix: `γ + 1` of them, the first after none of the drafts.
    pub target: &'a [Vec<f32>],
}

/// The outcome of a block.
#[derive(Debug, Clone, PartialEq)]
pub struct Accepted {
    /// How many drafts are kept.
    pub kept: usize,
    /// What the token after them is to be drawn from, up to a factor; not all zero.
    pub next: Vec<f64>,
}

/// Decides about a block; `coin(i)` is a fresh random number in `[0, 1)` for draft `i`, counted from 0.
///
/// The longest prefix wins whose coin falls within its chance `h_i`; with `p_i` the capped ratio of both sides along the
/// prefix, `h_i = S_i / (S_i + 1 - p_i)` where `S_i` is what the target has beyond the draft after it, and `h_γ = p_γ`.
/// `None` where both sides disagree about their number: a fault of the caller.
pub fn accept_block(block: Block<'_>, coin: impl Fn(usize) -> f64) -> Option<Accepted> {
    let Block { drafts, proposed, target } = block;
    if target.len() != drafts.len() + 1 || proposed.is_some_and(|all| all.len() < drafts.len()) {
        return None;
    }
    let (mut kept, mut ratio, mut ratio_kept) = (0, 1.0, 1.0);
    for (i, draft) in drafts.iter().enumerate() {
        let wanted = f64::from(*target[i].get(draft.index())?);
        let offered = proposed.map_or(1.0, |all| f64::from(all[i].get(draft.index()).copied().unwrap_or(0.0)));
        // A draft that could not have been drawn is refused, and with it what follows.
        ratio = if offered > 0.0 { (ratio * wanted / offered).min(1.0) } else { 0.0 };
        let last = i + 1 == drafts.len();
        let chance = if last { ratio } else { chance(ratio, beyond(block, i + 1, ratio).iter().sum()) };
        if coin(i) < chance {
            (kept, ratio_kept) = (i + 1, ratio);
        }
    }
    Some(Accepted { kept, next: next(block, kept, ratio_kept) })
}

/// The chance that a prefix that is not the whole block is kept.
fn chance(ratio: f64, beyond: f64) -> f64 {
    let total = beyond + 1.0 - ratio;
    // Both sides agree from here on: a longer prefix is kept for certain.
    if total > 0.0 { beyond / total } else { 0.0 }
}

/// What the target has beyond the draft after `i` tokens: `max(ratio · target - proposed, 0)`.
fn beyond(block: Block<'_>, i: usize, ratio: f64) -> Vec<f64> {
    let target = block.target[i].iter().map(|p| ratio * f64::from(*p));
    match block.proposed {
        Some(all) => target.zip(&all[i]).map(|(p, q)| (p - f64::from(*q)).max(0.0)).collect(),
        None => {
            let certain = block.drafts[i].index();
            target.enumerate().map(|(id, p)| if id == certain { (p - 1.0).max(0.0) } else { p }).collect()
        }
    }
}

fn next(block: Block<'_>, kept: usize, ratio: f64) -> Vec<f64> {
    if kept < block.drafts.len() {
        let beyond = beyond(block, kept, ratio);
        // Nothing is left only where both sides agree to the last bit or so.
        if beyond.iter().any(|p| *p > 0.0) {
            return beyond;
        }
    }
    block.target[kept].iter().map(|p| f64::from(*p)).collect()
}

/// The entry in whose share of the sum `uniform` falls; `None` where all are zero.
pub fn pick(weights: &[f64], uniform: f64) -> Option<usize> {
    let target = uniform * weights.iter().sum::<f64>();
    let mut mass = 0.0;
    let hit = weights.iter().position(|weight| {
        mass += weight;
        mass > target
    });
    // Rounding may leave the last share a little short.
    hit.or_else(|| weights.iter().rposition(|weight| *weight > 0.0))
}

#[cfg(test)]
mod tests {
    use super::*;
    use perilune_backend::uniform;

    /// A distribution over three tokens that depends on the history.
    fn law(history: &[usize], sharpness: f64) -> Vec<f32> {
        let seed = history.iter().fold(7, |h, t| h * 31 + *t as u64 + 1);
        let weights: Vec<f64> = (0..3).map(|t| (sharpness * uniform(seed, t)).exp()).collect();
        let total: f64 = weights.iter().sum();
        weights.iter().map(|w| (w / total) as f32).collect()
    }

    fn draw(p: &[f32], u: f64) -> usize {
        pick(&p.iter().map(|p| f64::from(*p)).collect::<Vec<_>>(), u).unwrap()
    }

    enum Drafting {
        Drawn(f64),
        Certain,
    }

    /// The first tokens of a sequence: drafts of two, verified; then plain draws until there are `len`.
    fn speculated(drafting: &Drafting, len: usize, seed: u64) -> (Vec<usize>, usize) {
        let mut count = 0;
        let mut fresh = || {
            count += 1;
            uniform(seed, count)
        };
        let mut drafts = Vec::new();
        for _ in 0..2 {
            let token = match drafting {
                Drafting::Drawn(sharpness) => draw(&law(&drafts, *sharpness), fresh()),
                Drafting::Certain => 2,
            };
            drafts.push(token);
        }
        let proposed: Option<Vec<Vec<f32>>> = match drafting {
            Drafting::Drawn(sharpness) => Some((0..2).map(|i| law(&drafts[..i], *sharpness)).collect()),
            Drafting::Certain => None,
        };
        let target: Vec<Vec<f32>> = (0..3).map(|i| law(&drafts[..i], 2.0)).collect();
        let ids: Vec<TokenId> = drafts.iter().map(|t| TokenId(*t as u32)).collect();
        let coins = [fresh(), fresh()];
        let block = Block { drafts: &ids, proposed: proposed.as_deref(), target: &target };
        let Accepted { kept, next } = accept_block(block, |i| coins[i]).unwrap();
        drafts.truncate(kept);
        drafts.push(pick(&next, fresh()).unwrap());
        while drafts.len() < len {
            let token = draw(&law(&drafts, 2.0), fresh());
            drafts.push(token);
        }
        drafts.truncate(len);
        (drafts, kept)
    }

    /// Chi-square of three tokens against the target's law: 26 degrees of freedom, 54.1 is passed once in a thousand.
    fn chi_square(drafting: &Drafting) -> (f64, f64) {
        const DRAWS: u64 = 60_000;
        let mut counts = [0.0; 27];
        let mut kept = 0;
        for seed in 0..DRAWS {
            let (tokens, n) = speculated(drafting, 3, seed * 1000);
            counts[tokens.iter().fold(0, |code, t| code * 3 + t)] += 1.0;
            kept += n;
        }
        let mut chi = 0.0;
        for (code, count) in counts.iter().enumerate() {
            let tokens = [code / 9, code / 3 % 3, code % 3];
            let p: f64 = (0..3).map(|i| f64::from(law(&tokens[..i], 2.0)[tokens[i]])).product();
            chi += (count - p * DRAWS as f64).powi(2) / (p * DRAWS as f64);
        }
        (chi, kept as f64 / DRAWS as f64)
    }

    #[test]
    fn the_output_has_the_targets_distribution_whatever_the_draft() {
        for drafting in [Drafting::Drawn(2.0), Drafting::Drawn(0.0), Drafting::Drawn(9.0), Drafting::Certain] {
            let (chi, _) = chi_square(&drafting);
            assert!(chi < 54.1, "{chi}");
        }
    }

    #[test]
    fn a_perfect_draft_is_kept_and_an_impossible_one_refused() {
        let (_, kept) = chi_square(&Drafting::Drawn(2.0));
        assert_eq!(kept, 2.0);
        let block = Block { drafts: &[TokenId(1)], proposed: None, target: &[vec![1.0, 0.0], vec![0.5, 0.5]] };
        assert_eq!(accept_block(block, |_| 0.0), Some(Accepted { kept: 0, next: vec![1.0, 0.0] }));
        let wrong = Block { target: &[vec![1.0, 0.0]], ..block };
        assert_eq!(accept_block(wrong, |_| 0.0), None);
    }

    #[test]
    fn more_is_kept_than_token_by_token() {
        // Two tokens, two positions, the laws of the paper's example: p = (1/3, 2/3), q = (2/3, 1/3) everywhere.
        let (p, q) = (vec![1.0 / 3.0, 2.0 / 3.0_f32], vec![2.0 / 3.0, 1.0 / 3.0_f32]);
        let (mut blockwise, mut tokenwise) = (0.0, 0.0);
        for seed in 0..100_000 {
            let u = |i| uniform(seed, i);
            let drafts: Vec<TokenId> = (0..2).map(|i| TokenId(u32::from(u(i) >= 2.0 / 3.0))).collect();
            let (proposed, target) = ([q.clone(), q.clone()], [p.clone(), p.clone(), p.clone()]);
            let block = Block { drafts: &drafts, proposed: Some(&proposed), target: &target };
            blockwise += accept_block(block, |i| u(10 + i as u64)).unwrap().kept as f64;
            let accepted = |i: usize| {
                let id = drafts[i].index();
                u(20 + i as u64) < f64::from(p[id] / q[id])
            };
            tokenwise += if !accepted(0) { 0.0 } else { 1.0 + f64::from(u8::from(accepted(1))) };
        }
        // 11/9 against 10/9, from the paper.
        assert!((blockwise / 1e5 - 11.0 / 9.0).abs() < 0.01 && (tokenwise / 1e5 - 10.0 / 9.0).abs() < 0.01);
    }
}
