//! From a [`Variant`] to the C++ of a target, without a device or a toolkit.

mod abi;
mod builder;
mod canonical;
pub mod emit;

use cubecl::prelude::*;
use cubecl_core::Compiler;
use cubecl_cpp::shared::{CompilationOptions, CppCompiler, CppSupportedFeatures};
use cubecl_cpp::target::{Cuda, Hip};

pub use builder::Builder;

use crate::mla::MlaStage;
use crate::{Abi, Access, Dialect, Target, Variant};

/// A kernel as C++ text, with all that a launcher must know of it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KernelSource {
    /// [`Variant::name`].
    pub name: String,
    /// Name of the entry point: the variant's.
    pub entry: String,
    /// CUDA or HIP C++, one translation unit.
    pub text: String,
    /// Units of a cube, fixed at compile time.
    pub units: usize,
    /// Units of a plane that the text was made for.
    pub plane: usize,
    /// Dynamic shared memory that a launch must ask for, in bytes.
    pub shared_bytes: usize,
    /// How it takes its arguments.
    pub abi: Abi,
}

/// A kernel that CubeCL could not turn into C++: a fault in the kernel or an operation that the target lacks.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CompileError {
    /// The kernel.
    pub name: String,
    /// What CubeCL said.
    pub reason: String,
}

impl std::fmt::Display for CompileError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "kernel {}: {}", self.name, self.reason)
    }
}

impl std::error::Error for CompileError {}

/// The C++ of a kernel for a target.
///
/// # Errors
/// What CubeCL says of a kernel that it cannot compile.
pub fn source(variant: &Variant, target: Target) -> Result<KernelSource, CompileError> {
    let name = variant.name();
    let definition = define(variant, &Builder::new(target));
    let generated_entry = definition.settings.kernel_name.clone();
    let info = definition.info.clone();
    let options = CompilationOptions {
        warp_size: target.plane,
        supports_features: CppSupportedFeatures {
            grid_constants: target.dialect == Dialect::Cuda,
            ..Default::default()
        },
        ..Default::default()
    };
    let kernel = match target.dialect {
        Dialect::Cuda => CppCompiler::<Cuda>::default().compile(definition, &options),
        Dialect::Hip => CppCompiler::<Hip>::default().compile(definition, &options),
    };
    let fail = |reason: String| CompileError { name: name.clone(), reason };
    let kernel = kernel.map_err(|e| fail(format!("{e:?}")))?;
    let access = |writes: bool| if writes { Access::Write } else { Access::Read };
    let accesses = kernel.io.iter().map(|io| access(io.is_writable())).collect();
    let abi = abi::describe(&info, accesses).map_err(fail)?;
    if !kernel.source.contains(&format!("{generated_entry}(")) {
        return Err(fail(format!("the text has no entry point `{generated_entry}`")));
    }
    // The generated name has a hash that differs from build to build.
    let text = canonical::renumber(&kernel.source).replace(&generated_entry, &name);
    let text = match target.dialect {
        Dialect::Cuda => text,
        Dialect::Hip => info_by_value(&text).ok_or_else(|| fail("takes no structure of scalars last".into()))?,
    };
    let units = variant.geometry().units;
    Ok(KernelSource {
        entry: name.clone(),
        text,
        units,
        plane: target.plane,
        shared_bytes: kernel.shared_memory_size,
        abi,
        name,
    })
}

/// CubeCL's HIP takes the structure as a pointer to device memory, which a launcher would have to keep filled for as long as
/// a recorded launch may be replayed. By value it is part of the launch, as on CUDA.
fn info_by_value(text: &str) -> Option<String> {
    const POINTER: &str = "info_st const* const __restrict__ ";
    let (before, after) = text.split_once(POINTER)?;
    let (name, body) = after.split_once(") {")?;
    Some(format!("{before}info_st const info_argument) {{\ninfo_st const* const {name} = &info_argument;{body}"))
}

fn define(variant: &Variant, builder: &Builder) -> KernelDefinition {
    match variant {
        Variant::Linear(v) => v.define(builder),
        Variant::AttnResidual(v) => v.define(builder),
        Variant::MoeProduct(v) => v.define(builder),
        Variant::MoeStep(v) => v.define(builder),
        Variant::MoeRoute(v) => v.define(builder),
        Variant::RmsNorm(v) => v.define(builder),
        Variant::Gather(v) => v.define(builder),
        Variant::GatedAct(v) => v.define(builder),
        Variant::KdaDecode(v) => v.define_decode(builder),
        Variant::KdaPrefill(v) => v.define_prefill(builder),
        Variant::KdaVerify(v) => v.define_verify(builder),
        Variant::KdaFold(v) => v.define_fold(builder),
        Variant::Mla(v, stage) => match stage {
            MlaStage::Append => v.define_append(builder),
            MlaStage::Absorb => v.define_absorb(builder),
            MlaStage::Attend => v.define_attend(builder),
            MlaStage::Value => v.define_value(builder),
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_parameter_becomes_a_value() {
        let text = "struct info_st {};\nvoid k(float* v0, info_st const* const __restrict__ v1) {\nreturn;}";
        let wanted = "struct info_st {};\nvoid k(float* v0, info_st const info_argument) {\ninfo_st const* const v1 = &info_argument;\nreturn;}";
        assert_eq!(info_by_value(text).as_deref(), Some(wanted));
        assert_eq!(info_by_value("void k(float* v0) {}"), None);
    }
}
