//! Memory operations: zeros, copies, overwriting, clearing.

use perilune_backend::Backend;
use perilune_tensor::TensorSpec;

use crate::rig::Rig;

/// Fresh tensors are zero, copies are exact, partial writes and clears touch nothing else, overlong ones are refused.
pub fn check_memory<B: Backend>(backend: &B) {
    let rig = Rig(backend);
    for rows in [0, 1, 5] {
        let fresh = backend.alloc(&TensorSpec::f32([rows, 3])).unwrap();
        assert_eq!(rig.read(&fresh), vec![0.0; rows * 3]);
    }
    let values: Vec<f32> = (0..24).map(|i| i as f32 - 7.5).collect();
    let mut tensor = rig.f32([4, 2, 3], &values);
    assert_eq!(rig.read(&tensor), values);
    backend.zero(&mut tensor, 1..3).unwrap();
    backend.synchronize().unwrap();
    let cleared: Vec<f32> =
        values.iter().enumerate().map(|(i, v)| if (6..18).contains(&i) { 0.0 } else { *v }).collect();
    assert_eq!(rig.read(&tensor), cleared);
    assert!(backend.zero(&mut tensor, 3..5).is_err(), "a range past the end must be refused");

    let mut ids = rig.u32(&[9, 9, 9]);
    backend.write_u32(&mut ids, &[1, 2]).unwrap();
    assert_eq!(rig.read(&ids), [1.0, 2.0, 9.0]);
    assert!(backend.write_u32(&mut ids, &[0; 4]).is_err(), "a write past the end must be refused");
}
