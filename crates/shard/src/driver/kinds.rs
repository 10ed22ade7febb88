//! Properties of answers that the driver needs.

use duewheel_core::engine::Reply;

/// Whether an operation with this answer was certainly not applied if no record from some position up to that of the
/// answer was, because all its records are in one group. Other operations continue over several steps, and a part of
/// them may be applied. Without a record of its own, an answer to an enqueue or a settlement reports what was done
/// before, perhaps by an earlier attempt.
pub(super) fn is_of_one_group(reply: &Reply, recorded: bool) -> bool {
    match reply {
        Reply::Enqueue(Ok(_)) | Reply::Settle(Ok(_)) => recorded,
        Reply::Count(_) | Reply::Done | Reply::Queues(_) | Reply::Configure(_) | Reply::Configured(_) => {
            false
        }
        Reply::Enqueue(Err(_))
        | Reply::Reserve(_)
        | Reply::ReserveOne(_)
        | Reply::Settle(Err(_))
        | Reply::Extend(_)
        | Reply::Change(_)
        | Reply::View(_)
        | Reply::Page(_)
        | Reply::Histogram(_)
        | Reply::Wheel(_)
        | Reply::Stats(_)
        | Reply::Deadline(_)
        | Reply::NextDue(_)
        | Reply::Quotas(_)
        | Reply::Events(_) => true,
    }
}
