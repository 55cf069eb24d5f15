//! What `/metrics` shows: requests and latencies counted here, the engine's own figures read at each scrape.
//!
//! Names begin with `perilune_`; counters end in `_total`; times are in seconds.

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use perilune_engine::EngineStats;
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric, text};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::{ConstCounter, Counter};
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::ConstGauge;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::Registry;

use crate::app::Served;
use crate::metrics_compat::{MetricsCompat, Times};

type Labels<const N: usize> = [(&'static str, String); N];
/// Where the model will be.
pub(crate) type ModelCell = Arc<OnceLock<Arc<Served>>>;

/// Bounds of latency buckets, in seconds.
const LATENCY_S: [f64; 14] = [0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 60.0];

/// All measurements of a server.
#[derive(Debug)]
pub struct Metrics {
    registry: Registry,
    others: Registry,
    responses: Family<Labels<2>, Counter>,
    queue_timeouts: Counter,
    queue_time: Histogram,
    first_token: Histogram,
    inter_token: Histogram,
    end_to_end: Histogram,
}

impl Metrics {
    /// Measurements of the model that `served` will hold; once more under other names, where given, with its name.
    pub(crate) fn new(served: ModelCell, compat: Option<(MetricsCompat, &str)>) -> Self {
        let mut registry = Registry::with_prefix("perilune");
        let latency = || Histogram::new(LATENCY_S);
        let this = Metrics {
            responses: Family::default(),
            queue_timeouts: Counter::default(),
            queue_time: latency(),
            first_token: latency(),
            inter_token: latency(),
            end_to_end: latency(),
            registry: Registry::default(),
            others: Registry::default(),
        };
        registry.register("http_responses", "HTTP responses by route and status", this.responses.clone());
        let help = "Requests that waited longer than --max-queue-time";
        registry.register("queue_timeouts", help, this.queue_timeouts.clone());
        let times = [
            ("request_queue_time_seconds", "From submission to the first step", &this.queue_time),
            ("time_to_first_token_seconds", "From submission to the first token", &this.first_token),
            ("inter_token_latency_seconds", "Between two tokens of one choice", &this.inter_token),
            ("e2e_request_latency_seconds", "From submission to the last token", &this.end_to_end),
        ];
        for (name, help, histogram) in times {
            registry.register(name, help, histogram.clone());
        }
        registry.register_collector(Box::new(EngineFigures(served.clone())));
        // Beside the registry with our prefix, not in it: these names have their own.
        let mut others = Registry::default();
        if let Some((names, model)) = compat {
            let times = Times {
                queue: &this.queue_time,
                first_token: &this.first_token,
                inter_token: &this.inter_token,
                end_to_end: &this.end_to_end,
            };
            names.register(&mut others, model, &times, served);
        }
        Metrics { registry, others, ..this }
    }

    /// Counts a response.
    pub fn count_response(&self, route: &str, status: u16) {
        let labels = [("route", route.to_owned()), ("status", status.to_string())];
        self.responses.get_or_create(&labels).inc();
    }

    /// Counts a request that waited too long.
    pub fn count_queue_timeout(&self) {
        self.queue_timeouts.inc();
    }

    /// Notes the time from submission to the first step.
    pub fn queue_time(&self, time: Duration) {
        self.queue_time.observe(time.as_secs_f64());
    }

    /// Notes the time from submission to the first token.
    pub fn first_token(&self, time: Duration) {
        self.first_token.observe(time.as_secs_f64());
    }

    /// Notes the time between two tokens.
    pub fn inter_token(&self, time: Duration) {
        self.inter_token.observe(time.as_secs_f64());
    }

    /// Notes the time from submission to the end.
    pub fn end_to_end(&self, time: Duration) {
        self.end_to_end.observe(time.as_secs_f64());
    }

    /// Everything in the OpenMetrics text format.
    ///
    /// # Errors
    /// When a figure cannot be written, which would be a fault of the exporter.
    pub fn render(&self) -> Result<String, std::fmt::Error> {
        let mut page = String::new();
        text::encode_registry(&mut page, &self.registry)?;
        text::encode_registry(&mut page, &self.others)?;
        text::encode_eof(&mut page)?;
        Ok(page)
    }
}

/// Reads the engine's figures at each scrape.
#[derive(Debug)]
struct EngineFigures(ModelCell);

impl Collector for EngineFigures {
    fn encode(&self, mut encoder: DescriptorEncoder) -> Result<(), std::fmt::Error> {
        let Some(served) = self.0.get() else { return Ok(()) };
        let stats = served.engine.stats();
        for (name, help, value) in gauges(&stats) {
            let gauge = ConstGauge::new(i64::try_from(value).unwrap_or(i64::MAX));
            gauge.encode(encoder.encode_descriptor(name, help, None, MetricType::Gauge)?)?;
        }
        let (name, help) = ("stalled_seconds", "Time since the last step, while there is work");
        let gauge = ConstGauge::new(stats.stalled_for.map_or(0.0, |time| time.as_secs_f64()));
        gauge.encode(encoder.encode_descriptor(name, help, None, MetricType::Gauge)?)?;
        for (name, help, value) in counters(&stats) {
            let counter = ConstCounter::new(value);
            counter.encode(encoder.encode_descriptor(name, help, None, MetricType::Counter)?)?;
        }
        let families = [
            ("draft_tokens", "Tokens drafted and verified, by place after the last token", stats.drafts.drafted),
            ("draft_tokens_accepted", "Those of them that were accepted", stats.drafts.accepted),
        ];
        for (name, help, places) in families {
            let mut family = encoder.encode_descriptor(name, help, None, MetricType::Counter)?;
            for (place, count) in places.into_iter().enumerate() {
                ConstCounter::new(count).encode(family.encode_family(&[("place", place.to_string())])?)?;
            }
        }
        let by_reason = [
            ("stop", stats.finished.stop),
            ("length", stats.finished.length),
            ("abort", stats.finished.abort),
            ("error", stats.finished.failed),
        ];
        let help = "Requests that ended, by reason";
        let mut family = encoder.encode_descriptor("requests_finished", help, None, MetricType::Counter)?;
        for (reason, count) in by_reason {
            ConstCounter::new(count).encode(family.encode_family(&[("reason", reason)])?)?;
        }
        Ok(())
    }
}

/// Name, help, value.
fn gauges(stats: &EngineStats) -> [(&'static str, &'static str, usize); 12] {
    [
        ("requests_running", "Sequences that hold a state slot", stats.running),
        ("requests_waiting", "Requests that wait, preempted ones included", stats.waiting),
        ("kv_blocks_used", "Latent blocks that running sequences hold", stats.usage.blocks_used),
        ("kv_blocks_stored", "Latent blocks that only stored prefixes hold", stats.usage.blocks_stored),
        ("kv_blocks", "Latent blocks that would fit without state slots", stats.usage.blocks_total),
        ("state_slots_used", "KDA state slots that running sequences hold", stats.usage.slots_used),
        ("state_slots_stored", "KDA state slots that stored prefixes hold", stats.usage.slots_stored),
        ("state_slots", "KDA state slots that would fit without latent blocks", stats.usage.slots_total),
        ("arena_bytes", "Memory for latents and states", 4 * stats.usage.arena_len),
        ("arena_free_bytes", "Memory for latents and states that nobody holds", 4 * stats.usage.free_len),
        ("host_cache_bytes", "Host memory that stored prefixes take", 4 * stats.usage.host_used),
        ("disk_cache_bytes", "Files that stored prefixes take", 4 * stats.usage.disk_used),
    ]
}

/// As [`gauges`].
fn counters(stats: &EngineStats) -> [(&'static str, &'static str, u64); 22] {
    [
        ("steps", "Steps computed", stats.steps),
        ("prompt_tokens", "Prompt tokens of accepted requests", stats.prompt_tokens),
        ("prefilled_tokens", "Tokens computed in prefill, recomputed ones included", stats.prefilled_tokens),
        ("generation_tokens", "Tokens generated", stats.generated_tokens),
        ("prefix_cache_queries", "Tokens of sequences looked up when they started", stats.prefixes.queried_tokens),
        ("prefix_cache_hits", "Those of them that were not computed again", stats.prefixes.hit_tokens),
        ("prefix_cache_restores", "Sequences that started from a saved state", stats.prefixes.restores),
        ("prefix_cache_failed_restores", "Saved states whose blocks did not fit", stats.prefixes.failed_restores),
        ("prefix_cache_states", "States saved", stats.prefixes.checkpoints_stored),
        ("prefix_cache_evictions", "Saved states that gave way on the device", stats.prefixes.evictions),
        ("prefix_cache_demotions", "Those of them that went to host memory", stats.prefixes.demotions),
        ("prefix_cache_host_evictions", "Saved states that gave way in host memory", stats.prefixes.host_evictions),
        ("prefix_cache_disk_writes", "Saved states sent to disk", stats.prefixes.disk_writes),
        ("prefix_cache_disk_skips", "Saved states that did not get to disk", stats.prefixes.disk_skips),
        ("prefix_cache_disk_restores", "Saved states that came back from disk", stats.prefixes.disk_restores),
        ("prefix_cache_disk_evictions", "Saved states that gave way on disk", stats.prefixes.disk_evictions),
        ("prefix_cache_disk_losses", "Records on disk that were gone or not whole", stats.prefixes.disk_losses),
        ("arena_moves", "Units moved to make room for the other kind", stats.prefixes.moves),
        ("draft_verifications", "Verifications of drafts", stats.drafts.verifications),
        (
            "draft_microseconds",
            "Time spent on drafting",
            u64::try_from(stats.drafts.drafting.as_micros()).unwrap_or(u64::MAX),
        ),
        ("preemptions", "Sequences that gave up their memory to an earlier one", stats.preemptions),
        ("corrupted_requests", "Requests that ended because of non-finite logits", stats.corrupted_requests),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_page_shows_what_was_counted() {
        let metrics = Metrics::new(ModelCell::default(), Some((MetricsCompat::Vllm, "demo")));
        metrics.count_response("/health", 200);
        metrics.count_response("/health", 200);
        metrics.first_token(Duration::from_millis(20));
        let page = metrics.render().unwrap();
        assert!(page.contains("perilune_http_responses_total{route=\"/health\",status=\"200\"} 2"), "{page}");
        assert!(page.contains("perilune_time_to_first_token_seconds_count 1"), "{page}");
        assert!(page.contains("vllm:time_to_first_token_seconds_count{model_name=\"demo\"} 1"), "{page}");
        assert!(page.ends_with("# EOF\n") && page.matches("# EOF").count() == 1, "{page}");
    }
}
