//! Reports of a bridge to people: its plan, and the outcome of a test.

use serde::Serialize;
use serde_json::Value;

/// The declarations by which a bridge takes the place of a plugin.
#[derive(Clone, Debug, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct BridgePlan {
    /// Queues, exchanges and bindings, as `rabbitmqadmin import` reads them.
    pub definitions: Value,
    /// The steps for people, in this order.
    pub steps: Vec<String>,
    /// The lines that change in programs that declare the exchange.
    pub programs: Vec<PlannedChange>,
}

/// The lines that change in programs of one client library.
#[derive(Clone, Debug, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema), schemars(rename = "BridgeProgram"))]
pub struct PlannedChange {
    /// The client library.
    pub library: &'static str,
    /// The declaration, in place of the one of type `x-delayed-message`.
    pub declare: String,
    /// The binding of a consumer's queue.
    pub bind: String,
}

/// A step of a test.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema), schemars(rename = "BridgeStep"))]
pub struct ProbeStep {
    /// The step: `connect`, `in`, `out`.
    pub step: &'static str,
    /// Whether it went well; `null`: it was left out.
    pub ok: Option<bool>,
    /// The observation, in words.
    pub detail: String,
}
