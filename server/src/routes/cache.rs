//! Stored prefixes: what there is, and forgetting all of it.

use axum::Json;
use axum::extract::State;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use perilune_engine::{CacheReport, CacheStats, CacheUsage, PrefixReport, StateReport, Tier};
use perilune_protocol::ErrorKind;
use serde_json::{Value, json};

use crate::app::SharedApp;
use crate::error::ApiError;

/// `GET /cache`: sizes, hit rates and the tree of stored prefixes; tokens are not shown.
pub async fn report(State(app): State<SharedApp>) -> Result<Response, ApiError> {
    let engine = app.serving()?.engine.clone();
    let gone = || ApiError::new(StatusCode::SERVICE_UNAVAILABLE, ErrorKind::ServerError, "the engine has ended");
    let report = engine.cache_report().await.ok_or_else(gone)?;
    Ok(Json(as_json(&report)).into_response())
}

/// `POST /flush_cache`: forgets all stored prefixes, on disk as well; requests under way go on.
pub async fn flush(State(app): State<SharedApp>) -> Result<Response, ApiError> {
    app.serving()?.engine.flush_cache();
    Ok(Json(json!({"flushed": true})).into_response())
}

fn as_json(report: &CacheReport) -> Value {
    let prefixes: Vec<Value> = report.prefixes.iter().map(prefix).collect();
    json!({"usage": usage(&report.usage), "events": events(&report.stats), "prefixes": prefixes})
}

/// Lengths of an arena are `F32` elements.
fn usage(usage: &CacheUsage) -> Value {
    json!({
        "arena_bytes": 4 * usage.arena_len, "free_bytes": 4 * usage.free_len,
        "blocks_used": usage.blocks_used, "blocks_stored": usage.blocks_stored,
        "slots_used": usage.slots_used, "slots_stored": usage.slots_stored,
        "host_bytes": 4 * usage.host_len, "host_used_bytes": 4 * usage.host_used,
        "disk_bytes": 4 * usage.disk_len, "disk_used_bytes": 4 * usage.disk_used, "disk_states": usage.disk_states,
        "nodes": usage.nodes, "states": usage.checkpoints,
    })
}

fn events(stats: &CacheStats) -> Value {
    json!({
        "queried_tokens": stats.queried_tokens, "hit_tokens": stats.hit_tokens,
        "restores": stats.restores, "failed_restores": stats.failed_restores,
        "states_stored": stats.checkpoints_stored, "evictions": stats.evictions,
        "demotions": stats.demotions, "host_evictions": stats.host_evictions,
        "promoted_blocks": stats.promoted_blocks, "moves": stats.moves,
        "disk_writes": stats.disk_writes, "disk_skips": stats.disk_skips, "disk_restores": stats.disk_restores,
        "disk_evictions": stats.disk_evictions, "disk_losses": stats.disk_losses,
    })
}

fn prefix(prefix: &PrefixReport) -> Value {
    let states: Vec<Value> = prefix.states.iter().map(state).collect();
    json!({
        "level": prefix.level, "from": prefix.tokens.start, "to": prefix.tokens.end,
        "device_blocks": prefix.device_blocks, "host_blocks": prefix.host_blocks,
        "sequences": prefix.sequences, "states": states,
    })
}

fn state(state: &StateReport) -> Value {
    let tier = match state.tier {
        Tier::Device => "device",
        Tier::Host => "host",
    };
    json!({"position": state.position, "starts": state.starts, "tier": tier})
}
