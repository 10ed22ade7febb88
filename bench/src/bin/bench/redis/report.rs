//! The tables.

use std::collections::BTreeMap;

use crate::redis::backend::Fsync;
use crate::redis::measure::{Case, Figure};
use crate::redis::system::{Run, System};

type Figures = BTreeMap<Case, Vec<Figure>>;

/// Rates and costs of each run, lateness, and the targets.
pub(crate) fn print(figures: &Figures) {
    let table = Table { figures };
    for run in Run::ALL {
        if table.cases(run).next().is_some() {
            if run == Run::Late {
                table.lateness();
            } else {
                table.rates(run);
            }
            table.costs(run);
        }
    }
    table.aims();
}

struct Table<'a> {
    figures: &'a Figures,
}

impl Table<'_> {
    fn rates(&self, run: Run) {
        println!(
            "\n| {run} | appendfsync | messages/s | to the first | p50 ms | p99 ms |\n|---|---|--:|--:|--:|--:|"
        );
        for case in self.cases(run) {
            let ratio = self.ratio(*case, run.systems()[0]);
            let time = |of: fn(&Figure) -> f64| {
                let ms = self.median(*case, of).filter(|ms| *ms > 0.0);
                ms.map_or("-".into(), |ms| format!("{ms:.2}"))
            };
            println!(
                "| {} | {} | {:.0} | {} | {} | {} |",
                case.system,
                case.fsync,
                self.median(*case, |f| f.rate).unwrap_or(0.0),
                factor(ratio),
                time(|f| f.p50_ms),
                time(|f| f.p99_ms)
            );
        }
    }

    fn lateness(&self) {
        println!(
            "\n| lateness, ms | appendfsync | p50 | p99 | p99.9 | max | a poll or reserve brings |\n|---|---|--:|--:|--:|--:|--:|"
        );
        for case in self.cases(Run::Late) {
            let of = |of: fn(&crate::redis::measure::Late) -> f64| {
                let value = self.median(*case, |f| f.late.as_ref().map_or(f64::NAN, of));
                value.map_or("-".into(), |value| format!("{value:.0}"))
            };
            println!(
                "| {} | {} | {} | {} | {} | {} | {} |",
                case.system,
                case.fsync,
                of(|l| l.p50 as f64),
                of(|l| l.p99 as f64),
                of(|l| l.p999 as f64),
                of(|l| l.max as f64),
                of(|l| l.per_group)
            );
        }
    }

    /// The costs of one message.
    fn costs(&self, run: Run) {
        println!(
            "\n| {run}: each message | appendfsync | Redis us | of it scripts | messages a script | nodes us | clients us | Redis memory B | append-only file B | Redis in B | out B |\n\
             |---|---|--:|--:|--:|--:|--:|--:|--:|--:|--:|"
        );
        for case in self.cases(run) {
            let of = |digits: usize, of: fn(&Figure) -> f64| {
                let value = self.median(*case, of).filter(|value| value.is_finite());
                value.map_or("-".into(), |value| format!("{value:.digits$}"))
            };
            println!(
                "| {} | {} | {} | {} | {} | {} | {} | {} | {} | {} | {} |",
                case.system,
                case.fsync,
                of(2, |f| f.redis.processor_us),
                of(2, |f| f.redis.scripts_us),
                of(1, |f| 1.0 / f.redis.scripts),
                of(2, |f| f.nodes_us),
                of(2, |f| f.clients_us),
                of(0, |f| f.redis.memory_bytes),
                of(0, |f| f.redis.file_bytes),
                of(0, |f| f.redis.in_bytes),
                of(0, |f| f.redis.out_bytes)
            );
        }
    }

    fn aims(&self) {
        println!("\n| aim | appendfsync | | measured | |\n|---|---|--:|--:|---|");
        for fsync in [Fsync::Everysec, Fsync::Always] {
            let case = |run, system| Case { run, fsync, system };
            let aims = [
                (Run::Pipelined, System::Beanstalk, System::Homemade, 2.0),
                (Run::Pipelined, System::Ndjson, System::Homemade, 2.0),
                (Run::Pipelined, System::Ndjson, System::HomemadeBatch, 2.0),
                (Run::Through, System::Ndjson, System::BullmqBulk, 5.0),
                (Run::Through, System::Http, System::Bullmq, 5.0),
            ];
            for (run, ours, theirs, least) in aims {
                if let Some(ratio) = self.ratio(case(run, ours), theirs) {
                    let met = verdict(ratio >= least);
                    println!("| {run}: {ours} to {theirs} | {fsync} | >= {least} | {ratio:.2} | {met} |");
                }
            }
            let late = case(Run::Late, System::Ndjson);
            if let Some(p99) = self.median(late, |f| f.late.map_or(f64::NAN, |l| l.p99 as f64)) {
                println!("| lateness p99, ms | {fsync} | <= 20 | {p99:.0} | {} |", verdict(p99 <= 20.0));
            }
        }
    }

    fn cases(&self, run: Run) -> impl Iterator<Item = &Case> {
        self.figures.keys().filter(move |case| case.run == run)
    }

    /// The ratio to another system's rate with the same file.
    fn ratio(&self, case: Case, to: System) -> Option<f64> {
        let other = Case { system: to, ..case };
        Some(self.median(case, |f| f.rate)? / self.median(other, |f| f.rate)?)
    }

    /// The median over the rounds.
    fn median(&self, case: Case, of: impl Fn(&Figure) -> f64) -> Option<f64> {
        let mut values: Vec<f64> = self.figures.get(&case)?.iter().map(of).collect();
        values.sort_by(f64::total_cmp);
        values.get((values.len().max(1) - 1) / 2).copied()
    }
}

fn verdict(met: bool) -> &'static str {
    if met { "met" } else { "missed" }
}

fn factor(ratio: Option<f64>) -> String {
    ratio.map_or("-".into(), |ratio| format!("{ratio:.2}"))
}
