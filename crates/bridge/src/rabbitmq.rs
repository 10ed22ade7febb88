//! RabbitMQ on the other side: what replaces its delayed-message plugin (docs/rabbitmq.md).

mod connect;
mod delay;
mod kept;
mod plan;
mod probe;
mod sink;
mod source;

use duewheel::Policy;

pub use connect::RabbitConnector;
pub use plan::plan;
pub use probe::probe;
pub use sink::RabbitSink;
pub use source::RabbitSource;

use crate::seam::{BridgeConnector, SeamError};
use crate::settings::{BadBridge, BridgeSettings};

/// Checks the fields that only RabbitMQ has.
pub(crate) fn check(settings: &BridgeSettings) -> Result<(), (&'static str, String)> {
    connect::address(settings).map(drop)?;
    connect::tls(settings).map(drop)
}

impl BridgeConnector for RabbitConnector {
    type Source = RabbitSource;
    type Sink = RabbitSink;

    async fn source(&self) -> Result<RabbitSource, SeamError> {
        RabbitSource::connect(self).await
    }

    async fn sink(&self) -> Result<RabbitSink, SeamError> {
        RabbitSink::connect(self).await
    }
}

impl RabbitConnector {
    /// The connections of a bridge, in a store whose limits are `policy`.
    ///
    /// # Errors
    /// The address or the authority is not valid.
    pub fn new(settings: &BridgeSettings, policy: &Policy) -> Result<Self, BadBridge> {
        RabbitConnector::checked(settings, policy).map_err(|(field, what)| BadBridge {
            name: settings.name.clone(),
            field,
            what,
        })
    }
}
