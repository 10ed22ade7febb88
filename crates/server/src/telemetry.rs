//! Begins to make spans, if a setting says where they go.

use std::sync::Arc;

use crate::config::{ConfigError, OtlpSettings, Settings};
use crate::traces::Traces;

/// Starts the tracer, if the settings or the environment say where spans go.
///
/// # Errors
/// A value is not valid.
pub(crate) fn start(settings: &Settings) -> Result<Option<Arc<dyn Traces>>, ConfigError> {
    let otlp = OtlpSettings::from_environment(settings.otlp_endpoint.as_deref())?;
    otlp.map(|otlp| begin(settings, otlp)).transpose().map(Option::flatten)
}

#[cfg(feature = "otel")]
fn begin(settings: &Settings, otlp: OtlpSettings) -> Result<Option<Arc<dyn Traces>>, ConfigError> {
    let node = settings.store.node().map(|node| node.name.as_str());
    let traces = crate::otel::OtelTraces::start(otlp, node)?;
    Ok(Some(Arc::new(traces)))
}

#[cfg(not(feature = "otel"))]
fn begin(settings: &Settings, _: OtlpSettings) -> Result<Option<Arc<dyn Traces>>, ConfigError> {
    let what = "this program was built without the feature otel, and makes no spans";
    if settings.otlp_endpoint.is_some() {
        return Err(ConfigError::Value(format!("--otlp-endpoint: {what}")));
    }
    // The variables may be meant for all programs of a machine.
    tracing::warn!("OTEL_EXPORTER_OTLP_ENDPOINT is set, but {what}");
    Ok(None)
}
