//! Refusals by the quota of a tenant.

use duewheel::core::engine::{OverQuota, Resource};

/// The explanation for people.
pub(super) fn over_quota(over: &OverQuota) -> String {
    let OverQuota { quota, resource, limit, used, retry_ms } = over;
    match (resource, retry_ms) {
        (Resource::Enqueues, Some(ms)) => {
            format!("quota {quota:?} allows {limit} enqueues a second; the next one is accepted in {ms} ms")
        }
        (Resource::Enqueues, None) => format!("quota {quota:?} allows {limit} enqueues a second"),
        (Resource::Messages, _) => format!(
            "quota {quota:?} allows {limit} unsettled messages, and {used} are held; ack, cancel or purge makes room"
        ),
        (Resource::Bytes, _) => format!(
            "quota {quota:?} allows {limit} bytes, {used} are held, remembered answers included, and this does not fit; ack, cancel or \
             purge makes room"
        ),
        (Resource::Answers, _) => format!(
            "quota {quota:?} allows {limit} remembered answers, and {used} are held, the oldest of them young; wait, give a \
             shorter dedupe_window, or send without a dedupe_id"
        ),
        (Resource::Leases, _) => {
            format!("quota {quota:?} allows {limit} leases, and {used} are held; ack or nack ends one")
        }
    }
}

/// The explanation for people, of a queue that may get no settings.
pub(super) fn over_settings(over: &OverQuota) -> String {
    let OverQuota { quota, limit, used, .. } = over;
    format!(
        "quota {quota:?} allows {limit} messages, and as many queues with settings or a pause, of which there are {used}; \
         remove such a queue first"
    )
}

/// The whole seconds after which a retry may succeed, at least one.
pub(super) fn whole_seconds(retry_ms: Option<u64>) -> u64 {
    retry_ms.map_or(1, |ms| ms.div_ceil(1_000).max(1))
}
