//! A row that is not finite must not reach outside of its tensors, nor change its neighbours.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)] // all of it is test code

mod rig;

use perilune_backend::{Backend, MoeRoute, Renormalize};
use perilune_tensor::{HostTensor, TensorSpec};

/// Ids that three rows choose, with these values in the second.
fn chosen(plane: usize, second: &[f32]) -> Option<Vec<u32>> {
    let gpu = rig::gpu(plane)?;
    let experts = second.len();
    let plain: Vec<f32> = (0..experts).map(|e| ((e * 7) % experts) as f32 / experts as f32).collect();
    let rows = [&plain, second, &plain].concat();
    let logits = gpu.upload(&HostTensor::from_f32([3, experts], &rows).unwrap()).unwrap();
    let bias = gpu.upload(&HostTensor::from_f32([experts], &vec![0.1; experts]).unwrap()).unwrap();
    let mut ids = gpu.alloc(&TensorSpec::u32([3, 4])).unwrap();
    let mut weights = gpu.alloc(&TensorSpec::f32([3, 4])).unwrap();
    gpu.moe_route(MoeRoute {
        rows: 3,
        logits: &logits,
        bias: &bias,
        num_groups: 1,
        topk_groups: 1,
        renormalize: Renormalize::Sum,
        scale: 1.0,
        ids: &mut ids,
        weights: &mut weights,
    })
    .unwrap();
    let bytes = gpu.download(&ids).unwrap().wait().unwrap();
    Some(bytes.bytes().chunks_exact(4).map(|b| u32::from_le_bytes([b[0], b[1], b[2], b[3]])).collect())
}

#[test]
fn routing_of_what_is_not_a_number() {
    const EXPERTS: usize = 300;
    for plane in [32, 64] {
        let mut some = vec![0.5; EXPERTS];
        (0..EXPERTS).step_by(3).for_each(|e| some[e] = f32::NAN);
        for second in [vec![f32::NAN; EXPERTS], some, vec![f32::INFINITY; EXPERTS], vec![f32::NEG_INFINITY; EXPERTS]] {
            let Some(ids) = chosen(plane, &second) else { return };
            assert!(ids.iter().all(|id| (*id as usize) < EXPERTS), "{ids:?}");
            assert_eq!(ids[..4], ids[8..], "a neighbour chose differently");
        }
    }
}
