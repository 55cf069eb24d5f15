//! Our measurements once more under the names of vLLM or SGLang, for dashboards and routers that read those.
//!
//! Names are those in the documentation of production metrics of vLLM and SGLang, not checked release by release. What we
//! do not measure is left out, so that nothing reads as zero that is not.

use std::fmt::Error;

use clap::ValueEnum;
use perilune_engine::EngineStats;
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::ConstGauge;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::Registry;

use crate::metrics::ModelCell;

/// Whose names.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum MetricsCompat {
    /// `vllm:…`.
    Vllm,
    /// `sglang:…`.
    Sglang,
}

/// Measurements that are counted here rather than by the engine.
pub(crate) struct Times<'a> {
    pub queue: &'a Histogram,
    pub first_token: &'a Histogram,
    pub inter_token: &'a Histogram,
    pub end_to_end: &'a Histogram,
}

/// Name, help, value.
type Figure<V> = (&'static str, &'static str, V);

impl MetricsCompat {
    /// Adds the names to `registry`, with the model's name as their label.
    pub(crate) fn register(self, registry: &mut Registry, model: &str, times: &Times<'_>, served: ModelCell) {
        let labelled = registry.sub_registry_with_label(("model_name".into(), model.to_owned().into()));
        for (name, help, histogram) in self.times(times) {
            labelled.register(name, help, histogram.clone());
        }
        labelled.register_collector(Box::new(Figures { names: self, served }));
    }

    fn times<'a>(self, times: &Times<'a>) -> [Figure<&'a Histogram>; 4] {
        let Times { queue, first_token, inter_token, end_to_end } = *times;
        match self {
            MetricsCompat::Vllm => [
                ("vllm:request_queue_time_seconds", "Time in the queue", queue),
                ("vllm:time_to_first_token_seconds", "Time to the first token", first_token),
                ("vllm:inter_token_latency_seconds", "Time between two tokens", inter_token),
                ("vllm:e2e_request_latency_seconds", "Time to the last token", end_to_end),
            ],
            MetricsCompat::Sglang => [
                ("sglang:queue_time_seconds", "Time in the queue", queue),
                ("sglang:time_to_first_token_seconds", "Time to the first token", first_token),
                ("sglang:inter_token_latency_seconds", "Time between two tokens", inter_token),
                ("sglang:e2e_request_latency_seconds", "Time to the last token", end_to_end),
            ],
        }
    }

    fn gauges(self, stats: &EngineStats) -> Vec<Figure<f64>> {
        let (running, waiting) = (stats.running as f64, stats.waiting as f64);
        match self {
            MetricsCompat::Vllm => vec![
                ("vllm:num_requests_running", "Requests being computed", running),
                ("vllm:num_requests_waiting", "Requests that wait", waiting),
                ("vllm:kv_cache_usage_perc", "Share of the cache that running requests hold, 0 to 1", used(stats)),
            ],
            MetricsCompat::Sglang => {
                let mut all = vec![
                    ("sglang:num_running_reqs", "Requests being computed", running),
                    ("sglang:num_queue_reqs", "Requests that wait", waiting),
                    ("sglang:token_usage", "Share of the cache that running requests hold, 0 to 1", used(stats)),
                    (
                        "sglang:cache_hit_rate",
                        "Share of looked up tokens that were stored, since the start",
                        hits(stats),
                    ),
                ];
                let length = stats.drafts.accept_length();
                all.extend(length.map(|length| {
                    ("sglang:spec_accept_length", "Mean tokens of a verification, since the start", length)
                }));
                all
            }
        }
    }

    /// Names without the `_total` that the format adds.
    fn counters(self, stats: &EngineStats) -> Vec<Figure<u64>> {
        let (prompt, generated) = (stats.prompt_tokens, stats.generated_tokens);
        let finished = &stats.finished;
        match self {
            MetricsCompat::Vllm => vec![
                ("vllm:prompt_tokens", "Prompt tokens", prompt),
                ("vllm:generation_tokens", "Tokens generated", generated),
                ("vllm:prefix_cache_queries", "Tokens looked up", stats.prefixes.queried_tokens),
                ("vllm:prefix_cache_hits", "Tokens found", stats.prefixes.hit_tokens),
                ("vllm:num_preemptions", "Preemptions", stats.preemptions),
                ("vllm:corrupted_requests", "Requests whose logits were not finite", stats.corrupted_requests),
                ("vllm:spec_decode_num_drafts", "Verifications of drafts", stats.drafts.verifications),
                ("vllm:spec_decode_num_draft_tokens", "Tokens drafted", stats.drafts.drafted.iter().sum()),
                ("vllm:spec_decode_num_accepted_tokens", "Tokens accepted", stats.drafts.accepted.iter().sum()),
            ],
            MetricsCompat::Sglang => vec![
                ("sglang:prompt_tokens", "Prompt tokens", prompt),
                ("sglang:generation_tokens", "Tokens generated", generated),
                ("sglang:cached_tokens", "Prompt tokens that were stored", stats.prefixes.hit_tokens),
                ("sglang:num_requests", "Requests that ended", finished.stop + finished.length + finished.failed),
                ("sglang:num_aborted_requests", "Requests that were ended", finished.abort),
            ],
        }
    }
}

/// Share of the memory for latents and states that running sequences hold; stored prefixes give way and do not count.
fn used(stats: &EngineStats) -> f64 {
    let usage = &stats.usage;
    share(usage.blocks_used as f64, usage.blocks_total as f64)
        + share(usage.slots_used as f64, usage.slots_total as f64)
}

fn hits(stats: &EngineStats) -> f64 {
    share(stats.prefixes.hit_tokens as f64, stats.prefixes.queried_tokens as f64)
}

fn share(part: f64, whole: f64) -> f64 {
    if whole > 0.0 { part / whole } else { 0.0 }
}

/// Reads the engine's figures at each scrape.
#[derive(Debug)]
struct Figures {
    names: MetricsCompat,
    served: ModelCell,
}

impl Collector for Figures {
    fn encode(&self, mut encoder: DescriptorEncoder) -> Result<(), Error> {
        let Some(served) = self.served.get() else { return Ok(()) };
        let stats = served.engine.stats();
        for (name, help, value) in self.names.gauges(&stats) {
            ConstGauge::new(value).encode(encoder.encode_descriptor(name, help, None, MetricType::Gauge)?)?;
        }
        for (name, help, value) in self.names.counters(&stats) {
            ConstCounter::new(value).encode(encoder.encode_descriptor(name, help, None, MetricType::Counter)?)?;
        }
        if self.names == MetricsCompat::Vllm {
            let name = "vllm:request_success";
            let mut family = encoder.encode_descriptor(name, "Requests that ended", None, MetricType::Counter)?;
            let finished = &stats.finished;
            for (reason, count) in [("stop", finished.stop), ("length", finished.length), ("abort", finished.abort)] {
                ConstCounter::new(count).encode(family.encode_family(&[("finished_reason", reason)])?)?;
            }
            let name = "vllm:spec_decode_num_accepted_tokens_per_pos";
            let mut family = encoder.encode_descriptor(name, "Tokens accepted by place", None, MetricType::Counter)?;
            for (place, count) in stats.drafts.accepted.iter().enumerate() {
                ConstCounter::new(*count).encode(family.encode_family(&[("position", place.to_string())])?)?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_are_shares() {
        let mut stats = EngineStats::default();
        assert_eq!((used(&stats), hits(&stats)), (0.0, 0.0));
        (stats.usage.blocks_used, stats.usage.blocks_total) = (10, 40);
        (stats.usage.slots_used, stats.usage.slots_total) = (1, 4);
        (stats.prefixes.hit_tokens, stats.prefixes.queried_tokens) = (30, 40);
        assert_eq!((used(&stats), hits(&stats)), (0.5, 0.75));
    }
}
