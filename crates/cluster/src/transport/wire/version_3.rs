//! Converts answers of version 3, which has none to a change of a queue's settings: a configure is answered like a read
//! of the queue, a pause and a resume with "done", without a level. No other code meets these earlier forms.

use std::borrow::Cow;

use duewheel_core::engine::{Applied, Op, Reply};
use duewheel_shard::inbox::Answers;

use super::dialect::{Dialect, LevelsOnWire};

/// The answer in the form of `dialect`.
pub(super) fn sent<'a>(reply: &'a Reply, dialect: &Dialect) -> Cow<'a, Reply> {
    match (reply, dialect.levels) {
        (Reply::Configured(Applied { what: Some(view), .. }), LevelsOnWire::OfEnqueues) => {
            Cow::Owned(Reply::Queues(vec![(**view).clone()]))
        }
        (Reply::Configured(Applied { what: None, .. }), LevelsOnWire::OfEnqueues) => Cow::Owned(Reply::Done),
        _ => Cow::Borrowed(reply),
    }
}

/// The changes of settings in a request whose answers come in the earlier form. The node that asks keeps this, because
/// a frame with answers does not name their operations.
#[derive(Debug, Default)]
pub(crate) struct EarlierAnswers {
    /// Indices of the operations.
    of: Vec<usize>,
}

impl EarlierAnswers {
    /// Those among these operations, sent in `dialect`; none if it has the present answers.
    pub(crate) fn to(ops: &[Op], dialect: &Dialect) -> Self {
        if dialect.levels == LevelsOnWire::Beside {
            return EarlierAnswers::default();
        }
        let is_change = |op: &Op| matches!(op, Op::Configure { .. } | Op::Pause { .. } | Op::Resume { .. });
        EarlierAnswers {
            of: ops.iter().enumerate().filter(|(_, op)| is_change(op)).map(|(at, _)| at).collect(),
        }
    }

    /// Converts these answers to the present form. The level is the lowest one, because nothing more is known.
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
