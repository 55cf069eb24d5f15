//! The manifest that `cargo xtask build-kernels` writes beside its binaries, `manifest.json`.
//!
//! A launcher needs, of each kernel: `name`, `entry`, `units`, `plane`, `shared_bytes`, `buffers` (`"read read write"`),
//! `scalars` (`"u64*1@0 f32*2@8"`: type, count, offset), `lengths` (`"3@16"` or null), `info` (`"40 value"`:
//! bytes of the structure) and, per architecture, `binaries[architecture].file` and
//! `.sha256`. Everything else there is for people.

use std::collections::{BTreeSet, HashMap};

use perilune_kernels_dsl::{Abi, Access, Lengths, ScalarGroup, ScalarType};
use serde_json::{Map, Value};

/// What is known of one compiled kernel.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KernelEntry {
    /// Name of the variant.
    pub name: String,
    /// Entry point in the binary.
    pub entry: String,
    /// File of the binary, relative to the manifest.
    pub file: String,
    /// SHA-256 of the binary, in lower-case hexadecimal.
    pub sha256: String,
    /// Units of a cube.
    pub units: usize,
    /// Units of a plane.
    pub plane: usize,
    /// Dynamic shared memory of a launch in bytes.
    pub shared_bytes: usize,
    /// How arguments are passed.
    pub abi: Abi,
}

/// All kernels of a folder for one architecture.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Manifest {
    kernels: HashMap<String, KernelEntry>,
    architectures: Vec<String>,
}

/// A manifest that cannot be read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ManifestError {
    /// The kernel it is about; empty where it is about none.
    pub kernel: String,
    /// What is wrong.
    pub what: String,
}

impl std::fmt::Display for ManifestError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.kernel.as_str() {
            "" => write!(f, "manifest: {}", self.what),
            kernel => write!(f, "manifest, kernel {kernel}: {}", self.what),
        }
    }
}

impl std::error::Error for ManifestError {}

impl Manifest {
    /// The kernel of this name.
    pub fn get(&self, name: &str) -> Option<&KernelEntry> {
        self.kernels.get(name)
    }

    /// Number of kernels.
    pub fn len(&self) -> usize {
        self.kernels.len()
    }

    /// Every architecture that a kernel of the file was built for, sorted.
    pub fn architectures(&self) -> &[String] {
        &self.architectures
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.kernels.is_empty()
    }

    /// The kernels with a binary for this architecture, for example `sm_90a` or `gfx942`.
    ///
    /// # Errors
    /// Text that is not a manifest of version 1; a kernel that lacks something a launcher needs.
    pub fn parse(text: &str, architecture: &str) -> Result<Manifest, ManifestError> {
        let general = |what: String| ManifestError { kernel: String::new(), what };
        let manifest: Value = serde_json::from_str(text).map_err(|e| general(e.to_string()))?;
        if manifest["version"] != 1 {
            return Err(general(format!("version {}, expected 1", manifest["version"])));
        }
        let list = manifest["kernels"].as_array().ok_or_else(|| general("no list of kernels".into()))?;
        let mut kernels = HashMap::new();
        let mut architectures = BTreeSet::new();
        for kernel in list {
            architectures.extend(kernel["binaries"].as_object().into_iter().flat_map(|all| all.keys().cloned()));
            let Some(binary) = kernel["binaries"][architecture].as_object() else { continue };
            let name = kernel["name"].as_str().unwrap_or_default();
            let fail = |what| ManifestError { kernel: name.into(), what };
            let entry = parse_entry(kernel, binary).map_err(fail)?;
            kernels.insert(entry.name.clone(), entry);
        }
        Ok(Manifest { kernels, architectures: architectures.into_iter().collect() })
    }
}

fn parse_entry(kernel: &Value, binary: &Map<String, Value>) -> Result<KernelEntry, String> {
    let of_binary = |name: &str| match binary.get(name).and_then(Value::as_str) {
        Some(text) => Ok(text.to_owned()),
        None => Err(format!("its binary has no `{name}`")),
    };
    let text = |name: &str| kernel[name].as_str().ok_or_else(|| format!("no `{name}`"));
    let number = |name: &str| kernel[name].as_u64().map(|n| n as usize).ok_or_else(|| format!("no number `{name}`"));
    let buffers = text("buffers")?.split_whitespace().map(|word| match word {
        "read" => Ok(Access::Read),
        "write" => Ok(Access::Write),
        other => Err(format!("buffer `{other}`")),
    });
    let info_bytes = match text("info")?.split_once(' ') {
        Some((bytes, "value")) => parse_number(bytes)?,
        _ => return Err(format!("`info` is `{}`, expected `BYTES value`: build the kernels again", text("info")?)),
    };
    let lengths = kernel["lengths"].as_str().map(|text| {
        let (count, offset) = text.split_once('@').ok_or("`lengths` needs `count@offset`")?;
        Ok::<_, String>(Lengths { count: parse_number(count)?, offset: parse_number(offset)? })
    });
    Ok(KernelEntry {
        name: text("name")?.into(),
        entry: text("entry")?.into(),
        file: of_binary("file")?,
        sha256: of_binary("sha256")?,
        units: number("units")?,
        plane: number("plane")?,
        shared_bytes: number("shared_bytes")?,
        abi: Abi {
            buffers: buffers.collect::<Result<_, _>>()?,
            scalars: text("scalars")?.split_whitespace().map(parse_group).collect::<Result<_, _>>()?,
            lengths: lengths.transpose()?,
            info_bytes,
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

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = r#"{
        "version": 1,
        "kernels": [
            {
                "name": "rms_norm_v4_u256_p32", "entry": "rms_norm_3f2a", "units": 256, "plane": 32,
                "shared_bytes": 32, "buffers": "read read write", "scalars": "u64*1@0 f32*2@8", "lengths": "3@16",
                "info": "40 value", "target": "cuda",
                "binaries": { "sm_90a": { "file": "sm_90a/rms_norm.cubin", "sha256": "ab", "registers": 34 } }
            },
            { "name": "elsewhere", "binaries": { "gfx942": { "file": "gfx942/elsewhere.hsaco", "sha256": "cd" } } }
        ]
    }"#;

    #[test]
    fn kernels_of_one_architecture() {
        let manifest = Manifest::parse(TEXT, "sm_90a").unwrap();
        assert_eq!(manifest.len(), 1);
        let entry = manifest.get("rms_norm_v4_u256_p32").unwrap();
        assert_eq!((entry.file.as_str(), entry.units, entry.shared_bytes), ("sm_90a/rms_norm.cubin", 256, 32));
        assert_eq!(entry.abi.buffers, [Access::Read, Access::Read, Access::Write]);
        assert_eq!(entry.abi.lengths, Some(Lengths { count: 3, offset: 16 }));
        assert_eq!(entry.abi.info_bytes, 40);
        let other = Manifest::parse(TEXT, "sm_100a").unwrap();
        assert!(other.is_empty());
        assert_eq!(other.architectures(), ["gfx942", "sm_90a"]);
    }

    #[test]
    fn broken_manifests_name_the_kernel() {
        assert_eq!(Manifest::parse(TEXT, "gfx942").unwrap_err().kernel, "elsewhere");
        for (good, bad) in [
            ("\"units\": 256,", ""),
            ("f32*2@8", "f64*2@8"),
            ("read write", "read both"),
            ("40 value", "40 pointer"),
            ("\"sha256\": \"ab\",", ""),
        ] {
            let error = Manifest::parse(&TEXT.replacen(good, bad, 1), "sm_90a").unwrap_err();
            assert_eq!(error.kernel, "rms_norm_v4_u256_p32", "{bad}: {error}");
        }
        assert!(Manifest::parse(&TEXT.replacen('1', "2", 1), "sm_90a").is_err());
        assert!(Manifest::parse("kernel", "sm_90a").is_err());
    }
}
