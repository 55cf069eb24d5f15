//! Packs a launch and checks it against the kernel's manifest entry.

use perilune_backend::BackendError;
use perilune_kernels_dsl::{Scalar, Variant};

use crate::{Cubes, Driver, KernelEntry, Launch, Region};

/// A kernel ready to launch.
pub(crate) struct Loaded<D: Driver> {
    pub(crate) entry: KernelEntry,
    pub(crate) function: D::Function,
}

/// A buffer argument: the region, and the size of one element of the kernel's parameter.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Argument {
    pub(crate) region: Region,
    pub(crate) element_bytes: usize,
}

/// Everything a launch takes besides the kernel.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Arguments<'a> {
    pub(crate) cubes: [usize; 2],
    pub(crate) buffers: &'a [Argument],
    /// In the order of the kernel's parameters.
    pub(crate) scalars: &'a [Scalar],
    pub(crate) reach: &'a [Region],
}

/// Launches `loaded` unless there is nothing to do.
pub(crate) fn launch<D: Driver>(driver: &D, loaded: &Loaded<D>, arguments: Arguments<'_>) -> Result<(), BackendError> {
    if arguments.cubes.contains(&0) {
        return Ok(());
    }
    let entry = &loaded.entry;
    let info = pack_info(entry, &arguments)?;
    let axis = |n: usize, most: usize| match u32::try_from(n) {
        Ok(cubes) if n <= most => Ok(cubes),
        _ => Err(fault(entry, format!("{n} cubes, at most {most}"))),
    };
    let cubes = Cubes { x: axis(arguments.cubes[0], i32::MAX as usize)?, y: axis(arguments.cubes[1], 65535)?, z: 1 };
    let buffers: Vec<Region> = arguments.buffers.iter().map(|b| b.region).collect();
    let launch = Launch {
        cubes,
        units: entry.units as u32,
        shared_bytes: entry.shared_bytes as u32,
        buffers: &buffers,
        reach: arguments.reach,
        info: &info,
    };
    driver.launch(&loaded.function, &launch)
}

/// The structure of scalars and lengths.
fn pack_info(entry: &KernelEntry, arguments: &Arguments<'_>) -> Result<Vec<u8>, BackendError> {
    let abi = &entry.abi;
    if abi.buffers.len() != arguments.buffers.len() {
        return Err(fault(entry, format!("{} buffers, expected {}", arguments.buffers.len(), abi.buffers.len())));
    }
    let mut info = vec![0; abi.info_bytes];
    let wanted: usize = abi.scalars.iter().map(|g| g.count).sum();
    if wanted != arguments.scalars.len() {
        return Err(fault(entry, format!("{} scalars, expected {wanted}", arguments.scalars.len())));
    }
    for group in &abi.scalars {
        let of_group: Vec<&Scalar> =
            arguments.scalars.iter().filter(|s| s.scalar_type() == group.scalar_type).collect();
        if of_group.len() != group.count {
            return Err(fault(entry, format!("{} scalars for {group:?}", of_group.len())));
        }
        let size = group.scalar_type.size_bytes();
        for (i, scalar) in of_group.into_iter().enumerate() {
            put_scalar(entry, &mut info, (group.offset + i * size, *scalar))?;
        }
    }
    if let Some(lengths) = abi.lengths {
        for (i, buffer) in arguments.buffers.iter().enumerate().take(lengths.count) {
            let elements = (buffer.region.bytes / buffer.element_bytes) as u64;
            put(entry, &mut info, (lengths.offset + i * 8, &elements.to_le_bytes()))?;
        }
    }
    Ok(info)
}

fn put_scalar(entry: &KernelEntry, info: &mut [u8], (at, scalar): (usize, Scalar)) -> Result<(), BackendError> {
    match scalar {
        Scalar::F32(v) => put(entry, info, (at, &v.to_le_bytes())),
        Scalar::U32(v) => put(entry, info, (at, &v.to_le_bytes())),
        Scalar::U64(v) => put(entry, info, (at, &v.to_le_bytes())),
    }
}

fn put(entry: &KernelEntry, info: &mut [u8], (at, bytes): (usize, &[u8])) -> Result<(), BackendError> {
    let Some(place) = info.get_mut(at..at + bytes.len()) else {
        return Err(fault(entry, format!("byte {at} lies past {} bytes of arguments", entry.abi.info_bytes)));
    };
    place.copy_from_slice(bytes);
    Ok(())
}

/// A launch that does not fit its manifest entry: the kernels on disk are of another version.
fn fault(entry: &KernelEntry, what: String) -> BackendError {
    BackendError::Device(format!("kernel {}: {what}", entry.name))
}

/// A manifest entry that is not what the plan asked for.
pub(crate) fn check(entry: &KernelEntry, variant: &Variant) -> Result<(), BackendError> {
    let geometry = variant.geometry();
    if (entry.units, entry.plane) != (geometry.units, geometry.plane) {
        return Err(fault(entry, format!("{} units in planes of {}, expected {geometry}", entry.units, entry.plane)));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use perilune_kernels_dsl::{Abi, Access, Lengths, ScalarGroup, ScalarType};

    fn entry() -> KernelEntry {
        let group = |scalar_type, count, offset| ScalarGroup { scalar_type, count, offset };
        KernelEntry {
            name: "test".into(),
            entry: "test_0".into(),
            file: String::new(),
            sha256: String::new(),
            units: 32,
            plane: 32,
            shared_bytes: 0,
            abi: Abi {
                buffers: vec![Access::Read, Access::Write],
                scalars: vec![group(ScalarType::F32, 1, 0), group(ScalarType::U64, 2, 8)],
                lengths: Some(Lengths { count: 2, offset: 24 }),
                info_bytes: 40,
            },
        }
    }

    fn pack(scalars: &[Scalar], buffers: usize) -> Result<Vec<u8>, BackendError> {
        let buffer = Argument { region: Region { address: 4096, bytes: 64 }, element_bytes: 16 };
        let buffers = vec![buffer; buffers];
        pack_info(&entry(), &Arguments { cubes: [1, 1], buffers: &buffers, scalars, reach: &[] })
    }

    #[test]
    fn scalars_go_to_their_groups_in_order() {
        let info = pack(&[7_usize.into(), 1.5_f32.into(), 9_usize.into()], 2).unwrap();
        let word = |i: usize| u64::from_le_bytes(info[i * 8..i * 8 + 8].try_into().unwrap());
        assert_eq!(info[..4], 1.5_f32.to_le_bytes());
        assert_eq!([word(1), word(2), word(3), word(4)], [7, 9, 4, 4]);
    }

    #[test]
    fn what_does_not_fit_is_refused() {
        assert!(pack(&[7_usize.into(), 1.5_f32.into()], 2).is_err());
        assert!(pack(&[7_usize.into(), 1.5_f32.into(), 2.5_f32.into()], 2).is_err());
        assert!(pack(&[7_usize.into(), 1.5_f32.into(), 9_usize.into()], 3).is_err());
    }
}
