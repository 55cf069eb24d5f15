//! The file: metadata, where each tensor lies, then the tensors, made one at a time.

use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::Path;

use super::block::Stored;
use crate::WeightsError;

const MAGIC: &[u8; 4] = b"GGUF";
const VERSION: u32 = 3;
/// Tensors begin at multiples of this.
const ALIGN: usize = 32;

/// A value of the metadata.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Value {
    U32(u32),
    F32(f32),
    Bool(bool),
    Text(&'static str),
    Numbers(Vec<u32>),
    Texts(Vec<String>),
}

/// Makes the bytes of a tensor.
pub(crate) type Make<'a> = Box<dyn Fn() -> Result<Vec<u8>, WeightsError> + 'a>;

/// A tensor of the file.
pub(crate) struct GgufTensor<'a> {
    pub(crate) name: String,
    /// Lengths, the fastest first.
    pub(crate) dims: Vec<usize>,
    pub(crate) stored: Stored,
    pub(crate) bytes: Make<'a>,
}

impl GgufTensor<'_> {
    fn size_bytes(&self) -> usize {
        self.stored.size_bytes(self.dims.iter().product())
    }
}

pub(crate) fn write(path: &Path, metadata: &[(String, Value)], tensors: &[GgufTensor<'_>]) -> Result<(), WeightsError> {
    let io = |source| WeightsError::Io { path: path.to_owned(), source };
    let mut file = BufWriter::new(File::create(path).map_err(io)?);
    let head = head(metadata, tensors);
    file.write_all(&head).map_err(io)?;
    for tensor in tensors {
        let bytes = (tensor.bytes)()?;
        if bytes.len() != tensor.size_bytes() {
            let (found, expected) = (format!("{} bytes", bytes.len()), format!("{} bytes", tensor.size_bytes()));
            return Err(WeightsError::Mismatch { name: tensor.name.clone(), found, expected });
        }
        file.write_all(&bytes).map_err(io)?;
        file.write_all(&[0; ALIGN][..padding(bytes.len())]).map_err(io)?;
    }
    file.flush().map_err(io)
}

fn padding(len: usize) -> usize {
    len.next_multiple_of(ALIGN) - len
}

fn head(metadata: &[(String, Value)], tensors: &[GgufTensor<'_>]) -> Vec<u8> {
    let mut head = MAGIC.to_vec();
    head.extend(VERSION.to_le_bytes());
    head.extend((tensors.len() as u64).to_le_bytes());
    head.extend((metadata.len() as u64).to_le_bytes());
    for (key, value) in metadata {
        put_text(&mut head, key);
        put_value(&mut head, value);
    }
    let mut offset = 0_u64;
    for tensor in tensors {
        put_text(&mut head, &tensor.name);
        head.extend((tensor.dims.len() as u32).to_le_bytes());
        tensor.dims.iter().for_each(|len| head.extend((*len as u64).to_le_bytes()));
        head.extend(tensor.stored.code().to_le_bytes());
        head.extend(offset.to_le_bytes());
        offset += tensor.size_bytes().next_multiple_of(ALIGN) as u64;
    }
    head.resize(head.len() + padding(head.len()), 0);
    head
}

fn put_text(head: &mut Vec<u8>, text: &str) {
    head.extend((text.len() as u64).to_le_bytes());
    head.extend(text.as_bytes());
}

fn put_value(head: &mut Vec<u8>, value: &Value) {
    let (u32_code, f32_code, bool_code, text_code, array_code) = (4_u32, 6_u32, 7_u32, 8_u32, 9_u32);
    match value {
        Value::U32(number) => {
            head.extend(u32_code.to_le_bytes());
            head.extend(number.to_le_bytes());
        }
        Value::F32(number) => {
            head.extend(f32_code.to_le_bytes());
            head.extend(number.to_le_bytes());
        }
        Value::Bool(yes) => {
            head.extend(bool_code.to_le_bytes());
            head.push(u8::from(*yes));
        }
        Value::Text(text) => {
            head.extend(text_code.to_le_bytes());
            put_text(head, text);
        }
        Value::Numbers(numbers) => {
            head.extend(array_code.to_le_bytes());
            head.extend(u32_code.to_le_bytes());
            head.extend((numbers.len() as u64).to_le_bytes());
            numbers.iter().for_each(|number| head.extend(number.to_le_bytes()));
        }
        Value::Texts(texts) => {
            head.extend(array_code.to_le_bytes());
            head.extend(text_code.to_le_bytes());
            head.extend((texts.len() as u64).to_le_bytes());
            texts.iter().for_each(|text| put_text(head, text));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_lie_one_behind_the_other() {
        let mut head = Vec::new();
        put_value(&mut head, &Value::Texts(vec!["ab".to_owned(), String::new()]));
        assert_eq!(head, b"\x09\0\0\0\x08\0\0\0\x02\0\0\0\0\0\0\0\x02\0\0\0\0\0\0\0ab\0\0\0\0\0\0\0\0");
    }

    #[test]
    fn a_file_lies_as_the_format_says() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("x.gguf");
        let tensor = |name: &str, byte| GgufTensor {
            name: name.to_owned(),
            dims: vec![3],
            stored: Stored::F32,
            bytes: Box::new(move || Ok(vec![byte; 12])),
        };
        let metadata = [("a".to_owned(), Value::U32(7)), ("b".to_owned(), Value::Numbers(vec![1, 0]))];
        write(&path, &metadata, &[tensor("t", 1), tensor("u", 2)]).unwrap();
        let bytes = std::fs::read(&path).unwrap();
        assert_eq!(&bytes[..24], b"GGUF\x03\0\0\0\x02\0\0\0\0\0\0\0\x02\0\0\0\0\0\0\0");
        assert_eq!(&bytes[24..41], b"\x01\0\0\0\0\0\0\0a\x04\0\0\0\x07\0\0\0");
        assert_eq!(bytes.len() % ALIGN, 0);
        let data = &bytes[bytes.len() - 2 * ALIGN..];
        assert!(data[..12].iter().all(|b| *b == 1) && data[32..44].iter().all(|b| *b == 2));
        let second = b"\x01\0\0\0\0\0\0\0u\x01\0\0\0\x03\0\0\0\0\0\0\0\0\0\0\0\x20\0\0\0\0\0\0\0";
        assert!(bytes.windows(second.len()).any(|w| w == second), "the second tensor lies at 32");
    }
}
