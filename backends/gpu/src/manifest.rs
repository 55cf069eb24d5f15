//! The manifest of a folder of compiled kernels: one block of lines per kernel.
//!
//! ```text
//! kernel rms_norm_v4_u256_p32
//! entry rms_norm_3f2a
//! file rms_norm_v4_u256_p32.cubin
//! units 256
//! plane 32
//! shared 32
//! buffers read read write
//! scalars f32*2@0 u64*1@8
//! lengths 3@16
//! info 40 value
//! ```
//!
//! `lengths` may be missing; lines with other words are ignored, so that a build can note registers and loads beside
//! what a launcher needs.

use std::collections::HashMap;

use perilune_kernels_dsl::{Abi, Access, InfoPassing, Lengths, ScalarGroup, ScalarType};

/// What is known of one compiled kernel.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KernelEntry {
    /// Name of the variant.
    pub name: String,
    /// Entry point in the binary.
    pub entry: String,
    /// File of the binary, beside the manifest.
    pub file: String,
    /// Units of a cube.
    pub units: usize,
    /// Units of a plane.
    pub plane: usize,
    /// Dynamic shared memory of a launch in bytes.
    pub shared_bytes: usize,
    /// How arguments are passed.
    pub abi: Abi,
}

/// All kernels of a folder.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Manifest {
    kernels: HashMap<String, KernelEntry>,
}

/// A manifest that cannot be read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ManifestError {
    /// Line number, from 1.
    pub line: usize,
    /// What is wrong with it.
    pub what: String,
}

impl std::fmt::Display for ManifestError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "manifest line {}: {}", self.line, self.what)
    }
}

impl std::error::Error for ManifestError {}

impl Manifest {
    /// A manifest of these kernels.
    pub fn new(entries: impl IntoIterator<Item = KernelEntry>) -> Manifest {
        Manifest { kernels: entries.into_iter().map(|e| (e.name.clone(), e)).collect() }
    }

    /// The kernel of this name.
    pub fn get(&self, name: &str) -> Option<&KernelEntry> {
        self.kernels.get(name)
    }

    /// Number of kernels.
    pub fn len(&self) -> usize {
        self.kernels.len()
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.kernels.is_empty()
    }

    /// Reads the text form.
    ///
    /// # Errors
    /// The first line that does not parse, or that lacks what a kernel needs.
    pub fn parse(text: &str) -> Result<Manifest, ManifestError> {
        let mut kernels = HashMap::new();
        let mut block: Option<(usize, HashMap<&str, &str>)> = None;
        let numbered = text.lines().enumerate().map(|(i, line)| (i + 1, line));
        for (line, text) in numbered.chain([(usize::MAX, "kernel")]) {
            let (word, rest) = text.trim().split_once(' ').unwrap_or((text.trim(), ""));
            if word != "kernel" {
                if let Some((_, fields)) = &mut block {
                    fields.insert(word, rest.trim());
                }
                continue;
            }
            if let Some((at, fields)) = block.take() {
                let entry = parse_entry(&fields).map_err(|what| ManifestError { line: at, what })?;
                kernels.insert(entry.name.clone(), entry);
            }
            block = Some((line, HashMap::from([("kernel", rest.trim())])));
        }
        Ok(Manifest { kernels })
    }
}

fn parse_entry(fields: &HashMap<&str, &str>) -> Result<KernelEntry, String> {
    let field = |name: &str| fields.get(name).copied().ok_or_else(|| format!("no `{name}`"));
    let number = |name: &str| parse_number(field(name)?);
    let buffers = field("buffers")?.split_whitespace().map(|word| match word {
        "read" => Ok(Access::Read),
        "write" => Ok(Access::Write),
        other => Err(format!("buffer `{other}`")),
    });
    let (info_bytes, passing) = field("info")?.split_once(' ').ok_or("`info` needs two words")?;
    let passing = match passing {
        "value" => InfoPassing::Value,
        "pointer" => InfoPassing::Pointer,
        other => return Err(format!("info by `{other}`")),
    };
    let lengths = fields.get("lengths").map(|text| {
        let (count, offset) = text.split_once('@').ok_or("`lengths` needs `count@offset`")?;
        Ok::<_, String>(Lengths { count: parse_number(count)?, offset: parse_number(offset)? })
    });
    Ok(KernelEntry {
        name: field("kernel")?.into(),
        entry: field("entry")?.into(),
        file: field("file")?.into(),
        units: number("units")?,
        plane: number("plane")?,
        shared_bytes: number("shared")?,
        abi: Abi {
            buffers: buffers.collect::<Result<_, _>>()?,
            scalars: field("scalars")?.split_whitespace().map(parse_group).collect::<Result<_, _>>()?,
            lengths: lengths.transpose()?,
            info_bytes: parse_number(info_bytes)?,
            passing,
        },
    })
}

fn parse_group(text: &str) -> Result<ScalarGroup, String> {
    let bad = || format!("scalars `{text}`, expected `type*count@offset`");
    let (scalar_type, rest) = text.split_once('*').ok_or_else(bad)?;
    let (count, offset) = rest.split_once('@').ok_or_else(bad)?;
    let scalar_type = match scalar_type {
        "f32" => ScalarType::F32,
        "u32" => ScalarType::U32,
        "u64" => ScalarType::U64,
        _ => return Err(bad()),
    };
    Ok(ScalarGroup { scalar_type, count: parse_number(count)?, offset: parse_number(offset)? })
}

fn parse_number(text: &str) -> Result<usize, String> {
    text.parse().map_err(|_| format!("`{text}` is not a number"))
}

impl std::fmt::Display for KernelEntry {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let abi = &self.abi;
        writeln!(f, "kernel {}\nentry {}\nfile {}", self.name, self.entry, self.file)?;
        writeln!(f, "units {}\nplane {}\nshared {}", self.units, self.plane, self.shared_bytes)?;
        let words: Vec<&str> = abi.buffers.iter().map(|b| if *b == Access::Read { "read" } else { "write" }).collect();
        writeln!(f, "buffers {}", words.join(" "))?;
        let group = |g: &ScalarGroup| {
            let name = match g.scalar_type {
                ScalarType::F32 => "f32",
                ScalarType::U32 => "u32",
                ScalarType::U64 => "u64",
            };
            format!("{name}*{}@{}", g.count, g.offset)
        };
        writeln!(f, "scalars {}", abi.scalars.iter().map(group).collect::<Vec<_>>().join(" "))?;
        if let Some(lengths) = abi.lengths {
            writeln!(f, "lengths {}@{}", lengths.count, lengths.offset)?;
        }
        let passing = if abi.passing == InfoPassing::Value { "value" } else { "pointer" };
        writeln!(f, "info {} {passing}", abi.info_bytes)
    }
}

impl std::fmt::Display for Manifest {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let mut entries: Vec<&KernelEntry> = self.kernels.values().collect();
        entries.sort_by(|a, b| a.name.cmp(&b.name));
        entries.into_iter().try_for_each(|entry| writeln!(f, "{entry}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "\
kernel rms_norm_v4_u256_p32
entry rms_norm_3f2a
file rms_norm_v4_u256_p32.cubin
units 256
plane 32
shared 32
buffers read read write
scalars f32*2@0 u64*1@8
lengths 3@16
info 40 value
registers 34

kernel plain
entry plain_0
file plain.cubin
units 32
plane 32
shared 0
buffers
scalars
info 0 pointer
";

    #[test]
    fn text_and_back() {
        let manifest = Manifest::parse(TEXT).unwrap();
        assert_eq!(manifest.len(), 2);
        let entry = manifest.get("rms_norm_v4_u256_p32").unwrap();
        assert_eq!((entry.units, entry.shared_bytes, entry.abi.buffers.len()), (256, 32, 3));
        assert_eq!(entry.abi.lengths, Some(Lengths { count: 3, offset: 16 }));
        assert_eq!(Manifest::parse(&manifest.to_string()).unwrap(), manifest);
    }

    #[test]
    fn broken_manifests_name_the_kernel_s_line() {
        for (good, bad) in
            [("units 256\n", ""), ("f32*2@0", "f64*2@0"), ("read write", "read both"), ("40 value", "40")]
        {
            let error = Manifest::parse(&TEXT.replacen(good, bad, 1)).unwrap_err();
            assert_eq!(error.line, 1, "{bad}: {error}");
        }
    }
}
