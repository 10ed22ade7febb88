//! What an import did, for people and as JSON.

use std::collections::{BTreeMap, HashSet};
use std::io::{self, Write};

use serde_json::{Value, json};

use super::super::table::{self, plain};
use super::reply::State;

/// Refused jobs that are named; the others are counted.
const MOST_NAMED: usize = 20;

#[derive(Debug, Default)]
pub(super) struct Report {
    tubes: BTreeMap<String, Tally>,
    pub(super) moved: u64,
    /// Of those, the ones that an earlier run had copied.
    pub(super) before: u64,
    /// Copies that were cancelled, for a worker of the source had taken the job.
    pub(super) left_to_workers: u64,
    /// Copies that could not be cancelled any more.
    pub(super) may_run_twice: u64,
    refused_ids: HashSet<u64>,
    named: Vec<Refused>,
}

/// A job that duewheel does not take.
#[derive(Debug)]
pub(super) struct Refused {
    pub(super) id: u64,
    pub(super) tube: String,
    pub(super) size: u64,
    pub(super) reason: String,
}

#[derive(Debug, Default)]
struct Tally {
    ready: u64,
    delayed: u64,
    buried: u64,
    held: u64,
    refused: u64,
}

impl Report {
    pub(super) fn moved(&mut self, tube: &str, state: State, before: bool) {
        self.moved += 1;
        self.before += u64::from(before);
        let tally = self.tally(tube);
        match state {
            State::Ready | State::Reserved => tally.ready += 1,
            State::Delayed => tally.delayed += 1,
            State::Buried => tally.buried += 1,
        }
    }

    pub(super) fn refused(&mut self, refused: Refused) {
        if !self.refused_ids.insert(refused.id) {
            return;
        }
        self.tally(&refused.tube).refused += 1;
        if self.named.len() < MOST_NAMED {
            self.named.push(refused);
        }
    }

    pub(super) fn is_refused(&self, id: u64) -> bool {
        self.refused_ids.contains(&id)
    }

    pub(super) fn refusals(&self) -> u64 {
        self.refused_ids.len() as u64
    }

    /// Jobs that workers of the source still have.
    pub(super) fn held(&mut self, tube: &str, jobs: u64) {
        self.tally(tube).held += jobs;
    }

    fn tally(&mut self, tube: &str) -> &mut Tally {
        if !self.tubes.contains_key(tube) {
            self.tubes.insert(tube.to_owned(), Tally::default());
        }
        self.tubes.entry(tube.to_owned()).or_default()
    }

    pub(super) fn json(&self, held: u64, not_found: u64, in_source: u64) -> Value {
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

    pub(super) fn table(&self, out: &mut impl Write, moved: &str) -> io::Result<()> {
        let row = |name: &str, t: &Tally| {
            let numbers = [t.ready, t.delayed, t.buried, t.held, t.refused].map(|n| n.to_string());
            std::iter::once(name.to_owned()).chain(numbers).collect::<Vec<_>>()
        };
        let rows: Vec<Vec<String>> = self.tubes.iter().map(|(name, tally)| row(name, tally)).collect();
        if !rows.is_empty() {
            table::print(out, &["TUBE", "READY", "DELAYED", "BURIED", "HELD", "REFUSED"], &rows)?;
        }
        writeln!(out, "{} jobs {moved}", self.moved)?;
        let mut say = |n: u64, what: &str| if n > 0 { writeln!(out, "{n} {what}") } else { Ok(()) };
        say(self.before, "of them were there already, from an earlier run")?;
        say(
            self.left_to_workers,
            "were taken by workers of the source while they were copied; the copies are cancelled",
        )?;
        say(self.may_run_twice, "of such copies had been handed out already: these jobs may run twice")
    }

    /// The jobs that were refused, one a line.
    pub(super) fn refusal_lines(&self) -> Vec<String> {
        let line = |r: &Refused| {
            format!("job {} of tube {}, {} bytes, stays: {}", r.id, r.tube, r.size, plain(&r.reason))
        };
        let mut lines: Vec<String> = self.named.iter().map(line).collect();
        let more = self.refused_ids.len() - self.named.len();
        if more > 0 {
            lines.push(format!("and {more} more"));
        }
        lines
    }
}
