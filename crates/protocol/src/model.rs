//! `GET /v1/models` and `GET /v1/models/{id}`.

use schemars::JsonSchema;
use serde::Serialize;

/// One model.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema)]
pub struct ModelCard {
    /// Its name in requests.
    pub id: String,
    /// Always `model`.
    pub object: &'static str,
    /// When it was loaded, seconds since 1970.
    pub created: u64,
    /// Always `perilune`.
    pub owned_by: &'static str,
    /// The model this is, or is derived from.
    pub root: String,
    /// Most tokens of prompt and answer together.
    pub max_model_len: usize,
}

/// The models served.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema)]
pub struct ModelList {
    /// Always `list`.
    pub object: &'static str,
    /// The models.
    pub data: Vec<ModelCard>,
}

impl ModelCard {
    /// A card.
    pub fn new(id: String, created: u64, max_model_len: usize) -> Self {
        ModelCard { root: id.clone(), id, object: "model", created, owned_by: "perilune", max_model_len }
    }
}

impl ModelList {
    /// A list.
    pub fn new(data: Vec<ModelCard>) -> Self {
        ModelList { object: "list", data }
    }
}
