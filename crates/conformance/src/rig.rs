//! What all checks need: deterministic values, tensors on the device and back, random sizes, comparison.

use perilune_backend::{Backend, Weight};
use perilune_reference::int_groups::Bits;
use perilune_reference::mxfp4;
use perilune_tensor::{DType, HostTensor, INT_FEATURES, INT_GROUP, MXFP4_GROUP, QuantFormat, Shape, TensorSpec};
use proptest::strategy::Strategy;
use proptest::test_runner::{Config, RngAlgorithm, TestCaseError, TestRng, TestRunner};

/// Deterministic pseudo-random values.
pub(crate) struct Noise(u64);

impl Noise {
    pub(crate) fn new(seed: u64) -> Noise {
        Noise(seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) ^ 0x1234_5678)
    }

    pub(crate) fn bits(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }

    /// In `[-1, 1)`.
    pub(crate) fn unit(&mut self) -> f32 {
        (self.bits() >> 40) as f32 / (1 << 23) as f32 - 1.0
    }

    pub(crate) fn below(&mut self, n: usize) -> usize {
        (self.bits() % n as u64) as usize
    }

    /// `n` values in `[-scale, scale)`.
    pub(crate) fn row(&mut self, n: usize, scale: f32) -> Vec<f32> {
        (0..n).map(|_| self.unit() * scale).collect()
    }

    /// The numbers `0 .. n` in random order.
    pub(crate) fn shuffled(&mut self, n: usize) -> Vec<u32> {
        let mut list: Vec<u32> = (0..n as u32).collect();
        for i in (1..n).rev() {
            list.swap(i, self.below(i + 1));
        }
        list
    }
}

/// Runs a check over values of a strategy, the same ones every time.
pub(crate) fn for_all<S: Strategy>(cases: u32, strategy: S, check: impl Fn(S::Value)) {
    let config = Config { cases, failure_persistence: None, ..Config::default() };
    let rng = TestRng::deterministic_rng(RngAlgorithm::ChaCha);
    let outcome = TestRunner::new_with_rng(config, rng).run(&strategy, |value| {
        check(value);
        Ok::<(), TestCaseError>(())
    });
    if let Err(failure) = outcome {
        panic!("{failure}");
    }
}

/// A backend with shorthands.
pub(crate) struct Rig<'b, B: Backend>(pub(crate) &'b B);

impl<B: Backend> Rig<'_, B> {
    pub(crate) fn f32(&self, shape: impl Into<Shape>, values: &[f32]) -> B::Tensor {
        self.0.upload(&HostTensor::from_f32(shape, values).expect("as many values as the shape has")).unwrap()
    }

    pub(crate) fn u32(&self, values: &[u32]) -> B::Tensor {
        self.0.upload(&HostTensor::from_u32([values.len()], values).expect("as many values as the shape has")).unwrap()
    }

    /// A tensor full of NaN.
    pub(crate) fn poison(&self, shape: impl Into<Shape>) -> B::Tensor {
        let shape = shape.into();
        let values = vec![f32::NAN; shape.numel()];
        self.f32(shape, &values)
    }

    pub(crate) fn read(&self, tensor: &B::Tensor) -> Vec<f32> {
        self.0.download(tensor).unwrap().wait().unwrap().to_f32()
    }

    /// Formats that the backend takes.
    pub(crate) fn formats(&self) -> Vec<QuantFormat> {
        self.0.info().formats.clone()
    }

    /// A random matrix of about unit gain in a format, and the values it stands for.
    pub(crate) fn weight(
        &self,
        format: QuantFormat,
        size: [usize; 2],
        noise: &mut Noise,
    ) -> (Weight<B::Tensor>, Vec<f32>) {
        let [out, inp] = size;
        let scale = (3.0 / inp.max(1) as f32).sqrt();
        match format {
            QuantFormat::Mxfp4 => return self.mxfp4(size, noise),
            QuantFormat::Int8 => return self.int((format, Bits::Eight), size, noise),
            QuantFormat::Int4 => return self.int((format, Bits::Four), size, noise),
            _ => {}
        }
        let exact = noise.row(out * inp, scale);
        let (dtype, bytes): (DType, Vec<u8>) = match format {
            QuantFormat::Bf16 => {
                (DType::Bf16, exact.iter().flat_map(|v| half::bf16::from_f32(*v).to_le_bytes()).collect())
            }
            QuantFormat::F16 => {
                (DType::F16, exact.iter().flat_map(|v| half::f16::from_f32(*v).to_le_bytes()).collect())
            }
            _ => (DType::F32, exact.iter().flat_map(|v| v.to_le_bytes()).collect()),
        };
        let host = HostTensor::from_vec(TensorSpec::new(dtype, [out, inp]), bytes).expect("as many bytes as needed");
        let values = host.to_f32();
        (Weight { format, data: self.0.upload(&host).unwrap(), scales: None }, values)
    }

    fn mxfp4(&self, [out, inp]: [usize; 2], noise: &mut Noise) -> (Weight<B::Tensor>, Vec<f32>) {
        let packed: Vec<u8> = (0..out * inp / 2).map(|_| noise.bits() as u8).collect();
        let scales: Vec<u8> = (0..out * inp / 32).map(|_| 122 + noise.below(4) as u8).collect();
        let rows = packed.chunks_exact(inp / 2).zip(scales.chunks_exact(inp / 32));
        let values = rows.flat_map(|(p, s)| mxfp4::dequantize_row(p, s)).collect();
        let bytes = |width: usize, data: Vec<u8>| {
            let host = HostTensor::from_vec(TensorSpec::new(DType::U8, [out, width]), data);
            self.0.upload(&host.expect("as many bytes as needed")).unwrap()
        };
        let (data, scales) = (bytes(inp / 2, packed), Some(bytes(inp / 32, scales)));
        (Weight { format: QuantFormat::Mxfp4, data, scales }, values)
    }
}

impl<B: Backend> Rig<'_, B> {
    fn int(
        &self,
        (format, bits): (QuantFormat, Bits),
        [out, inp]: [usize; 2],
        noise: &mut Noise,
    ) -> (Weight<B::Tensor>, Vec<f32>) {
        let width = inp / format.columns_per_element();
        let data: Vec<u8> = (0..out * width).map(|_| noise.bits() as u8).collect();
        // Numbers drawn evenly have a deviation of about 74 or 4.6.
        let unit = if bits == Bits::Eight { 74.0 } else { 4.6 } * (inp.max(1) as f32).sqrt();
        let scales: Vec<half::bf16> =
            (0..out * inp / INT_GROUP).map(|_| half::bf16::from_f32((1.0 + noise.unit() / 2.0) / unit)).collect();
        let words: Vec<u16> = scales.iter().map(|scale| scale.to_bits()).collect();
        let values = perilune_reference::int_groups::dequantize(bits, &data, &words, inp);
        let upload = |dtype, shape: [usize; 2], bytes: Vec<u8>| {
            let host = HostTensor::from_vec(TensorSpec::new(dtype, shape), bytes);
            self.0.upload(&host.expect("as many bytes as needed")).unwrap()
        };
        let scales = scales.iter().flat_map(|scale| scale.to_le_bytes()).collect();
        let scales = upload(DType::Bf16, [out, inp / INT_GROUP], scales);
        (Weight { format, data: upload(DType::U8, [out, width], data), scales: Some(scales) }, values)
    }
}

/// The nearest larger size of a matrix that the format can have.
pub(crate) fn fitting(format: QuantFormat, [out, inp]: [usize; 2]) -> [usize; 2] {
    match format {
        QuantFormat::Mxfp4 => [out, inp.next_multiple_of(MXFP4_GROUP)],
        QuantFormat::Int8 | QuantFormat::Int4 => [out.next_multiple_of(INT_FEATURES), inp.next_multiple_of(INT_GROUP)],
        _ => [out, inp],
    }
}

/// What a product in a format may be off by: with whole-number formats a backend may round activations to bytes.
pub(crate) fn tolerance(format: QuantFormat, exact: f32) -> f32 {
    if format.is_int() { 2e-2 } else { exact }
}

/// Panics unless the values agree within `tolerance` of the larger of 1 and the largest magnitude wanted.
pub(crate) fn assert_close(what: &str, got: &[f32], want: &[f32], tolerance: f32) {
    assert_eq!(got.len(), want.len(), "{what}: number of values");
    let scale = want.iter().fold(1.0_f32, |m, v| m.max(v.abs()));
    for (i, (g, w)) in got.iter().zip(want).enumerate() {
        assert!((g - w).abs() <= tolerance * scale, "{what}: value {i} is {g}, expected {w}");
    }
}

/// Panics unless every value is still the NaN it was poisoned with.
pub(crate) fn assert_untouched(what: &str, values: &[f32]) {
    assert!(values.iter().all(|v| v.is_nan()), "{what}: values were written that do not belong to the operation");
}
