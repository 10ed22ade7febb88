//! Chooses the commands that are handed to the engine together, and the reply to each of them.

use duewheel::core::QueueName;

use super::codec::Command;

/// The handling of one command of a batch. All but the first three take one answer.
#[derive(Debug)]
pub(super) enum BatchStep {
    Text(&'static str),
    Line(String),
    Block(String),
    /// An operation without a reply.
    Silent,
    /// Another queue is used in place of the former one.
    Use {
        queue: QueueName,
        left: QueueName,
    },
    /// A further queue is watched; `watching` is the number of queues with it.
    Watch {
        queue: QueueName,
        watching: usize,
    },
    Put,
    ReserveJob,
    Delete,
    Release,
    Bury,
    Touch,
    Found,
    StatsJob,
    StatsQueue,
    Stats,
    DeleteKey,
}

impl BatchStep {
    /// Largest size of the reply in bytes.
    pub(super) fn most(&self, max_body: usize) -> usize {
        match self {
            // The answer contains the body.
            BatchStep::Found | BatchStep::ReserveJob | BatchStep::StatsJob => max_body,
            BatchStep::Line(text) | BatchStep::Block(text) => text.len(),
            BatchStep::Use { .. } | BatchStep::Watch { .. } => 256,
            BatchStep::StatsQueue | BatchStep::Stats => 2 * 1024,
            BatchStep::Text(_)
            | BatchStep::Silent
            | BatchStep::Put
            | BatchStep::Delete
            | BatchStep::Release
            | BatchStep::Bury
            | BatchStep::Touch
            | BatchStep::DeleteKey => 64,
        }
    }

    pub(super) fn has_answer(&self) -> bool {
        !matches!(self, BatchStep::Text(_) | BatchStep::Line(_) | BatchStep::Block(_))
    }
}

/// Whether it takes several steps, or may wait.
pub(super) fn is_alone(command: &Command) -> bool {
    matches!(
        command,
        Command::Reserve(_)
            | Command::Kick(_)
            | Command::KickJob(_)
            | Command::ListTubes
            | Command::PauseTube { .. }
            | Command::Quit
    )
}

/// Whether a command contains a message. Commands that do may have to wait for the store, and must not delay others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Brings {
    Messages,
    Nothing,
    /// The command may be in one batch with either kind.
    Either,
}

pub(super) fn brings(command: &Command) -> Brings {
    match command {
        Command::Put(_) => Brings::Messages,
        Command::BeginPut
        | Command::MissPut
        | Command::Use(_)
        | Command::Watch(_)
        | Command::Ignore(_)
        | Command::ListTubeUsed
        | Command::ListTubesWatched => Brings::Either,
        Command::Reserve(_)
        | Command::ReserveJob(_)
        | Command::Delete(_)
        | Command::Release { .. }
        | Command::Bury { .. }
        | Command::Touch(_)
        | Command::Kick(_)
        | Command::KickJob(_)
        | Command::Peek(_)
        | Command::PeekReady
        | Command::PeekDelayed
        | Command::PeekBuried
        | Command::Stats
        | Command::StatsJob(_)
        | Command::StatsTube(_)
        | Command::ListTubes
        | Command::PauseTube { .. }
        | Command::Quit
        | Command::DeleteKey(_)
        | Command::PeekKey(_) => Brings::Nothing,
    }
}

/// Whether its answer may show later decisions: pages are read when the batch is done, and counters when it is
/// answered.
pub(super) fn sees_what_follows(command: &Command) -> bool {
    matches!(command, Command::PeekReady | Command::PeekDelayed | Command::PeekBuried | Command::Stats)
}
