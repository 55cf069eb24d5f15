//! Decode kernels at K3's sizes, as bytes that they must move per second, against a measured copy.
//!
//! Bytes are those that have to be read or written at least once: states and latents, weights and their scales. Each
//! measurement goes round several sets of data, together larger than any cache.

mod decode;
mod experts;

use std::time::{Duration, Instant};

use anyhow::Result;
use perilune_backend::Backend;
use perilune_tensor::{HostTensor, TensorSpec};

use crate::options::Size;

/// Bytes that sets of data have together at least: several times the largest cache of a GPU.
const BEYOND_CACHES: usize = 1 << 30;
/// Calls of a measurement take at least this long together.
const LEAST_TIME: Duration = Duration::from_millis(50);
/// Measurements of each kernel.
const REPEATS: usize = 5;

/// A kernel with its data.
pub(crate) struct Measured<'a> {
    pub(crate) name: String,
    /// Bytes that one call must move.
    pub(crate) bytes: usize,
    /// Enqueues call number `i`.
    #[allow(clippy::type_complexity)]
    pub(crate) call: Box<dyn FnMut(usize) -> Result<()> + 'a>,
}

/// How many sets of data are gone round.
pub(crate) fn sets(bytes_each: usize, size: Size) -> usize {
    if size == Size::Small { 2 } else { BEYOND_CACHES.div_ceil(bytes_each.max(1)).clamp(2, 512) }
}

/// Makes a measurement on a backend.
type Make<B> = for<'a> fn(&'a B, Size) -> Result<Measured<'a>>;

/// Every kernel of the table. Each is made when its turn comes: all data together would not fit.
fn rows<B: Backend>() -> [Make<B>; 8] {
    [
        |b, size| decode::kda(b, 1, size),
        |b, size| decode::kda(b, 8, size),
        |b, size| decode::kda(b, 64, size),
        |b, size| decode::mla(b, 4 << 10, size),
        |b, size| decode::mla(b, 64 << 10, size),
        |b, size| decode::mla(b, 256 << 10, size),
        experts::mxfp4,
        experts::bf16_projection,
    ]
}

/// One call of every kernel, at small sizes.
#[cfg(feature = "emulator")]
pub(crate) fn once<B: Backend>(backend: &B) -> Result<()> {
    rows::<B>().iter().try_for_each(|make| (make(backend, Size::Small)?.call)(0))
}

/// Prints the table; without a GPU, only that each kernel ran.
pub(crate) fn run<B: Backend>(backend: &B, size: Size) -> Result<()> {
    if size == Size::Small {
        return rows::<B>().iter().try_for_each(|make| {
            let mut measured = make(backend, size)?;
            (measured.call)(0)?;
            backend.synchronize()?;
            println!("ran {}", measured.name);
            Ok(())
        });
    }
    let copy = rate(backend, copy(backend)?)?;
    println!("\n{:<44}{:>10}{:>12}{:>9}{:>9}", "kernel", "MB", "µs a call", "GB/s", "of copy");
    println!("{:<44}{:>10}{:>12}{:>9.1}{:>9}", "copy within the device", "", "", copy.gb_per_s, "");
    rows::<B>().iter().try_for_each(|make| print_row(backend, make(backend, size)?, copy.gb_per_s))
}

fn print_row<B: Backend>(backend: &B, measured: Measured<'_>, copy: f64) -> Result<()> {
    let (name, bytes) = (measured.name.clone(), measured.bytes);
    let Rate { gb_per_s, seconds } = rate(backend, measured)?;
    let (mb, us, share) = (bytes as f64 / 1e6, seconds * 1e6, 100.0 * gb_per_s / copy);
    println!("{name:<44}{mb:>10.2}{us:>12.1}{gb_per_s:>9.1}{share:>8.0}%");
    Ok(())
}

struct Rate {
    gb_per_s: f64,
    seconds: f64,
}

/// The median of several measurements, each of as many calls as take a while together.
fn rate<B: Backend>(backend: &B, mut measured: Measured<'_>) -> Result<Rate> {
    let mut next = 0;
    let mut time = |calls: usize| -> Result<Duration> {
        let begin = Instant::now();
        for _ in 0..calls {
            (measured.call)(next)?;
            next += 1;
        }
        backend.synchronize()?;
        Ok(begin.elapsed())
    };
    // Loads kernels, makes tables.
    time(2)?;
    let mut calls = 1;
    while time(calls)? < LEAST_TIME {
        calls *= 2;
    }
    let mut seconds: Vec<f64> = Vec::new();
    for _ in 0..REPEATS {
        seconds.push(time(calls)?.as_secs_f64() / calls as f64);
    }
    seconds.sort_by(f64::total_cmp);
    let seconds = seconds[seconds.len() / 2];
    Ok(Rate { gb_per_s: measured.bytes as f64 / seconds / 1e9, seconds })
}

fn copy<B: Backend>(backend: &B) -> Result<Measured<'_>> {
    let half = BEYOND_CACHES / 4;
    let mut tensor = backend.alloc(&TensorSpec::f32([2 * half]))?;
    // Read and written.
    let bytes = 2 * 4 * half;
    let call = move |i: usize| {
        let (from, to) = if i.is_multiple_of(2) { (0..half, half) } else { (half..2 * half, 0) };
        Ok(backend.copy_within(&mut tensor, from, to)?)
    };
    Ok(Measured { name: "copy".into(), bytes, call: Box::new(call) })
}

/// Values between -1 and 1, the same every time.
pub(crate) fn values(count: usize) -> Vec<f32> {
    let mut state = 1_u32;
    let mut next = || {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (state >> 8) as f32 / (1 << 23) as f32 - 1.0
    };
    (0..count).map(|_| next()).collect()
}

/// Such values on the device.
pub(crate) fn noise<B: Backend>(backend: &B, shape: &[usize]) -> Result<B::Tensor> {
    let all = values(shape.iter().product());
    let host = HostTensor::from_f32(shape.to_vec(), &all).ok_or_else(|| anyhow::anyhow!("{shape:?}"))?;
    Ok(backend.upload(&host)?)
}

/// Indices on the device.
pub(crate) fn indices<B: Backend>(backend: &B, all: &[u32]) -> Result<B::Tensor> {
    let host = HostTensor::from_u32([all.len()], all).ok_or_else(|| anyhow::anyhow!("{} indices", all.len()))?;
    Ok(backend.upload(&host)?)
}
