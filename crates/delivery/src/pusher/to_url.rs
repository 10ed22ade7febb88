//! Messages with URLs of their own: sent there instead of to the target, under the breaker of the URL's origin.

use std::sync::Arc;

use duewheel::core::engine::Grant;
use duewheel::core::time::{EngineMs, WallMs};
use url::Origin;

use super::slots::{PushEnd, RequestSlot, UnderWay};
use super::{PushJob, PushWorker};
use crate::answer::PushVerdict;
use crate::breaker::{Charge, RequestMark};
use crate::client::PushOutcome;
use crate::limits::FORGIVEN_DELAY;
use crate::message_url::MessageUrl;
use crate::origins::UrlTargets;
use crate::plan::jittered;
use crate::target::OriginKind;

/// The reason of a dead message whose URL is none.
const BAD_URL: &str = "bad_target_url";
/// The note of an attempt that sent nothing, because the breaker of the origin is open or it wants to be left alone.
const ORIGIN_WAITS: &str = "origin_waits";
/// The note of an attempt that sent nothing, because as many requests to URLs of messages run as may.
const URLS_BUSY: &str = "urls_busy";

/// A request to an origin, which its breaker knows of until it is dropped.
struct OriginRequest<'a> {
    worker: &'a PushWorker,
    origin: &'a Origin,
    /// Until it has ended.
    mark: Option<RequestMark>,
}

impl OriginRequest<'_> {
    fn end(mut self, grant: &Grant, outcome: &PushOutcome) -> Charge {
        let Some(mark) = self.mark.take() else { return Charge::Counted };
        let random = self.worker.random(grant, "end");
        let mut breakers = self.worker.parts.urls.breakers();
        breakers.end(self.origin, self.worker.now(), mark, Some(outcome), random)
    }
}

impl Drop for OriginRequest<'_> {
    fn drop(&mut self) {
        if let Some(mark) = self.mark.take() {
            self.worker.parts.urls.breakers().end(self.origin, self.worker.now(), mark, None, 0);
        }
    }
}

impl PushWorker {
    /// Sends a message to its own URL and settles it. The breaker of the target is not concerned, and at another origin
    /// neither are its places: an origin that hangs does not keep the target's messages waiting.
    pub(super) async fn push_to_url(
        &self,
        job: &Arc<PushJob>,
        grant: Grant,
        (slot, under_way): (RequestSlot, &mut UnderWay),
        leased_until: EngineMs,
    ) {
        let text = MessageUrl::of(&grant.message).unwrap_or_default();
        let Ok(url) = MessageUrl::new(text) else {
            drop(self.settle(&grant, PushEnd::Dead, BAD_URL, leased_until).await);
            return;
        };
        let slot = match url.kind(job.client.target()) {
            OriginKind::Own => Some(slot),
            OriginKind::Foreign => {
                under_way.go_elsewhere();
                drop(slot);
                None
            }
        };
        let sent = self.sent_to(job, &grant, &url).await;
        drop(slot);
        match sent {
            Ok((at, outcome, charge)) => {
                self.conclude(job, &grant, at, &outcome, charge, leased_until).await;
            }
            Err((end, note)) => drop(self.settle(&grant, end, note, leased_until).await),
        }
    }

    /// When it was sent, how that ended, and whether it counts; or what becomes of a message that was not sent, and why.
    async fn sent_to(
        &self,
        job: &PushJob,
        grant: &Grant,
        url: &MessageUrl,
    ) -> Result<(WallMs, PushOutcome, Charge), (PushEnd, &'static str)> {
        let (context, origin) = (&self.parts.urls, url.origin());
        let later = |wait| {
            let delay = jittered(FORGIVEN_DELAY.max(wait), self.random(grant, "wait"));
            (PushEnd::NotYet(Some(delay.max(wait))), ORIGIN_WAITS)
        };
        if let Some(wait) = context.breakers().wait(&origin, self.now()) {
            return Err(later(wait));
        }
        let Some(_slot) = context.slot().await else {
            return Err((PushEnd::NotYet(Some(FORGIVEN_DELAY)), URLS_BUSY));
        };
        let urls = job.urls.get_or_init(|| UrlTargets::new(&job.client, context));
        let client = urls.client(&job.client, context, url);
        let (now, random) = (self.now(), self.random(grant, "begin"));
        let (id, timeout) = (grant.message.id, client.target().timeout);
        let begun = context.breakers().begin(&origin, now, id, timeout, random);
        let request = OriginRequest { worker: self, origin: &origin, mark: Some(begun.map_err(later)?) };
        let (at, outcome) = self.send(&client, url.uri(), grant).await;
        let outcome = without_disable(outcome);
        let charge = request.end(grant, &outcome);
        Ok((at, outcome, charge))
    }
}

/// A URL that takes no more messages concerns this message alone, which is dead: nobody could resume the URL.
fn without_disable(outcome: PushOutcome) -> PushOutcome {
    let verdict = match outcome.verdict {
        PushVerdict::Refused => PushVerdict::Dead,
        other => other,
    };
    PushOutcome { verdict, disable: false, ..outcome }
}
