//! Judges a run.

use std::fmt;
use std::fs::File;
use std::io::BufWriter;
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use duewheel_judge::checker::{Fact, Report, check};
use duewheel_judge::history::History;

use tempfile::TempDir;

use super::client::Run;

/// The result of a run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Nothing contradicts the promises, and the faults provably happened.
    Held,
    /// Something contradicts the promises.
    Broken {
        /// The number of violations.
        count: usize,
        /// The kinds of violations, and the first of them.
        example: String,
    },
    /// Nothing contradicts the promises, but too few faults have happened for a conclusion.
    Inconclusive(String),
}

/// A verdict and its origin.
#[derive(Clone, Debug)]
pub struct Finding {
    /// The verdict.
    pub verdict: Verdict,
    /// The measured figures.
    pub figures: String,
    /// The full report of the judge.
    pub report: String,
    /// How to repeat the run.
    pub again: String,
    /// The duration in seconds.
    pub seconds: f32,
}

/// A completed run.
#[derive(Debug)]
pub struct Done {
    /// The facts that must provably have happened.
    pub require: Vec<(Fact, u64)>,
    /// Further figures.
    pub figures: Figures,
}

/// A text made from a report and the scenario's own figures.
pub struct Figures(Box<dyn Fn(&Report) -> String + Send>);

impl std::fmt::Debug for Figures {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Figures")
    }
}

impl Figures {
    /// Made when the report is complete.
    pub fn new(say: impl Fn(&Report) -> String + Send + 'static) -> Self {
        Figures(Box::new(say))
    }

    fn say(&self, report: &Report) -> String {
        (self.0)(report)
    }
}

/// A number from the environment.
pub fn env(name: &str) -> Option<u64> {
    std::env::var(name)
        .ok()
        .map(|text| text.parse().unwrap_or_else(|_| panic!("{name} is not a number: {text}")))
}

/// `DUEWHEEL_SEED`, or a random seed.
pub fn seed() -> u64 {
    env("DUEWHEEL_SEED").unwrap_or_else(|| {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        u64::from(now.subsec_nanos())
    })
}

/// Judges the history of a run, completes the finding, and keeps the folder if necessary.
pub fn conclude(
    run: &Run<'_>,
    complaints: Vec<String>,
    title: &str,
    folder: TempDir,
    done: &Result<Done, String>,
    mut finding: Finding,
) -> Finding {
    let history = run.recorder.history(title, run.system.rules());
    let report = check(&history);
    finding.report = format!("{report}");
    finding.verdict = judge(&report, complaints, done);
    if let Ok(done) = done {
        finding.figures = done.figures.say(&report);
    }
    let bad = matches!(finding.verdict, Verdict::Broken { .. } | Verdict::Inconclusive(_));
    if bad || env("DUEWHEEL_KEEP").is_some() {
        let kept = folder.keep();
        let file = save(&history, &kept);
        finding.again = format!(
            "history {0}, the server's log and data beside it\n\
             judge it again: cargo run -p duewheel-judge --example judge -- {0}\n\
             same decisions: {1}",
            file.display(),
            finding.again
        );
    }
    finding
}

fn save(history: &History, folder: &Path) -> PathBuf {
    let path = folder.join("history.jsonl");
    let saved = File::create(&path).and_then(|file| history.save(&mut BufWriter::new(file)));
    if let Err(e) = saved {
        println!("the history cannot be kept: {e}");
    }
    path
}

fn judge(report: &Report, complaints: Vec<String>, done: &Result<Done, String>) -> Verdict {
    let mut faults: Vec<String> = complaints;
    if let Err(what) = done {
        faults.push(what.clone());
    }
    let count = faults.len() + report.violations.len();
    if let Some(violation) = report.violations.first() {
        faults.insert(0, format!("{:?}, first {violation}", report.failed()));
    }
    match done {
        _ if count > 0 => Verdict::Broken { count, example: faults.join("\n") },
        Ok(done) => match report.evidence.require(&done.require) {
            Ok(()) => Verdict::Held,
            Err(missing) => Verdict::Inconclusive(format!("the run proves too little: {missing}")),
        },
        Err(what) => Verdict::Inconclusive(what.clone()),
    }
}

impl Finding {
    /// A finding that contains only how to repeat the run.
    pub fn new(again: String) -> Self {
        Finding { verdict: Verdict::Held, figures: String::new(), report: String::new(), again, seconds: 0.0 }
    }

    /// Panics unless the system held.
    pub fn must_hold(&self) {
        println!("{self}");
        assert!(self.verdict == Verdict::Held, "{}\n{}", self.verdict, self.again);
    }
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Verdict::Held => write!(f, "held"),
            Verdict::Broken { count, example } => write!(f, "broken, {count} violations: {example}"),
            Verdict::Inconclusive(why) => write!(f, "inconclusive: {why}"),
        }
    }
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{}in {:.1} s: {}. {}", self.report, self.seconds, self.verdict, self.figures)?;
        if matches!(self.verdict, Verdict::Broken { .. } | Verdict::Inconclusive(_)) {
            writeln!(f, "{}", self.again)?;
        }
        Ok(())
    }
}
