//! What the compilers' output says about a kernel: registers, spills, shared memory, widths of its memory accesses.

use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result};
use serde_json::{Value, json};

use super::toolchain::Toolchain;
use crate::process::output;

/// Measured from a binary.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub(super) struct Report {
    /// Vector registers of a unit.
    pub(super) registers: u32,
    /// Bytes that a unit moves to memory for want of registers.
    pub(super) spilled_bytes: u32,
    /// Bytes of a unit's stack: spills, and arrays that could not be kept in registers.
    pub(super) stack_bytes: u32,
    /// Load instructions of global memory by bytes each: `(16, 4)` is four loads of 16 bytes.
    pub(super) loads: Vec<(u32, u32)>,
    /// The same of stores.
    pub(super) stores: Vec<(u32, u32)>,
}

impl Report {
    /// As in the manifest.
    pub(super) fn json(&self) -> Value {
        json!({
            "registers": self.registers,
            "spilled_bytes": self.spilled_bytes,
            "stack_bytes": self.stack_bytes,
            "global_loads": widths(&self.loads),
            "global_stores": widths(&self.stores),
        })
    }
}

/// `{"16": 4}`.
fn widths(counts: &[(u32, u32)]) -> Value {
    counts.iter().map(|(width, count)| (width.to_string(), Value::from(*count))).collect()
}

/// Of a cubin: the assembler's remarks and the disassembly.
///
/// # Errors
/// Where the disassembler fails or the remarks lack a figure.
pub(super) fn cubin(toolchain: &Toolchain, path: &Path, log: &str) -> Result<Report> {
    let mut nvdisasm = Command::new(toolchain.path("nvidia/cu13/bin/nvdisasm"));
    nvdisasm.args(["--print-code"]).arg(path);
    let listing = output(nvdisasm)?;
    let mut report = remarks(log).context("the CUDA compiler did not report registers")?;
    report.loads = count(&listing, |opcode| sass_width(opcode, &["LDG", "LD"]));
    report.stores = count(&listing, |opcode| sass_width(opcode, &["STG", "ST"]));
    Ok(report)
}

/// Of AMD assembly with its metadata.
///
/// # Errors
/// Where the metadata lack a figure.
pub(super) fn assembly(text: &str) -> Result<Report> {
    let field = |name: &str| {
        let line = text.lines().find_map(|l| l.trim_start_matches([' ', '-']).strip_prefix(name));
        line.and_then(|rest| rest.trim().parse::<u32>().ok()).with_context(|| format!("the assembly has no {name}"))
    };
    Ok(Report {
        registers: field(".vgpr_count:")?,
        // Scalar registers are spilled to lanes of vector registers; where those run out, the stack shows it.
        spilled_bytes: 4 * field(".vgpr_spill_count:")?,
        stack_bytes: field(".private_segment_fixed_size:")?,
        loads: count(text, |opcode| amd_width(opcode, "load")),
        stores: count(text, |opcode| amd_width(opcode, "store")),
    })
}

/// The figures of `ptxas -v`.
fn remarks(log: &str) -> Option<Report> {
    let before = |what: &str| {
        let line = log.lines().find(|l| l.contains(what))?;
        line[..line.find(what)?].split_whitespace().last()?.trim_matches(',').parse::<u32>().ok()
    };
    Some(Report {
        registers: before(" registers")?,
        spilled_bytes: before(" bytes spill stores")? + before(" bytes spill loads")?,
        stack_bytes: before(" bytes stack frame")?,
        ..Report::default()
    })
}

/// Counts the instructions that have a width, widest first.
fn count(listing: &str, width_of: impl Fn(&str) -> Option<u32>) -> Vec<(u32, u32)> {
    let mut counts = [32, 16, 12, 8, 4, 2, 1].map(|width| (width, 0));
    for width in listing.lines().flat_map(str::split_whitespace).filter_map(width_of) {
        counts.iter_mut().filter(|(w, _)| *w == width).for_each(|(_, n)| *n += 1);
    }
    counts.into_iter().filter(|(_, n)| *n > 0).collect()
}

/// Bytes of an instruction such as `LDG.E.128.CONSTANT`.
fn sass_width(opcode: &str, names: &[&str]) -> Option<u32> {
    let mut parts = opcode.trim_end_matches(';').split('.');
    if !names.contains(&parts.next()?) {
        return None;
    }
    let width = |part: &str| match part {
        "256" => Some(32),
        "128" => Some(16),
        "64" => Some(8),
        "U16" | "S16" => Some(2),
        "U8" | "S8" => Some(1),
        _ => None,
    };
    Some(parts.find_map(width).unwrap_or(4))
}

/// Bytes of an instruction such as `global_load_dwordx4`.
fn amd_width(opcode: &str, verb: &str) -> Option<u32> {
    let rest = ["global_", "flat_"].into_iter().find_map(|p| opcode.strip_prefix(p))?;
    let what = rest.strip_prefix(verb)?.strip_prefix('_')?;
    Some(match what {
        "dwordx4" => 16,
        "dwordx3" => 12,
        "dwordx2" => 8,
        "dword" => 4,
        _ if what.contains("short") => 2,
        _ if what.contains("byte") => 1,
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn the_assemblers_remarks() {
        let log = "ptxas info    : 0 bytes gmem\nptxas info    : Function properties for k\n    \
                   24 bytes stack frame, 8 bytes spill stores, 12 bytes spill loads\n\
                   ptxas info    : Used 34 registers, used 1 barriers, 32 bytes smem\n";
        let report = remarks(log).unwrap();
        assert_eq!((report.registers, report.spilled_bytes, report.stack_bytes), (34, 20, 24));
        assert_eq!(remarks("nothing"), None);
    }

    #[test]
    fn widths_of_sass() {
        let listing = "  /*0110*/  LDG.E.128.CONSTANT R4, desc[UR4][R2.64] ;\n LDG.E R9, [R2.64] ;\n LDS.128 R4, [R1] ;\n \
                       LDG.E.U8 R9, [R2.64] ; STG.E.64 [R2.64], R4 ;";
        assert_eq!(count(listing, |o| sass_width(o, &["LDG", "LD"])), [(16, 1), (4, 1), (1, 1)]);
        assert_eq!(count(listing, |o| sass_width(o, &["STG", "ST"])), [(8, 1)]);
    }

    #[test]
    fn figures_of_amd_assembly() {
        let text = "\tglobal_load_dwordx4 v[0:3], v4, s[0:1]\n\tglobal_load_ushort v1, v2, s[0:1]\n\
                    \tglobal_store_dword v4, v0, s[2:3]\n  - .agpr_count:     0\n    .private_segment_fixed_size: 16\n    \
                    .vgpr_count:     42\n    .vgpr_spill_count: 2\n";
        let report = assembly(text).unwrap();
        assert_eq!((report.registers, report.spilled_bytes, report.stack_bytes), (42, 8, 16));
        assert_eq!((report.loads, report.stores), (vec![(16, 1), (2, 1)], vec![(4, 1)]));
        assert!(assembly("").is_err());
    }
}
