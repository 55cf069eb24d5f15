//! Small tables of offsets in device memory, made once for the same contents.
//!
//! A kernel takes a fixed number of buffers, so several tensors of one kind (the weights of a pass, all experts of a layer)
//! reach it as one buffer, the lowest of them, and a table of distances from it.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use perilune_backend::BackendError;

use crate::launcher::Argument;
use crate::recording::Recording;
use crate::{Driver, Region};

/// Tables kept before all of them are dropped; a model has a few per layer and height of tiles.
const MOST: usize = 1 << 16;

/// Tables by contents.
pub(crate) struct Tables<D: Driver>(Mutex<HashMap<Vec<u64>, Arc<D::Memory>>>);

impl<D: Driver> Default for Tables<D> {
    fn default() -> Self {
        Tables(Mutex::default())
    }
}

/// A table as a buffer; the memory lives as long as it.
pub(crate) struct Table<D: Driver> {
    pub(crate) memory: Arc<D::Memory>,
    pub(crate) argument: Argument,
}

impl<D: Driver> Tables<D> {
    /// The table with these words.
    pub(crate) fn get(
        &self,
        (driver, recording): (&D, &Recording<D>),
        words: Vec<u64>,
    ) -> Result<Table<D>, BackendError> {
        let mut tables = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let bytes = words.len() * 8;
        let memory = match tables.get(&words) {
            Some(memory) => memory.clone(),
            None => {
                recording.refuse("a new table")?;
                let memory = Arc::new(driver.alloc(bytes.max(8))?);
                driver.write(part(driver.region(&memory), bytes)?, bytemuck::cast_slice(&words))?;
                if tables.len() >= MOST {
                    tables.clear();
                }
                tables.insert(words, memory.clone());
                memory
            }
        };
        let region = part(driver.region(&memory), bytes)?;
        Ok(Table { memory, argument: Argument { region, element_bytes: 8 } })
    }
}

fn part(region: Region, bytes: usize) -> Result<Region, BackendError> {
    region.part(0, bytes).ok_or_else(|| BackendError::Device(format!("a table of {bytes} bytes in {region:?}")))
}

/// Several regions as seen from the lowest.
pub(crate) struct Spread {
    /// The lowest region.
    pub(crate) base: Region,
    /// Distance of each from it, in elements of the size asked for.
    pub(crate) offsets: Vec<u64>,
}

impl Spread {
    /// The regions in steps of `element_bytes`.
    ///
    /// # Errors
    /// `Device` where a distance is no whole number of elements, or there is no region.
    pub(crate) fn new(regions: &[Region], element_bytes: usize) -> Result<Spread, BackendError> {
        let lowest = regions.iter().min_by_key(|r| r.address);
        let Some(base) = lowest.copied() else { return Err(BackendError::Device("no tensor to launch with".into())) };
        let step = element_bytes as u64;
        let offset = |region: &Region| {
            let distance = region.address - base.address;
            let fits = distance.is_multiple_of(step);
            fits.then_some(distance / step).ok_or_else(|| {
                BackendError::Device(format!("{region:?} is not aligned to {element_bytes} bytes with {base:?}"))
            })
        };
        Ok(Spread { base, offsets: regions.iter().map(offset).collect::<Result<_, _>>()? })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn distances_from_the_lowest() {
        let region = |address| Region { address, bytes: 64 };
        let spread = Spread::new(&[region(512), region(256), region(1024)], 16).unwrap();
        assert_eq!((spread.base.address, spread.offsets), (256, vec![16, 0, 48]));
        assert!(Spread::new(&[region(256), region(264)], 16).is_err());
        assert!(Spread::new(&[], 16).is_err());
    }
}
