//! Traces made up by documented rules, the same for the same seed.
//!
//! * `chat`: 40 conversations at a time. Each begins with one of 5 system prompts of 800 to 1,500 tokens and has 3 to 10
//!   turns; a user's turn has 50 to 300 tokens, an answer 100 to 400. A prompt is everything before it and the new turn.
//! * `agent`: 12 tasks at a time, each on 4,000 to 8,000 tokens of tools and context of its own, of which 2,500 are the
//!   same for all. 15 to 40 steps: a call of 50 to 150 tokens, a result of 200 to 1,500. One step in five goes back to an
//!   earlier one and takes another way from there.
//! * `system`: single questions of 100 to 500 tokens, answers of 200, behind one of 30 system prompts of 2,000 to 8,000
//!   tokens; prompt `k` is asked for in proportion to `1/k`.

use clap::ValueEnum;

use super::trace::{Request, stand_in};

/// A kind of trace.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum TraceKind {
    /// Conversations of several turns.
    Chat,
    /// Agents that call tools and go back to earlier steps.
    Agent,
    /// Single questions behind few system prompts.
    System,
}

struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }

    fn between(&mut self, low: usize, high: usize) -> usize {
        low + (self.next() % (high - low + 1) as u64) as usize
    }
}

/// `count` requests in the order of their arrival.
pub(super) fn generate(kind: TraceKind, count: usize, seed: u64) -> Vec<Request> {
    let mut random = Random(seed);
    match kind {
        TraceKind::Chat => {
            let mut open: Vec<Talk> = (0..40).map(|_| Talk::chat(&mut random)).collect();
            (0..count).map(|_| next_of(&mut open, &mut random, Talk::chat)).collect()
        }
        TraceKind::Agent => {
            let mut open: Vec<Talk> = (0..12).map(|_| Talk::agent(&mut random)).collect();
            (0..count).map(|_| next_of(&mut open, &mut random, Talk::agent)).collect()
        }
        TraceKind::System => (0..count).map(|_| single(&mut random)).collect(),
    }
}

/// Something that goes on for several requests.
struct Talk {
    /// Ids and lengths of the pieces so far; turns end after each.
    pieces: Vec<(u64, usize)>,
    left: usize,
    ask: (usize, usize),
    answer: (usize, usize),
    /// One request in so many goes back to an earlier one; 0 for never.
    goes_back: u64,
}

impl Talk {
    fn chat(random: &mut Random) -> Self {
        let system = random.next() % 5;
        let pieces = vec![(system, 800 + 175 * system as usize)];
        Talk { pieces, left: random.between(3, 10), ask: (50, 300), answer: (100, 400), goes_back: 0 }
    }

    fn agent(random: &mut Random) -> Self {
        let own = (random.next(), random.between(1500, 5500));
        let pieces = vec![(7, 2500), own];
        Talk { pieces, left: random.between(15, 40), ask: (200, 1500), answer: (50, 150), goes_back: 5 }
    }

    /// The next request; its answer becomes part of what comes later.
    fn next(&mut self, random: &mut Random) -> Request {
        if self.goes_back > 0 && random.next().is_multiple_of(self.goes_back) && self.pieces.len() > 4 {
            let keep = random.between(2, self.pieces.len() - 2);
            self.pieces.truncate(keep);
        }
        self.pieces.push((random.next(), random.between(self.ask.0, self.ask.1)));
        let answer = (random.next(), random.between(self.answer.0, self.answer.1));
        let request = put_together(&self.pieces, answer);
        self.pieces.push(answer);
        self.left -= 1;
        request
    }
}

fn next_of(open: &mut [Talk], random: &mut Random, begin: fn(&mut Random) -> Talk) -> Request {
    let which = random.between(0, open.len() - 1);
    let request = open[which].next(random);
    if open[which].left == 0 {
        open[which] = begin(random);
    }
    request
}

fn single(random: &mut Random) -> Request {
    const PROMPTS: usize = 30;
    let total: f64 = (1..=PROMPTS).map(|k| 1.0 / k as f64).sum();
    let mut left = total * (random.next() >> 11) as f64 / (1_u64 << 53) as f64;
    let mut which = 1;
    while which < PROMPTS && left > 1.0 / which as f64 {
        left -= 1.0 / which as f64;
        which += 1;
    }
    let system = (1000 + which as u64, 2000 + (which * 2713) % 6001);
    let question = (random.next(), random.between(100, 500));
    put_together(&[system, question], (random.next(), 200))
}

fn put_together(pieces: &[(u64, usize)], answer: (u64, usize)) -> Request {
    let mut request = Request::default();
    for (id, len) in pieces {
        request.tokens.extend((0..*len).map(|i| stand_in(*id, i)));
    }
    request.prompt_len = request.tokens.len();
    // The first piece is what others share.
    request.save_at = vec![pieces.first().map_or(0, |(_, len)| *len), request.prompt_len];
    request.tokens.extend((0..answer.1).map(|i| stand_in(answer.0, i)));
    request
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn traces_repeat_and_grow_by_their_rules() {
        for kind in [TraceKind::Chat, TraceKind::Agent, TraceKind::System] {
            let (a, b) = (generate(kind, 300, 3), generate(kind, 300, 3));
            assert!(a.iter().zip(&b).all(|(a, b)| a.tokens == b.tokens), "{kind:?}");
            assert!(generate(kind, 300, 4).iter().zip(&a).any(|(a, b)| a.tokens != b.tokens), "{kind:?}");
            assert!(a.iter().all(|r| r.save_at.last() == Some(&r.prompt_len) && r.tokens.len() > r.prompt_len));
            let alike = a.iter().skip(1).filter(|r| r.tokens[..500] == a[0].tokens[..500]).count();
            assert!(alike > 0, "{kind:?}: nothing begins alike");
        }
    }
}
