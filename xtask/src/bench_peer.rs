//! The same weights, threads and work in llama.cpp: its programs and ours take turns, medians are compared.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};
use serde_json::Value;

use crate::process::{output, run as run_command, target};

/// Tokens of prompts, tokens decoded per sequence, sequences at once.
const PROMPTS: &str = "512,4096";
const DECODED: &str = "32";
const BATCHES: &str = "1,4,8,16";
/// Tokens of a sequence before it decodes in a batch.
const BEFORE: &str = "16";

/// What is compared with what: rounding of ours, matrices of theirs.
const PAIRS: &[(Option<&str>, &str)] = &[(None, "f16"), (Some("int8"), "q8_0"), (Some("int4"), "q4_0")];

/// How a comparison is run.
pub(crate) struct Peer {
    /// Where `llama-bench` and `llama-batched-bench` are.
    pub(crate) programs: PathBuf,
    /// How many times each takes its turn.
    pub(crate) rounds: usize,
    /// Threads of both.
    pub(crate) threads: usize,
}

/// Whether llama.cpp may bring weights into layouts of its own; its AMX code ends on some machines with an illegal
/// instruction.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Repack {
    Allowed,
    Off,
}

/// Rows of one sequence in one step, which only ours measures.
const VERIFIED: &str = "1,8";

/// Work, and its size.
type Work = (String, u64);

/// What was measured, by work.
#[derive(Default)]
struct Figures {
    speed: BTreeMap<Work, Vec<f64>>,
    /// Of the read bandwidth or the FP32 peak, measured in the same run.
    share: BTreeMap<Work, Vec<f64>>,
}

impl Peer {
    /// Measures a checkpoint in all formats and prints a table for each.
    pub(crate) fn compare(&self, name: &str, folder: &Path) -> Result<Value> {
        let mut all = Vec::new();
        for (ours, theirs) in PAIRS {
            let gguf = folder.with_extension(format!("{theirs}.gguf"));
            convert(folder, &gguf, &["--matrices", theirs])?;
            let repack = self.repack(&gguf)?;
            let (mut here, mut there) = (Figures::default(), BTreeMap::new());
            for _ in 0..self.rounds {
                self.ours(folder, *ours, &mut here)?;
                self.theirs((&gguf, repack), &mut there)?;
            }
            let how = if repack == Repack::Off { ", without repacking: it fails with it" } else { "" };
            let format = format!("{} against {theirs}{how}", ours.unwrap_or("as stored"));
            all.push(report((name, &format), &here, &there));
        }
        Ok(Value::Array(all))
    }

    fn ours(&self, folder: &Path, quantize: Option<&str>, into: &mut Figures) -> Result<()> {
        let mut command = perilune();
        command.args([
            "bench",
            "--json",
            "--repeat",
            "1",
            "--context",
            "16",
            "--prompt",
            PROMPTS,
            "--verify",
            VERIFIED,
        ]);
        command.args(["--decode", DECODED, "--batch", BATCHES, "--threads", &self.threads.to_string(), "--model"]);
        command.arg(folder);
        command.args(quantize.iter().flat_map(|format| ["--quantize", format]));
        let report: Value = serde_json::from_str(&output(command)?).context("`perilune bench --json`")?;
        for row in report["rows"].as_array().into_iter().flatten() {
            let work = row["work"].as_str().unwrap_or_default();
            if work != "context" {
                add(&mut into.speed, (work, &row["size"]), &row["tokens_per_s"]);
                add(&mut into.share, (work, &row["size"]), &row["share_of_limit"]);
            }
        }
        Ok(())
    }

    /// Tries a short prompt.
    fn repack(&self, gguf: &Path) -> Result<Repack> {
        let mut command = Command::new(self.programs.join("llama-bench"));
        command.args(["-p", "8", "-n", "0", "-r", "1", "-m"]).arg(gguf);
        let tried = command.output().with_context(|| format!("no llama-bench in {}", self.programs.display()))?;
        Ok(if tried.status.success() { Repack::Allowed } else { Repack::Off })
    }

    fn theirs(&self, (gguf, repack): (&Path, Repack), into: &mut BTreeMap<Work, Vec<f64>>) -> Result<()> {
        let threads = self.threads.to_string();
        let mut command = Command::new(self.programs.join("llama-bench"));
        command.args(["-p", PROMPTS, "-n", "0", "-r", "1", "-o", "json", "-t", &threads, "-m"]).arg(gguf);
        if repack == Repack::Off {
            command.args(["--repack", "0"]);
        }
        let report: Value = serde_json::from_str(&output(command)?).context("`llama-bench -o json`")?;
        for row in report.as_array().into_iter().flatten() {
            add(into, ("prefill", &row["n_prompt"]), &row["avg_ts"]);
        }
        let mut command = Command::new(self.programs.join("llama-batched-bench"));
        command.args(["-npp", BEFORE, "-ntg", DECODED, "-npl", BATCHES, "-c", "4096"]);
        command.args(["--output-format", "jsonl", "-t", &threads, "-m"]).arg(gguf);
        if repack == Repack::Off {
            command.arg("--no-repack");
        }
        for line in output(command)?.lines().filter(|line| line.starts_with('{')) {
            let row: Value = serde_json::from_str(line).context("`llama-batched-bench --output-format jsonl`")?;
            add(into, ("decode", &row["pl"]), &row["speed_tg"]);
        }
        Ok(())
    }
}

fn add(into: &mut BTreeMap<Work, Vec<f64>>, (work, size): (&str, &Value), speed: &Value) {
    let key = (work.to_owned(), size.as_u64().unwrap_or(0));
    into.entry(key).or_default().push(speed.as_f64().unwrap_or(0.0));
}

/// The program that this bench has built.
pub(crate) fn perilune() -> Command {
    Command::new(target().join("release/perilune"))
}

/// Written where it is missing; a half-written one has no final name.
pub(crate) fn convert(folder: &Path, gguf: &Path, how: &[&str]) -> Result<()> {
    if gguf.is_file() {
        return Ok(());
    }
    let unfinished = gguf.with_extension("unfinished");
    let mut command = perilune();
    command.args(["convert", "--to", "gguf"]).args(how).arg(folder).arg(&unfinished);
    run_command(command)?;
    Ok(std::fs::rename(unfinished, gguf)?)
}

pub(crate) fn median(values: &[f64]) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    sorted.get(sorted.len() / 2).copied().unwrap_or(0.0)
}

fn report((name, format): (&str, &str), here: &Figures, there: &BTreeMap<Work, Vec<f64>>) -> Value {
    eprintln!("\n{name}, {format}: tokens/s, medians");
    eprintln!("work       size    perilune   llama.cpp   ratio   of the limit");
    let mut rows = Vec::new();
    for (work, ours) in &here.speed {
        let share = here.share.get(work).map_or(0.0, |shares| median(shares));
        let (ours, theirs) = (median(ours), there.get(work).map(|theirs| median(theirs)));
        let (name, size) = work;
        let beside = theirs.map_or(format!("{:>18}", ""), |theirs| format!("{theirs:>10.1}  {:>6.2}", ours / theirs));
        eprintln!("{name:<8}{size:>7}  {ours:>10.1}  {beside}  {:>10.0} %", 100.0 * share);
        let row = serde_json::json!({"work": name, "size": size, "perilune": ours, "llama.cpp": theirs,
            "share_of_limit": share});
        rows.push(row);
    }
    serde_json::json!({"model": name, "format": format, "rows": rows})
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn medians_and_rows() {
        assert_eq!((median(&[]), median(&[3.0, 1.0, 2.0])), (0.0, 2.0));
        let mut here = BTreeMap::new();
        add(&mut here, ("decode", &Value::from(4)), &Value::from(20.0));
        add(&mut here, ("verify", &Value::from(8)), &Value::from(50.0));
        let mut there = BTreeMap::new();
        add(&mut there, ("decode", &Value::from(4)), &Value::from(10.0));
        add(&mut there, ("decode", &Value::from(8)), &Value::from(1.0));
        let figures = Figures { speed: here.clone(), share: here };
        let report = report(("m", "f"), &figures, &there);
        assert_eq!(report["rows"].as_array().map(Vec::len), Some(2), "what ours did: {report}");
        assert_eq!((&report["rows"][0]["llama.cpp"], &report["rows"][1]["llama.cpp"]), (&10.0.into(), &Value::Null));
    }
}
