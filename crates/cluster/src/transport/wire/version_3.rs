//! Version 3 of the protocol has no answer to a change of a queue's settings: a configure is answered like a look at the
//! queue, a pause and a resume with "done", and none of them says a level. Here these answers are converted, so that no
//! other code meets the earlier forms.

use std::borrow::Cow;

use duewheel_core::engine::{Applied, Op, Reply};
use duewheel_shard::inbox::Answers;

use super::dialect::{Dialect, LevelsOnWire};

/// The answer as `dialect` has it.
pub(super) fn sent<'a>(reply: &'a Reply, dialect: &Dialect) -> Cow<'a, Reply> {
    match (reply, dialect.levels) {
        (Reply::Configured(Applied { what: Some(view), .. }), LevelsOnWire::OfEnqueues) => {
            Cow::Owned(Reply::Queues(vec![(**view).clone()]))
        }
        (Reply::Configured(Applied { what: None, .. }), LevelsOnWire::OfEnqueues) => Cow::Owned(Reply::Done),
        _ => Cow::Borrowed(reply),
    }
}

/// The changes of settings in a request whose answers come in the earlier form. A frame with answers does not say to
/// what they are answers, so the asker keeps this.
#[derive(Debug, Default)]
pub(crate) struct EarlierAnswers {
    /// Indices of the operations.
    of: Vec<usize>,
}

impl EarlierAnswers {
    /// Of these operations, sent in `dialect`; none if it has the answers of today.
    pub(crate) fn to(ops: &[Op], dialect: &Dialect) -> Self {
        if dialect.levels == LevelsOnWire::Beside {
            return EarlierAnswers::default();
        }
        let is_change = |op: &Op| matches!(op, Op::Configure { .. } | Op::Pause { .. } | Op::Resume { .. });
        EarlierAnswers {
            of: ops.iter().enumerate().filter(|(_, op)| is_change(op)).map(|(at, _)| at).collect(),
        }
    }

    /// Gives these answers the form of today. The level is the lowest one: nothing more is known.
    pub(crate) fn restore(&self, answers: &mut Answers) {
        for &at in &self.of {
            let Some(Ok(reply)) = answers.get_mut(at) else { continue };
            match reply {
                Reply::Queues(views) => {
                    if let Some(view) = views.pop() {
                        *reply = Reply::Configured(Some(Box::new(view)).into());
                    }
                }
                Reply::Done => *reply = Reply::Configured(None.into()),
                // A refusal is the same in both versions.
                _ => {}
            }
        }
    }
}
