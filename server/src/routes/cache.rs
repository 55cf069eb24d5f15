//! Stored prefixes: what there is, and forgetting all of it.

use axum::Json;
use axum::extract::State;
use axum::http::StatusCode;
use perilune_engine::{CacheReport, CacheStats, CacheUsage, PrefixReport, StateReport, Tier};
use perilune_protocol::{CacheEvents, CachePage, CacheSizes, CachedPrefix, CachedState, ErrorKind, Flushed};

use crate::app::SharedApp;
use crate::error::ApiError;

/// `GET /cache`: sizes, hit rates and the tree of stored prefixes; tokens are not shown.
pub async fn report(State(app): State<SharedApp>) -> Result<Json<CachePage>, ApiError> {
    let engine = app.serving()?.engine.clone();
    let gone = || ApiError::new(StatusCode::SERVICE_UNAVAILABLE, ErrorKind::ServerError, "the engine has ended");
    Ok(Json(page(&engine.cache_report().await.ok_or_else(gone)?)))
}

/// `POST /flush_cache`: forgets all stored prefixes, on disk as well; requests under way go on.
pub async fn flush(State(app): State<SharedApp>) -> Result<Json<Flushed>, ApiError> {
    app.serving()?.engine.flush_cache();
    Ok(Json(Flushed { flushed: true }))
}

fn page(report: &CacheReport) -> CachePage {
    CachePage {
        usage: sizes(&report.usage),
        events: events(&report.stats),
        prefixes: report.prefixes.iter().map(prefix).collect(),
    }
}

/// Lengths of an arena are `F32` elements.
fn sizes(usage: &CacheUsage) -> CacheSizes {
    CacheSizes {
        arena_bytes: 4 * usage.arena_len,
        free_bytes: 4 * usage.free_len,
        blocks_used: usage.blocks_used,
        blocks_stored: usage.blocks_stored,
        slots_used: usage.slots_used,
        slots_stored: usage.slots_stored,
        host_bytes: 4 * usage.host_len,
        host_used_bytes: 4 * usage.host_used,
        disk_bytes: 4 * usage.disk_len,
        disk_used_bytes: 4 * usage.disk_used,
        disk_states: usage.disk_states,
        nodes: usage.nodes,
        states: usage.checkpoints,
    }
}

fn events(stats: &CacheStats) -> CacheEvents {
    CacheEvents {
        queried_tokens: stats.queried_tokens,
        hit_tokens: stats.hit_tokens,
        restores: stats.restores,
        failed_restores: stats.failed_restores,
        states_stored: stats.checkpoints_stored,
        evictions: stats.evictions,
        demotions: stats.demotions,
        host_evictions: stats.host_evictions,
        promoted_blocks: stats.promoted_blocks,
        moves: stats.moves,
        disk_writes: stats.disk_writes,
        disk_skips: stats.disk_skips,
        disk_restores: stats.disk_restores,
        disk_evictions: stats.disk_evictions,
        disk_losses: stats.disk_losses,
    }
}

fn prefix(prefix: &PrefixReport) -> CachedPrefix {
    CachedPrefix {
        level: prefix.level,
        from: prefix.tokens.start,
        to: prefix.tokens.end,
        device_blocks: prefix.device_blocks,
        host_blocks: prefix.host_blocks,
        sequences: prefix.sequences,
        states: prefix.states.iter().map(state).collect(),
    }
}

fn state(state: &StateReport) -> CachedState {
    let tier = match state.tier {
        Tier::Device => "device",
        Tier::Host => "host",
    };
    CachedState { position: state.position, starts: state.starts, tier }
}
