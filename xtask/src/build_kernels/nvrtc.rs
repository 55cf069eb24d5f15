//! CUDA C++ to a cubin, by the runtime compiler loaded from the unpacked package.

use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::ptr;

use anyhow::{Context, Result, bail};
use libloading::Library;

use super::toolchain::Toolchain;

type Program = *mut c_void;
type Create = unsafe extern "C" fn(
    *mut Program,
    *const c_char,
    *const c_char,
    c_int,
    *const *const c_char,
    *const *const c_char,
) -> c_int;
type Compile = unsafe extern "C" fn(Program, c_int, *const *const c_char) -> c_int;
type Size = unsafe extern "C" fn(Program, *mut usize) -> c_int;
type Get = unsafe extern "C" fn(Program, *mut c_char) -> c_int;
type Destroy = unsafe extern "C" fn(*mut Program) -> c_int;

/// The loaded compiler.
pub(super) struct Nvrtc {
    library: Library,
    /// Loaded first, because the compiler looks for it by name only.
    _builtins: Library,
    includes: [CString; 2],
}

/// How the assembler weighs registers against threads that run at once.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Thrift {
    /// As it likes: now and then it spills a little to fit another block.
    Usual,
    /// More registers rather than spills.
    Generous,
}

/// What a compilation gives.
pub(super) struct Cubin {
    pub(super) image: Vec<u8>,
    /// The compiler's remarks, with the assembler's report of registers and spills.
    pub(super) log: String,
}

impl Nvrtc {
    /// Loads the compiler of an unpacked toolchain.
    ///
    /// # Errors
    /// Where a library is missing or does not load.
    pub(super) fn load(toolchain: &Toolchain) -> Result<Nvrtc> {
        let open = |name: &str| {
            let path = toolchain.path("nvidia/cu13/lib").join(name);
            // SAFETY: the file is the pinned vendor's library, whose initialisers have no preconditions.
            unsafe { Library::new(&path) }.with_context(|| format!("cannot load {}", path.display()))
        };
        let include = |folder: &str| CString::new(format!("-I{}", toolchain.path(folder).display()));
        Ok(Nvrtc {
            _builtins: open("libnvrtc-builtins.so.13.5")?,
            library: open("libnvrtc.so.13")?,
            includes: [include("nvidia/cu13/include")?, include("nvidia/cu13/include/cccl")?],
        })
    }

    /// Compiles one translation unit for one architecture.
    ///
    /// # Errors
    /// With the compiler's log.
    pub(super) fn compile(&self, source: &str, (architecture, thrift): (&str, Thrift)) -> Result<Cubin> {
        let source = match thrift {
            Thrift::Usual => source.to_owned(),
            // Two blocks at once are enough: registers for more of them are what is spilled for.
            Thrift::Generous => source.replacen("__launch_bounds__(256)", "__launch_bounds__(256, 2)", 1),
        };
        let (source, name) = (CString::new(source)?, c"kernel.cu");
        let mut program: Program = ptr::null_mut();
        // SAFETY: both strings end in NUL and outlive the call; no headers are passed.
        let created = unsafe {
            self.symbol::<Create>(c"nvrtcCreateProgram")?(
                &mut program,
                source.as_ptr(),
                name.as_ptr(),
                0,
                ptr::null(),
                ptr::null(),
            )
        };
        if created != 0 {
            bail!("the CUDA compiler did not take the source (code {created})");
        }
        let cubin = self.finish(program, (architecture, thrift));
        // SAFETY: `program` was created above and is not used afterwards.
        unsafe { self.symbol::<Destroy>(c"nvrtcDestroyProgram")?(&mut program) };
        cubin
    }

    fn finish(&self, program: Program, (architecture, thrift): (&str, Thrift)) -> Result<Cubin> {
        let architecture = CString::new(format!("--gpu-architecture={architecture}"))?;
        // Kernels say where they want a fused multiply-add; what else is contracted would differ from kernel to kernel.
        let flags = [c"--std=c++17", c"--fmad=false", c"--ftz=false", c"--ptxas-options=-v"];
        let mut options = vec![architecture.as_ptr()];
        options.extend(flags.map(CStr::as_ptr));
        if thrift == Thrift::Generous {
            options.push(c"--ptxas-options=--register-usage-level=10".as_ptr());
        }
        options.extend(self.includes.iter().map(|i| i.as_ptr()));
        // SAFETY: a live program; every option ends in NUL and outlives the call.
        let compiled = unsafe {
            self.symbol::<Compile>(c"nvrtcCompileProgram")?(program, options.len() as c_int, options.as_ptr())
        };
        let log = self.text(program, (c"nvrtcGetProgramLogSize", c"nvrtcGetProgramLog"))?;
        let log = String::from_utf8_lossy(&log).trim_end_matches('\0').to_owned();
        if compiled != 0 {
            bail!("the CUDA compiler refused the source (code {compiled}):\n{log}");
        }
        Ok(Cubin { image: self.text(program, (c"nvrtcGetCUBINSize", c"nvrtcGetCUBIN"))?, log })
    }

    /// One of the program's results, by the functions for its size and its bytes.
    fn text(&self, program: Program, (size_of, get): (&CStr, &CStr)) -> Result<Vec<u8>> {
        let mut size = 0;
        // SAFETY: a live program and a place for the size.
        let sized = unsafe { self.symbol::<Size>(size_of)?(program, &mut size) };
        let mut bytes = vec![0_u8; size];
        // SAFETY: the buffer has the size that the library asked for.
        let got = unsafe { self.symbol::<Get>(get)?(program, bytes.as_mut_ptr().cast()) };
        if sized != 0 || got != 0 {
            bail!("{} failed (codes {sized}, {got})", get.to_string_lossy());
        }
        Ok(bytes)
    }

    fn symbol<T: Copy>(&self, name: &CStr) -> Result<T> {
        // SAFETY: the types above are the library's documented signatures of these names.
        let symbol = unsafe { self.library.get::<T>(name) };
        Ok(*symbol.with_context(|| format!("the CUDA compiler has no {}", name.to_string_lossy()))?)
    }
}
