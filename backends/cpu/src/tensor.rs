//! Tensors in host memory: owned and aligned, or shared with whoever mapped a checkpoint.

use std::alloc::{Layout, alloc_zeroed, dealloc};
use std::marker::PhantomData;
use std::ops::Range;
use std::ptr::NonNull;

use perilune_backend::{BackendError, DeviceTensor};
use perilune_tensor::{HostBytes, HostTensor, TensorSpec};

/// Alignment of owned tensors: a cache line, and the widest vector.
const ALIGN: usize = 64;

/// A tensor of the CPU backend.
///
/// Uploaded tensors share the bytes of their [`HostTensor`] as long as nobody writes to them.
pub struct CpuTensor {
    spec: TensorSpec,
    storage: Storage,
}

enum Storage {
    Owned(AlignedBytes),
    Shared { bytes: HostBytes, range: Range<usize> },
}

impl DeviceTensor for CpuTensor {
    fn spec(&self) -> &TensorSpec {
        &self.spec
    }
}

impl std::fmt::Debug for CpuTensor {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "CpuTensor({})", self.spec)
    }
}

impl CpuTensor {
    /// Zeros.
    pub(crate) fn zeros(spec: &TensorSpec) -> Result<CpuTensor, BackendError> {
        let storage = Storage::Owned(AlignedBytes::zeros(spec)?);
        Ok(CpuTensor { spec: spec.clone(), storage })
    }

    /// Shares the bytes of `host`; copies 4-byte elements that do not lie on a multiple of 4, as rows of them are read
    /// as slices. Narrower elements are read from any address.
    pub(crate) fn share(host: &HostTensor) -> Result<CpuTensor, BackendError> {
        let (bytes, range) = host.shared();
        let address = host.bytes().as_ptr() as usize;
        let mut tensor = CpuTensor { spec: host.spec().clone(), storage: Storage::Shared { bytes, range } };
        if host.spec().dtype.size_bytes() == 4 && !address.is_multiple_of(4) {
            tensor.bytes_mut()?;
        }
        Ok(tensor)
    }

    pub(crate) fn bytes(&self) -> &[u8] {
        match &self.storage {
            Storage::Owned(owned) => owned.as_slice(),
            Storage::Shared { bytes, range } => &(**bytes).as_ref()[range.clone()],
        }
    }

    /// The bytes for writing; shared ones are copied first.
    pub(crate) fn bytes_mut(&mut self) -> Result<&mut [u8], BackendError> {
        if let Storage::Shared { .. } = self.storage {
            let mut owned = AlignedBytes::zeros(&self.spec)?;
            owned.as_mut_slice().copy_from_slice(self.bytes());
            self.storage = Storage::Owned(owned);
        }
        match &mut self.storage {
            Storage::Owned(owned) => Ok(owned.as_mut_slice()),
            Storage::Shared { .. } => Err(BackendError::Device("a shared tensor was not copied".to_owned())),
        }
    }

    /// All elements, which must be 4 bytes wide each.
    pub(crate) fn elements<T: bytemuck::Pod>(&self) -> Result<&[T], BackendError> {
        bytemuck::try_cast_slice(self.bytes()).map_err(|e| BackendError::Device(format!("{self:?}: {e}")))
    }

    /// All elements, for writing.
    pub(crate) fn elements_mut<T: bytemuck::Pod>(&mut self) -> Result<&mut [T], BackendError> {
        bytemuck::try_cast_slice_mut(self.bytes_mut()?).map_err(|e| BackendError::Device(format!("{e}")))
    }

    /// All elements as `f32`.
    pub(crate) fn f32(&self) -> Result<&[f32], BackendError> {
        self.elements()
    }

    /// All elements as `u32`.
    pub(crate) fn u32(&self) -> Result<&[u32], BackendError> {
        self.elements()
    }

    /// All elements as `f32`, to be written in disjoint parts by the tasks of one loop.
    pub(crate) fn parted(&mut self) -> Result<Parted<'_, f32>, BackendError> {
        Ok(Parted::new(self.elements_mut()?))
    }
}

/// A heap allocation with room to begin on a cache line.
///
/// Asked of the allocator without that alignment: zeros with a larger alignment than its own are written one by one,
/// zeros without are fresh pages of the system, which cost nothing until they are used.
struct AlignedBytes {
    data: NonNull<u8>,
    len: usize,
    base: NonNull<u8>,
    layout: Layout,
}

/// SAFETY: it owns plain bytes.
unsafe impl Send for AlignedBytes {}
/// SAFETY: it owns plain bytes.
unsafe impl Sync for AlignedBytes {}

impl AlignedBytes {
    fn zeros(spec: &TensorSpec) -> Result<AlignedBytes, BackendError> {
        let size = spec.size_bytes();
        let refused = || BackendError::OutOfMemory { requested_bytes: size, what: spec.to_string() };
        let room = size.checked_add(ALIGN).ok_or_else(refused)?;
        let layout = Layout::from_size_align(room, 1).map_err(|_| refused())?;
        // SAFETY: the size is not 0.
        let base = NonNull::new(unsafe { alloc_zeroed(layout) }).ok_or_else(refused)?;
        let gap = (base.as_ptr() as usize).next_multiple_of(ALIGN) - base.as_ptr() as usize;
        // SAFETY: the gap is below `ALIGN`, so that `size` bytes after it lie in the allocation.
        let data = unsafe { base.add(gap) };
        Ok(AlignedBytes { data, len: size, base, layout })
    }

    fn as_slice(&self) -> &[u8] {
        // SAFETY: `data` points to `len` initialised bytes that `self` owns.
        unsafe { std::slice::from_raw_parts(self.data.as_ptr(), self.len) }
    }

    fn as_mut_slice(&mut self) -> &mut [u8] {
        // SAFETY: as above, and `self` is borrowed mutably.
        unsafe { std::slice::from_raw_parts_mut(self.data.as_ptr(), self.len) }
    }
}

impl Drop for AlignedBytes {
    fn drop(&mut self) {
        // SAFETY: allocated with this layout and not yet freed.
        unsafe { dealloc(self.base.as_ptr(), self.layout) }
    }
}

/// A slice whose parts are written by several tasks at once.
pub(crate) struct Parted<'a, T> {
    data: *mut T,
    len: usize,
    borrow: PhantomData<&'a mut [T]>,
}

/// SAFETY: parts are disjoint by the promise of [`Parted::part`].
unsafe impl<T: Send> Sync for Parted<'_, T> {}
/// SAFETY: it is a mutable slice.
unsafe impl<T: Send> Send for Parted<'_, T> {}

impl<'a, T> Parted<'a, T> {
    pub(crate) fn new(slice: &'a mut [T]) -> Self {
        Parted { data: slice.as_mut_ptr(), len: slice.len(), borrow: PhantomData }
    }

    /// One part.
    ///
    /// # Safety
    /// No two parts that are alive at once may overlap.
    #[allow(clippy::mut_from_ref)] // this is the type's purpose
    pub(crate) unsafe fn part(&self, range: Range<usize>) -> &mut [T] {
        assert!(range.start <= range.end && range.end <= self.len, "part {range:?} of {}", self.len);
        // SAFETY: in bounds, and disjoint from other parts by the caller's promise.
        unsafe { std::slice::from_raw_parts_mut(self.data.add(range.start), range.len()) }
    }

    /// Row `i` of rows of `width`.
    ///
    /// # Safety
    /// As [`Parted::part`].
    #[allow(clippy::mut_from_ref)] // as above
    pub(crate) unsafe fn row(&self, i: usize, width: usize) -> &mut [T] {
        // SAFETY: the caller's promise.
        unsafe { self.part(i * width..(i + 1) * width) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;

    #[test]
    fn uploads_share_until_written() {
        let host = HostTensor::from_f32([2, 2], &[1.0, 2.0, 3.0, 4.0]).unwrap();
        let mut tensor = CpuTensor::share(&host).unwrap();
        assert_eq!(tensor.bytes().as_ptr(), host.bytes().as_ptr());
        tensor.elements_mut::<f32>().unwrap()[0] = 9.0;
        assert_eq!(tensor.f32().unwrap(), [9.0, 2.0, 3.0, 4.0]);
        assert_eq!(host.to_f32()[0], 1.0);
    }

    #[test]
    fn owned_tensors_begin_on_a_cache_line() {
        for len in [0, 1, 17, 1 << 20] {
            let tensor = CpuTensor::zeros(&TensorSpec::f32([len])).unwrap();
            assert!((tensor.bytes().as_ptr() as usize).is_multiple_of(ALIGN));
            assert!(tensor.f32().unwrap().iter().all(|value| *value == 0.0));
        }
    }

    #[test]
    fn misaligned_words_are_copied() {
        let mut bytes = vec![0_u8; 17];
        let start = (0..4).find(|i| !(bytes.as_ptr() as usize + i).is_multiple_of(4)).unwrap();
        bytes[start..start + 4].copy_from_slice(&1.5_f32.to_le_bytes());
        let host = HostTensor::from_shared(TensorSpec::f32([1]), Arc::new(bytes), start..start + 4).unwrap();
        assert_eq!(CpuTensor::share(&host).unwrap().f32().unwrap(), [1.5]);
    }
}
