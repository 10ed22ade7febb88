//! Figures of bridges.

use duewheel_bridge::BridgeFigures;

use super::page::MetricsPage;
use crate::http::App;

/// Writes the figures of this node's bridges.
pub(super) async fn write_figures(page: &mut MetricsPage, app: &App) {
    let all = app.bridge_figures().await.into_iter();
    // A bridge's name contains neither quotes nor backslashes.
    let all: Vec<_> = all.map(|(name, figures)| (format!("bridge=\"{name}\""), figures)).collect();
    if all.is_empty() {
        return;
    }
    type OfBridge = fn(&BridgeFigures) -> u64;
    let counters: [(&str, &str, OfBridge); 4] = [
        ("in", "Messages of the other side that are durable here.", |figures| figures.taken),
        ("out", "Messages that the other side has confirmed.", |figures| figures.sent),
        ("rejected", "Messages of the other side that were put aside.", |figures| figures.rejected),
        ("duplicates", "Messages of the other side whose id had come before.", |figures| figures.duplicates),
    ];
    for (name, help, of) in counters {
        let rows = all.iter().map(|(labels, figures)| (labels.clone(), of(figures)));
        page.family((&format!("duewheel_bridge_{name}_total"), "counter", help), rows);
    }
    #[allow(clippy::cast_precision_loss)] // seconds for people
    let lag = all.iter().map(|(labels, figures)| (labels.clone(), figures.lag_ms as f64 / 1_000.0));
    let help = "How late the message is that has been due for longest.";
    page.family(("duewheel_bridge_lag_seconds", "gauge", help), lag);
    let open = all.iter().map(|(labels, figures)| (labels.clone(), u64::from(figures.is_open)));
    page.family(("duewheel_bridge_open", "gauge", "Whether the other side is away."), open);
}
