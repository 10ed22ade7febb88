//! The result of an import, for people and as JSON.

use std::collections::{BTreeMap, HashSet};

use serde_json::{Value, json};

use crate::reply::JobState;

/// The number of refused jobs that are named; the others are counted.
const MOST_NAMED: usize = 20;

#[derive(Debug, Default)]
pub(crate) struct ImportReport {
    tubes: BTreeMap<String, TubeTally>,
    pub(crate) moved: u64,
    /// The number of those that an earlier run had copied.
    pub(crate) before: u64,
    /// Copies that were cancelled, because a worker of the source had taken the job.
    pub(crate) left_to_workers: u64,
    /// Copies that could not be cancelled any more.
    pub(crate) may_run_twice: u64,
    refused_ids: HashSet<u64>,
    named: Vec<RefusedJob>,
}

/// A job that duewheel refuses.
#[derive(Debug)]
pub(crate) struct RefusedJob {
    pub(crate) id: u64,
    pub(crate) tube: String,
    pub(crate) size: u64,
    pub(crate) reason: String,
}

#[derive(Debug, Default)]
struct TubeTally {
    ready: u64,
    delayed: u64,
    buried: u64,
    held: u64,
    refused: u64,
}

impl ImportReport {
    pub(crate) fn moved(&mut self, tube: &str, state: JobState, before: bool) {
        self.moved += 1;
        self.before += u64::from(before);
        let tally = self.tally(tube);
        match state {
            JobState::Ready | JobState::Reserved => tally.ready += 1,
            JobState::Delayed => tally.delayed += 1,
            JobState::Buried => tally.buried += 1,
        }
    }

    pub(crate) fn refused(&mut self, refused: RefusedJob) {
        if !self.refused_ids.insert(refused.id) {
            return;
        }
        self.tally(&refused.tube).refused += 1;
        if self.named.len() < MOST_NAMED {
            self.named.push(refused);
        }
    }

    pub(crate) fn is_refused(&self, id: u64) -> bool {
        self.refused_ids.contains(&id)
    }

    pub(crate) fn refusals(&self) -> u64 {
        self.refused_ids.len() as u64
    }

    /// Jobs that workers of the source still have.
    pub(crate) fn held(&mut self, tube: &str, jobs: u64) {
        self.tally(tube).held += jobs;
    }

    fn tally(&mut self, tube: &str) -> &mut TubeTally {
        if !self.tubes.contains_key(tube) {
            self.tubes.insert(tube.to_owned(), TubeTally::default());
        }
        self.tubes.entry(tube.to_owned()).or_default()
    }

    pub(crate) fn json(&self, held: u64, not_found: u64, in_source: u64) -> Value {
        let tubes: Vec<Value> = self
            .tubes
            .iter()
            .map(|(name, t)| {
                json!({"tube": name, "ready": t.ready, "delayed": t.delayed, "buried": t.buried,
                       "held": t.held, "refused": t.refused})
            })
            .collect();
        let refused: Vec<Value> = self
            .named
            .iter()
            .map(|r| json!({"id": r.id, "tube": r.tube, "size": r.size, "reason": r.reason}))
            .collect();
        json!({"moved": self.moved, "before": self.before, "held": held, "refused": self.refusals(),
               "not_found": not_found, "in_source": in_source, "left_to_workers": self.left_to_workers,
               "may_run_twice": self.may_run_twice, "tubes": tubes, "refusals": refused})
    }

    /// A row for each tube: its name, and how many jobs were moved ready, delayed and buried, are held, and were
    /// refused.
    pub(crate) fn rows(&self) -> Vec<Vec<String>> {
        let row = |(name, t): (&String, &TubeTally)| {
            let numbers = [t.ready, t.delayed, t.buried, t.held, t.refused].map(|n| n.to_string());
            std::iter::once(name.clone()).chain(numbers).collect()
        };
        self.tubes.iter().map(row).collect()
    }

    /// The sentences below the table; `moved` begins the first one, behind the number of jobs.
    pub(crate) fn lines(&self, moved: &str) -> Vec<String> {
        let mut lines = vec![format!("{} {moved}", jobs(self.moved))];
        let mut say = |n: u64, what: &str| {
            if n > 0 {
                lines.push(format!("{n} {what}"));
            }
        };
        say(self.before, "of them were there already, from an earlier run");
        say(
            self.left_to_workers,
            "were taken by workers of the source while they were copied; the copies are cancelled",
        );
        say(self.may_run_twice, "of such copies had been handed out already: these jobs may run twice");
        lines
    }

    /// The jobs that were refused, one a line.
    pub(crate) fn refusal_lines(&self) -> Vec<String> {
        let line = |r: &RefusedJob| {
            format!("job {} of tube {}, {} bytes, stays: {}", r.id, r.tube, r.size, r.reason)
        };
        let mut lines: Vec<String> = self.named.iter().map(line).collect();
        let more = self.refused_ids.len() - self.named.len();
        if more > 0 {
            lines.push(format!("and {more} more"));
        }
        lines
    }
}

/// A number of jobs, in words.
pub(crate) fn jobs(n: u64) -> String {
    if n == 1 { "1 job".to_owned() } else { format!("{n} jobs") }
}
