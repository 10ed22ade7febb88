//! Properties of answers that the driver needs.

use duewheel_core::engine::Reply;

/// Whether an operation with this answer was not applied, when no record from some position up to that of the answer was: all its
/// records are in one group. Others go on over several steps, and a part may be applied. Without a record of its own an answer to an enqueue
/// or a settlement tells what was done before, perhaps at an earlier try.
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
        | Reply::Quotas(_) => true,
    }
}
