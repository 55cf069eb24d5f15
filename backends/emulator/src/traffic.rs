//! What kernels move against what they must, counted access by access.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::native::NativeTraffic;

/// Bytes of the buffers that make up most of what a kernel touches: those with at least an eighth of all different bytes.
///
/// Small ones are left out, since the units of a plane read them together: a device loads them once for all.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Traffic {
    /// Bytes that units read and write, every access counted.
    pub moved: u64,
    /// Different bytes that they read, and different bytes that they write.
    pub least: u64,
}

impl Traffic {
    fn of(counters: &[NativeTraffic]) -> Traffic {
        let distinct = |c: &NativeTraffic| c.distinct_read + c.distinct_written;
        let all: u64 = counters.iter().map(distinct).sum();
        let large = counters.iter().filter(|c| distinct(c) * 8 >= all);
        large.fold(Traffic::default(), |sum, c| Traffic {
            moved: sum.moved + c.read + c.written,
            least: sum.least + distinct(c),
        })
    }
}

/// Counts by kernel; `None` until they are wanted.
#[derive(Debug, Default)]
pub(crate) struct TrafficByKernel(Mutex<Option<BTreeMap<String, Traffic>>>);

impl TrafficByKernel {
    fn counts(&self) -> MutexGuard<'_, Option<BTreeMap<String, Traffic>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn begin(&self) {
        *self.counts() = Some(BTreeMap::new());
    }

    pub(crate) fn all(&self) -> BTreeMap<String, Traffic> {
        self.counts().clone().unwrap_or_default()
    }

    /// One counter per region of a launch, where they are wanted.
    pub(crate) fn counters(&self, regions: usize) -> Option<Vec<NativeTraffic>> {
        self.counts().as_ref().map(|_| vec![NativeTraffic::default(); regions])
    }

    pub(crate) fn add(&self, kernel: &str, counters: &[NativeTraffic]) {
        let launch = Traffic::of(counters);
        if let Some(counts) = self.counts().as_mut() {
            let sum = counts.entry(kernel.to_owned()).or_default();
            sum.moved += launch.moved;
            sum.least += launch.least;
        }
    }
}
