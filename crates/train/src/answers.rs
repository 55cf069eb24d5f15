//! The target's own answers: a draft is trained on what its target says, not on what the file says it should.
//!
//! They are kept as JSON lines beside the training, so that a run that was interrupted goes on where it stood.

use std::collections::{HashMap, VecDeque};
use std::fs::{File, OpenOptions};
use std::io::Write;
use std::path::Path;

use perilune_engine::{EngineHandle, GenerateRequest, SamplingParams, SubmitError, TokenEvent, TokenStream};
use perilune_tensor::TokenId;
use serde_json::{Value, json};

use crate::TrainError;
use crate::prompts::Prompt;

/// A prompt and what the target said to it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Answered {
    /// The prompt.
    pub prompt: Prompt,
    /// Which of its answers this is, from 0 on.
    pub nth: usize,
    /// Think and response channels as they came, the stop token included: all of it is the assistant's.
    pub answer: Vec<TokenId>,
}

/// How answers are made.
#[derive(Debug, Clone, PartialEq)]
pub struct AnswerOptions {
    /// Of the first answer to a prompt; 0 for the likeliest tokens.
    pub temperature: f32,
    /// Further answers to every prompt.
    pub more: usize,
    /// Their temperature.
    pub more_temperature: f32,
    /// Most tokens of an answer.
    pub max_tokens: usize,
    /// Seed of the first prompt; each further line adds one, each further answer 2³².
    pub seed: u64,
    /// Requests under way at once.
    pub concurrency: usize,
}

impl AnswerOptions {
    /// Answers to a prompt.
    pub fn per_prompt(&self) -> usize {
        1 + self.more
    }
}

/// Line of a prompt, and which of its answers.
type Place = (usize, usize);

/// Answers every prompt that `store` has too few answers to, and adds them there; `report` hears how many are done. First
/// answers come first, in the order of the prompts, then second ones, and so on.
///
/// # Errors
/// `Io`, `File`, `Submit`, `Answer`.
pub fn answer_prompts(
    engine: &EngineHandle,
    (prompts, options): (&[Prompt], &AnswerOptions),
    store: Option<&Path>,
    report: &mut dyn FnMut(usize),
) -> Result<Vec<Answered>, TrainError> {
    let mut known = store.map(read).transpose()?.unwrap_or_default();
    let asked: HashMap<usize, &Prompt> = prompts.iter().map(|prompt| (prompt.line, prompt)).collect();
    known.retain(|(line, _), (tokens, _)| asked.get(line).is_some_and(|prompt| prompt.tokens == *tokens));
    let append = |path: &Path| OpenOptions::new().create(true).append(true).open(path).map_err(TrainError::io(path));
    let mut file = store.map(append).transpose()?;
    let places = || (0..options.per_prompt()).flat_map(|nth| prompts.iter().map(move |prompt| (prompt, nth)));
    known.retain(|(_, nth), _| *nth < options.per_prompt());
    let mut open =
        places().filter(|(prompt, nth)| !known.contains_key(&(prompt.line, *nth))).collect::<Vec<_>>().into_iter();
    let mut running: VecDeque<((&Prompt, usize), TokenStream)> = VecDeque::new();
    let mut found: HashMap<Place, Vec<TokenId>> = HashMap::new();
    report(known.len());
    loop {
        while running.len() < options.concurrency.max(1) {
            let Some(next) = open.next() else { break };
            running.push_back((next, ask(engine, next, options)?));
        }
        let Some(((prompt, nth), stream)) = running.pop_front() else { break };
        let answered = Answered { prompt: prompt.clone(), nth, answer: collect(prompt.line, stream)? };
        if let (Some(path), Some(file)) = (store, &mut file) {
            write(file, &answered).map_err(TrainError::io(path))?;
        }
        found.insert((prompt.line, nth), answered.answer);
        report(known.len() + found.len());
    }
    found.extend(known.into_iter().map(|(place, (_, answer))| (place, answer)));
    let answered = |(prompt, nth): (&Prompt, usize)| {
        let answer = found.remove(&(prompt.line, nth))?;
        Some(Answered { prompt: prompt.clone(), nth, answer })
    };
    Ok(places().filter_map(answered).collect())
}

fn ask(
    engine: &EngineHandle,
    (prompt, nth): (&Prompt, usize),
    options: &AnswerOptions,
) -> Result<TokenStream, TrainError> {
    let params = SamplingParams {
        temperature: if nth == 0 { options.temperature } else { options.more_temperature },
        seed: Some(options.seed.wrapping_add(prompt.line as u64).wrapping_add((nth as u64) << 32)),
        ..SamplingParams::greedy(options.max_tokens)
    };
    engine.submit(GenerateRequest::new(prompt.tokens.clone(), params)).map_err(|error| match error {
        SubmitError::PromptTooLong { .. } => TrainError::Answer { line: prompt.line, message: error.to_string() },
        other => other.into(),
    })
}

fn collect(line: usize, mut stream: TokenStream) -> Result<Vec<TokenId>, TrainError> {
    let mut answer = Vec::new();
    while let Some(event) = stream.blocking_next() {
        match event {
            TokenEvent::Token { id, .. } => answer.push(id),
            TokenEvent::Failed { message, .. } => return Err(TrainError::Answer { line, message }),
            TokenEvent::PromptLogprobs(_) | TokenEvent::Finished { .. } => {}
        }
    }
    Ok(answer)
}

fn write(file: &mut File, answered: &Answered) -> std::io::Result<()> {
    let ids = |tokens: &[TokenId]| tokens.iter().map(|id| id.0).collect::<Vec<_>>();
    let Answered { prompt, nth, answer } = answered;
    let line = json!({ "line": prompt.line, "nth": nth, "prompt": ids(&prompt.tokens), "answer": ids(answer) });
    writeln!(file, "{line}")
}

/// A prompt and its answer.
type Pair = (Vec<TokenId>, Vec<TokenId>);
/// Pairs by line and number.
type Stored = HashMap<Place, Pair>;

/// What is stored; a last line that was cut short is left out.
fn read(path: &Path) -> Result<Stored, TrainError> {
    if !path.exists() {
        return Ok(HashMap::new());
    }
    let text = std::fs::read_to_string(path).map_err(TrainError::io(path))?;
    let ids = |value: &Value| -> Option<Vec<TokenId>> {
        value.as_array()?.iter().map(|id| Some(TokenId(u32::try_from(id.as_u64()?).ok()?))).collect()
    };
    let parse = |line: &str| -> Option<(Place, Pair)> {
        let value: Value = serde_json::from_str(line).ok()?;
        let number = |value: &Value| usize::try_from(value.as_u64()?).ok();
        let nth = value.get("nth").map_or(Some(0), number)?;
        Some(((number(&value["line"])?, nth), (ids(&value["prompt"])?, ids(&value["answer"])?)))
    };
    let whole = &text[..text.rfind('\n').map_or(0, |end| end + 1)];
    if whole.len() < text.len() {
        std::fs::write(path, whole).map_err(TrainError::io(path))?;
    }
    let lines = whole.lines().enumerate().map(|(index, line)| {
        let problem = || format!("line {} is no answer as this command writes it", index + 1);
        parse(line).ok_or_else(|| TrainError::File { path: path.to_owned(), problem: problem() })
    });
    lines.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stored_answers_come_back_and_a_cut_line_is_forgotten() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("answers.jsonl");
        let prompt = |line| Prompt { line, tokens: vec![TokenId(5), TokenId(line as u32)] };
        let mut file = File::create(&path).unwrap();
        let answered = |line, nth, answer: &[TokenId]| Answered { prompt: prompt(line), nth, answer: answer.to_vec() };
        write(&mut file, &answered(1, 0, &[TokenId(7)])).unwrap();
        write(&mut file, &answered(1, 1, &[TokenId(8)])).unwrap();
        write(&mut file, &answered(3, 0, &[])).unwrap();
        file.write_all(b"{\"line\": 4, \"pro").unwrap();
        let stored = read(&path).unwrap();
        assert_eq!(stored.len(), 3);
        assert_eq!(stored[&(1, 0)], (prompt(1).tokens, vec![TokenId(7)]));
        assert_eq!(stored[&(1, 1)], (prompt(1).tokens, vec![TokenId(8)]));
        assert!(std::fs::read_to_string(&path).unwrap().ends_with("}\n"));
        std::fs::write(&path, "{\"line\": 4}\n").unwrap();
        assert!(read(&path).unwrap_err().to_string().ends_with("line 1 is no answer as this command writes it"));
    }
}
