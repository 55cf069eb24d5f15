//! Says in the log when the engine has work and finishes no step, and when it goes on. `/ready` says the same by itself.

use std::convert::Infallible;
use std::time::Duration;

use crate::app::SharedApp;

/// Bounds of the time between two looks.
const LOOKS: (Duration, Duration) = (Duration::from_millis(20), Duration::from_secs(5));

/// Watches until dropped.
pub(crate) async fn watch(app: SharedApp) -> Infallible {
    let pause = (app.settings.stall_timeout / 4).clamp(LOOKS.0, LOOKS.1);
    let mut stalled = false;
    loop {
        tokio::time::sleep(pause).await;
        let before = std::mem::replace(&mut stalled, app.is_stalled());
        match (before, stalled) {
            (false, true) => report_stall(&app),
            (true, false) => tracing::info!("steps finish again"),
            _ => {}
        }
    }
}

fn report_stall(app: &SharedApp) {
    let Some(stats) = app.served().map(|served| served.engine.stats()) else { return };
    let seconds = stats.stalled_for.map_or(0.0, |time| time.as_secs_f64());
    let (running, waiting) = (stats.running, stats.waiting);
    tracing::error!(running, waiting, "no step has finished for {seconds:.1} s; /ready answers 503");
}
