//! What flags choose among.

use clap::ValueEnum;

/// What drafts tokens.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Speculative {
    /// A draft model where one is named, else nothing.
    Auto,
    /// Nothing.
    Off,
    /// A draft model.
    Dspark,
    /// What followed the last time the sequence ended as it does now (prompt lookup).
    Ngram,
}

/// How many tokens are drafted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum DraftLengthRule {
    /// As many as pay.
    Adaptive,
    /// Always as many as allowed.
    Fixed,
}

/// What matrices are rounded to: whole numbers with a scale for each 32 of them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Quantization {
    /// 8 bits a weight.
    Int8,
    /// 4 bits a weight; 8 in the head.
    Int4,
}

impl From<Quantization> for perilune_weights::Quantize {
    fn from(asked: Quantization) -> Self {
        match asked {
            Quantization::Int8 => perilune_weights::Quantize::Int8,
            Quantization::Int4 => perilune_weights::Quantize::Int4,
        }
    }
}

/// What states are kept as.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum StateDtype {
    /// As they are: answers are the same to the last bit.
    F32,
    /// Half the memory.
    Bf16,
    /// A little over a quarter.
    Int8,
}

impl From<StateDtype> for perilune_engine::StateFormat {
    fn from(asked: StateDtype) -> Self {
        match asked {
            StateDtype::F32 => perilune_engine::StateFormat::F32,
            StateDtype::Bf16 => perilune_engine::StateFormat::Bf16,
            StateDtype::Int8 => perilune_engine::StateFormat::Int8,
        }
    }
}

/// Status of a refusal because there is no room.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum OverloadStatus {
    /// 503 Service Unavailable
    #[value(name = "503")]
    Unavailable,
    /// 429 Too Many Requests
    #[value(name = "429")]
    TooMany,
    /// 529 Site is overloaded
    #[value(name = "529")]
    Overloaded,
}

impl OverloadStatus {
    /// The number.
    pub fn code(self) -> u16 {
        match self {
            OverloadStatus::Unavailable => 503,
            OverloadStatus::TooMany => 429,
            OverloadStatus::Overloaded => 529,
        }
    }
}

/// Formats of other programs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum ConvertTo {
    /// llama.cpp's, without the model's vocabulary.
    Gguf,
}

/// What matrices are written as.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum MatrixFormat {
    /// Two bytes a weight.
    F16,
    /// Two bytes a weight, as most checkpoints have them.
    Bf16,
    /// 8 bits a weight and a scale for 32.
    #[value(name = "q8_0")]
    Q8_0,
    /// 4 bits a weight and a scale for 32; 8 in the head.
    #[value(name = "q4_0")]
    Q4_0,
}

/// What a converted file says of its tokens.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Vocabulary {
    /// Nothing.
    None,
    /// Each has its number as its text; what llama-server needs to generate anything.
    Numbered,
}

/// How routed experts are stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum ExpertFormat {
    /// Two bytes a weight.
    Bf16,
    /// A little over half a byte a weight.
    Mxfp4,
}
