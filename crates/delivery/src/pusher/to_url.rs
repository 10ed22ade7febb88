//! Messages with a URL of their own, under the breaker of the URL's origin.

use duewheel::core::engine::Grant;
use duewheel::core::time::EngineMs;

use super::slots::{MessagePlace, PushEnd, PushRoute};
use super::{PushJob, PushWorker};
use crate::breaker::Charge;
use crate::limits::FORGIVEN_DELAY;
use crate::message_url::MessageUrl;
use crate::origins::{OriginWait, UrlTargets};
use crate::plan::jittered;
use crate::target::OriginKind;

/// The reason of a dead message whose URL is none.
const BAD_URL: &str = "bad_target_url";
/// The note of an attempt that sent nothing, because the breaker of the origin is open or it wants to be left alone.
const ORIGIN_WAITS: &str = "origin_waits";
/// The note of an attempt that sent nothing, because as many requests to URLs of messages run as may.
const URLS_BUSY: &str = "urls_busy";

impl PushWorker {
    /// The way of a message to its own URL; or what becomes of it if it is not sent, and why. The breaker of the target is
    /// not concerned, and at another origin neither are its places: an origin that hangs does not keep the target's
    /// messages waiting.
    pub(super) async fn route_to_url(
        &self,
        job: &PushJob,
        grant: &Grant,
        leased_until: EngineMs,
        place: &mut MessagePlace,
    ) -> Result<PushRoute, (PushEnd, &'static str)> {
        let text = MessageUrl::of(&grant.message).unwrap_or_default();
        let url = MessageUrl::new(text).map_err(|_| (PushEnd::Dead, BAD_URL))?;
        if url.kind(job.client.target()) == OriginKind::Foreign {
            place.go_elsewhere();
        }
        let (context, origin) = (&self.parts.urls, url.origin());
        let waits = context.breakers().wait(&origin, self.now());
        if let Some(waits) = waits {
            return Err(self.later(job, grant, leased_until, waits).await);
        }
        let busy = (PushEnd::NotYet(Some(FORGIVEN_DELAY)), URLS_BUSY);
        let slot = Some(context.slot().await.ok_or(busy)?);
        let urls = job.urls.get_or_init(|| UrlTargets::new(&job.client, context));
        let client = urls.client(&job.client, context, &url);
        let (now, random) = (self.now(), self.random(grant, "begin"));
        let (id, timeout) = (grant.message.id, client.target().timeout);
        let begun = context.breakers().begin(&origin, now, id, timeout, random);
        match begun {
            Ok((breaker, mark)) => Ok(PushRoute { client, uri: url.uri().clone(), breaker, mark, slot }),
            Err(waits) => {
                drop(slot);
                Err(self.later(job, grant, leased_until, waits).await)
            }
        }
    }

    /// When a message comes again that is not sent, because its origin waits.
    async fn later(
        &self,
        job: &PushJob,
        grant: &Grant,
        leased_until: EngineMs,
        waits: OriginWait,
    ) -> (PushEnd, &'static str) {
        let end = match waits.charge {
            Charge::Forgiven => {
                let delay = jittered(FORGIVEN_DELAY.max(waits.time), self.random(grant, "wait"));
                PushEnd::NotYet(Some(delay.max(waits.time)))
            }
            Charge::Counted => {
                let seen = self.seen(grant, leased_until).await;
                PushEnd::Again(self.planned(job, grant, seen.as_deref()), job.client.target().max_attempts)
            }
        };
        (end, ORIGIN_WAITS)
    }
}
