//! Refusals by the quota of a tenant.

use duewheel::core::engine::{OverQuota, Resource};

use super::{ErrorCode, Extra, Problem};

pub(super) fn over_quota(over: Box<OverQuota>) -> Problem {
    let OverQuota { quota, resource, limit, used, retry_ms } = &*over;
    let detail = match (resource, retry_ms) {
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
    };
    Problem::new(ErrorCode::OverQuota, detail).with(Extra::OverQuota(over))
}

pub(super) fn over_settings(over: Box<OverQuota>) -> Problem {
    let OverQuota { quota, limit, used, .. } = &*over;
    let detail = format!(
        "quota {quota:?} allows {limit} messages, and as many queues with settings or a pause, of which there are {used}; \
         remove such a queue first"
    );
    Problem::new(ErrorCode::OverQuota, detail).with(Extra::OverQuota(over))
}
