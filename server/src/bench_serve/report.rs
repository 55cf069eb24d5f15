//! A load's figures as a table, as JSON, and as one HTML page with plots drawn in it.

use serde_json::{Value, json};

use crate::bench_serve::figures::{Figures, Spread, first, ms};
use crate::bench_serve::load::Outcome;
use crate::cli::BenchServeArgs;

/// The table.
pub(super) fn table(figures: &Figures, args: &BenchServeArgs) -> String {
    let failed: usize = figures.failures.iter().map(|(_, count)| count).sum();
    let mut out = format!(
        "requests      {} of {} completed, {:.2} per second ({})\n",
        figures.completed,
        figures.completed + failed,
        figures.per_second(figures.completed),
        if args.rate.is_finite() { format!("planned {}", args.rate) } else { "all at once".to_owned() },
    );
    out.push_str(&format!(
        "tokens        {:.1} per second generated, {:.1} read\n",
        figures.per_second(figures.tokens.1),
        figures.per_second(figures.tokens.0),
    ));
    if let Some(good) = figures.good {
        out.push_str(&format!("goodput       {:.2} per second: {good} met their goals\n", figures.per_second(good)));
    }
    out.push_str("\nms                  mean       p50       p90       p99       max\n");
    for (name, spread) in rows(figures) {
        let Spread { mean, p50, p90, p99, max } = spread;
        out.push_str(&format!("{name:<14}{mean:>10.1}{p50:>10.1}{p90:>10.1}{p99:>10.1}{max:>10.1}\n"));
    }
    for (error, count) in &figures.failures {
        out.push_str(&format!("\nfailed        {count} times: {error}\n"));
    }
    out
}

fn rows(figures: &Figures) -> [(&'static str, Spread); 4] {
    [("ttft", figures.ttft), ("itl", figures.itl), ("tpot", figures.tpot), ("e2e", figures.e2e)]
}

/// The figures as JSON.
pub(super) fn json(figures: &Figures, args: &BenchServeArgs) -> String {
    let spread = |s: Spread| json!({"mean": s.mean, "p50": s.p50, "p90": s.p90, "p99": s.p99, "max": s.max});
    let failures: Vec<Value> =
        figures.failures.iter().map(|(error, count)| json!({"error": error, "count": count})).collect();
    let mut body = json!({
        "url": args.url, "seed": args.seed, "seconds": figures.seconds, "completed": figures.completed, "failures": failures,
        "rate_planned": args.rate.is_finite().then_some(args.rate),
        "requests_per_second": figures.per_second(figures.completed),
        "output_tokens_per_second": figures.per_second(figures.tokens.1),
        "input_tokens_per_second": figures.per_second(figures.tokens.0),
        "good_requests": figures.good,
        "goodput_per_second": figures.good.map(|good| figures.per_second(good)),
    });
    for (name, of) in rows(figures) {
        body[format!("{name}_ms")] = spread(of);
    }
    format!("{body:#}\n")
}

/// One page: the table, and where each request's first text and end fell.
pub(super) fn html(figures: &Figures, outcomes: &[Outcome], args: &BenchServeArgs) -> String {
    let done = || outcomes.iter().filter(|outcome| outcome.error.is_none());
    let at = |outcome: &Outcome| outcome.planned.as_secs_f64();
    let ttft: Vec<(f64, f64)> = done().filter_map(|outcome| Some((at(outcome), first(outcome)?))).collect();
    let e2e: Vec<(f64, f64)> = done().map(|outcome| (at(outcome), ms(outcome.ended))).collect();
    format!(
        "<!doctype html><meta charset=utf-8><title>bench-serve</title><style>body{{font:15px system-ui;margin:2rem auto;\
         max-width:60rem}}pre{{background:#f4f4f6;padding:1rem;overflow:auto}}text{{font:12px system-ui;fill:#555}}</style>\
         <h1>bench-serve</h1><pre>{}</pre>{}{}\n",
        escaped(&table(figures, args)),
        plot("Time to the first text, ms, by the second in which the request began", &ttft),
        plot("Time to the whole answer, ms", &e2e),
    )
}

/// Points over time, from zero.
fn plot(title: &str, points: &[(f64, f64)]) -> String {
    const SIZE: (f64, f64) = (900.0, 260.0);
    let largest = |of: fn(&(f64, f64)) -> f64| points.iter().map(of).fold(0.0, f64::max).max(1e-9);
    let (right, top) = (largest(|point| point.0), largest(|point| point.1));
    let dots: String = points
        .iter()
        .map(|(x, y)| {
            let (x, y) = (50.0 + x / right * (SIZE.0 - 70.0), SIZE.1 - 25.0 - y / top * (SIZE.1 - 45.0));
            format!("<circle cx={x:.1} cy={y:.1} r=3 fill=#3465a4 fill-opacity=.6 />")
        })
        .collect();
    let (w, h) = SIZE;
    format!(
        "<h2>{}</h2><svg width={w} height={h} role=img><path d='M50 {y}H{w}M50 15V{y}' stroke=#999 fill=none />\
         <text x=5 y=20>{top:.0}</text><text x=5 y={y}>0</text><text x={x} y={h}>{right:.1} s</text>{dots}</svg>",
        escaped(title),
        y = h - 25.0,
        x = w - 60.0,
    )
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_of_a_server_cannot_break_the_page() {
        assert_eq!(escaped("<b>&"), "&lt;b&gt;&amp;");
        assert!(plot("a<b", &[]).contains("a&lt;b"));
        assert_eq!(plot("x", &[(0.0, 1.0), (2.0, 3.0)]).matches("<circle").count(), 2);
    }
}
