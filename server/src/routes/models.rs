//! `GET /v1/models` and `GET /v1/models/{id}`.

use axum::Json;
use axum::extract::{Path, State};
use perilune_protocol::{ModelCard, ModelList};

use crate::app::{App, SharedApp};
use crate::error::ApiError;

/// All names the model answers to.
pub async fn list(State(app): State<SharedApp>) -> Result<Json<ModelList>, ApiError> {
    let length = app.serving()?.context_length;
    let cards = app.settings.model_names.iter().map(|name| card(&app, name, length));
    Ok(Json(ModelList::new(cards.collect())))
}

/// One of them.
pub async fn retrieve(State(app): State<SharedApp>, Path(id): Path<String>) -> Result<Json<ModelCard>, ApiError> {
    let length = app.serving()?.context_length;
    app.check_model(&id)?;
    Ok(Json(card(&app, &id, length)))
}

fn card(app: &App, name: &str, max_model_len: usize) -> ModelCard {
    ModelCard::new(name.to_owned(), app.created, max_model_len)
}
