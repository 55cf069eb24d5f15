//! Products of few rows with stored weights.

use anyhow::Result;
use perilune_backend::{Activation, Backend, Expert, Linear, LinearPart, MoeExperts, Weight, Write};
use perilune_tensor::{DType, HostTensor, QuantFormat, TensorSpec};

use super::{Measured, noise, sets};
use crate::options::Size;

fn filled<B: Backend>(backend: &B, spec: TensorSpec, byte: u8) -> Result<B::Tensor> {
    let bytes = vec![byte; spec.size_bytes()];
    let host = HostTensor::from_vec(spec, bytes).ok_or_else(|| anyhow::anyhow!("a tensor of one byte"))?;
    Ok(backend.upload(&host)?)
}

fn mxfp4_matrix<B: Backend>(backend: &B, [out, inp]: [usize; 2]) -> Result<Weight<B::Tensor>> {
    let data = filled(backend, TensorSpec::new(DType::U8, [out, inp / 2]), 0x21)?;
    let scales = filled(backend, TensorSpec::new(DType::U8, [out, inp / 32]), 120)?;
    Ok(Weight { format: QuantFormat::Mxfp4, data, scales: Some(scales) })
}

/// One row through 16 experts in MXFP4: gate, up, down.
pub(super) fn mxfp4<B: Backend>(backend: &B, size: Size) -> Result<Measured<'_>> {
    let (top_k, width, inner) = if size == Size::Small { (2, 3584, 96) } else { (16, 3584, 3072) };
    let bytes = top_k * 3 * width * inner * 17 / 32;
    let sets = sets(bytes, size);
    let mut experts = Vec::new();
    for _ in 0..top_k * sets {
        experts.push(Expert {
            gate: mxfp4_matrix(backend, [inner, width])?,
            up: mxfp4_matrix(backend, [inner, width])?,
            down: mxfp4_matrix(backend, [width, inner])?,
        });
    }
    let chosen = |set: usize| {
        let ids: Vec<u32> = (0..top_k).map(|i| (i * sets + set) as u32).collect();
        let mut tensor = backend.alloc(&TensorSpec::u32([1, top_k]))?;
        backend.write_u32(&mut tensor, &ids)?;
        anyhow::Ok(tensor)
    };
    let ids: Vec<B::Tensor> = (0..sets).map(chosen).collect::<Result<_>>()?;
    let (x, weights) = (noise(backend, &[1, width])?, noise(backend, &[1, top_k])?);
    let mut out = backend.alloc(&TensorSpec::f32([1, width]))?;
    let act = Activation::Situ { beta: 4.0, linear_beta: Some(25.0) };
    let name = format!("moe_experts MXFP4, 1 row × {top_k} of {} experts", experts.len());
    let call = move |i: usize| {
        Ok(backend.moe_experts(MoeExperts {
            rows: 1,
            x: &x,
            ids: &ids[i % sets],
            weights: &weights,
            experts: &experts,
            act,
            out: &mut out,
            write: Write::Replace,
        })?)
    };
    Ok(Measured { name, bytes, call: Box::new(call) })
}

/// One row through the projections of a KDA layer in bfloat16, one pass.
pub(super) fn bf16_projection<B: Backend>(backend: &B, size: Size) -> Result<Measured<'_>> {
    let (inputs, outs) = if size == Size::Small { (7168, [48, 40]) } else { (7168, [12288, 12288]) };
    let bytes = 2 * inputs * outs.iter().sum::<usize>();
    let sets = sets(bytes, size);
    let matrix = |out: usize| {
        let data = filled(backend, TensorSpec::new(DType::Bf16, [out, inputs]), 0x3c)?;
        anyhow::Ok(Weight { format: QuantFormat::Bf16, data, scales: None })
    };
    let weights: Vec<[Weight<B::Tensor>; 2]> =
        (0..sets).map(|_| Ok([matrix(outs[0])?, matrix(outs[1])?])).collect::<Result<_>>()?;
    let x = noise(backend, &[1, inputs])?;
    let mut results = [noise(backend, &[1, outs[0]])?, noise(backend, &[1, outs[1]])?];
    let call = move |i: usize| {
        let [first, second] = &mut results;
        let [a, b] = &weights[i % sets];
        let mut parts = [LinearPart::replace(a, first), LinearPart::replace(b, second)];
        Ok(backend.linear(Linear { rows: 1, x: &x, parts: &mut parts })?)
    };
    let name = format!("linear bf16, 1 row, {inputs} → {} + {}", outs[0], outs[1]);
    Ok(Measured { name, bytes, call: Box::new(call) })
}
