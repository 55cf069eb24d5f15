//! Reads the argument layout from CubeCL's description of a kernel.

use cubecl_core::ir::metadata::Info;
use cubecl_core::ir::{ElemType, FloatKind, UIntKind};

use crate::{Abi, Access, Lengths, ScalarGroup, ScalarType};

/// The layout; an error for a scalar type that no launcher of ours packs or a kernel that reads shapes of tensors.
pub(super) fn describe(info: &Info, buffers: Vec<Access>) -> Result<Abi, String> {
    if info.has_dynamic_meta {
        return Err("reads the shape of a tensor; pass sizes as scalars".into());
    }
    let mut scalars = Vec::new();
    for field in &info.scalars {
        let scalar_type = scalar_type(field.ty)?;
        scalars.push(ScalarGroup { scalar_type, count: field.count, offset: field.offset });
    }
    let lengths = info.sized_meta.map(|meta| Lengths { count: meta.count, offset: meta.offset });
    if lengths.is_some_and(|l| l.count != buffers.len()) {
        return Err(format!("{lengths:?} for {} buffers", buffers.len()));
    }
    Ok(Abi { buffers, scalars, lengths, info_bytes: info.dynamic_meta_offset })
}

fn scalar_type(ty: ElemType) -> Result<ScalarType, String> {
    match ty {
        ElemType::Float(FloatKind::F32) => Ok(ScalarType::F32),
        ElemType::UInt(UIntKind::U32) => Ok(ScalarType::U32),
        ElemType::UInt(UIntKind::U64) | ElemType::Index => Ok(ScalarType::U64),
        other => Err(format!("a scalar of type {other}")),
    }
}
