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

    backend.write_range(&mut tensor, 5, &[1.0_f32, 2.0].map(f32::to_le_bytes).concat()).unwrap();
    backend.copy_within(&mut tensor, 4..8, 20).unwrap();
    let part = backend.read_range(&tensor, 19..24).unwrap();
    backend.copy_within(&mut tensor, 0..4, 20).unwrap();
    let floats =
        |bytes: Vec<u8>| -> Vec<f32> { bytes.chunks(4).map(|b| f32::from_le_bytes(b.try_into().unwrap())).collect() };
    assert_eq!(floats(part.wait().unwrap()), [11.5, -3.5, 1.0, 2.0, 0.0], "as it was when it was read");
    assert_eq!(rig.read(&tensor)[18..], [10.5, 11.5, -7.5, -6.5, -5.5, -4.5]);
    for bad in [20..25, 25..26] {
        assert!(backend.read_range(&tensor, bad).is_err(), "a range past the end must be refused");
    }
    assert!(backend.copy_within(&mut tensor, 0..4, 3).is_err(), "an overlapping copy must be refused");
    assert!(backend.copy_within(&mut tensor, 0..4, 21).is_err(), "a copy past the end must be refused");
    assert!(backend.write_range(&mut tensor, 23, &[0; 8]).is_err(), "a write past the end must be refused");
    assert!(backend.write_range(&mut tensor, 0, &[0; 6]).is_err(), "half an element must be refused");

    let mut ids = rig.u32(&[9, 9, 9]);
    backend.write_u32(&mut ids, &[1, 2]).unwrap();
    assert_eq!(rig.read(&ids), [1.0, 2.0, 9.0]);
    assert!(backend.write_u32(&mut ids, &[0; 4]).is_err(), "a write past the end must be refused");
}
