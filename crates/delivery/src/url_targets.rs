//! The clients for URLs of messages: one for URLs with the target's origin, one for URLs with another origin.

use std::sync::Arc;

use crate::client::PushClient;
use crate::limits::ORIGIN_CONNECTIONS;
use crate::message_url::MessageUrl;
use crate::origins::UrlGround;
use crate::target::{OriginKind, PushTarget};

/// The target of a job as it is for URLs of messages, by the kind of their origin.
#[derive(Debug)]
pub(crate) struct UrlTargets {
    own: PushClient,
    foreign: Arc<PushTarget>,
}

impl UrlTargets {
    pub(crate) fn new(client: &PushClient, ground: &UrlGround) -> Self {
        let as_it_is = |kind| Arc::new(client.target().for_urls(kind, ground.networks.clone()));
        let own = as_it_is(OriginKind::Own);
        let connections = client.connections(&own, OriginKind::Own, ORIGIN_CONNECTIONS);
        UrlTargets { own: client.over(own, connections), foreign: as_it_is(OriginKind::Foreign) }
    }

    /// The client for this URL.
    pub(crate) fn client(&self, client: &PushClient, ground: &UrlGround, url: &MessageUrl) -> PushClient {
        match url.kind(client.target()) {
            OriginKind::Own => self.own.clone(),
            OriginKind::Foreign => {
                let make = || client.connections(&self.foreign, OriginKind::Foreign, ORIGIN_CONNECTIONS);
                let connections = ground.connections(&url.origin(), self.foreign.timeout, make);
                client.over(self.foreign.clone(), connections)
            }
        }
    }
}
