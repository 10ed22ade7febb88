//! Runs a scenario and judges it.

use std::fmt;
use std::fs::File;
use std::io::BufWriter;
use std::path::{Path, PathBuf};
use std::time::{Instant, SystemTime, UNIX_EPOCH};

use duewheel_judge::checker::{Report, check};
use duewheel_judge::history::History;

use tempfile::TempDir;

use super::System;
use super::client::Run;
use super::scenario::{Done, Scenario, Trial};

/// The result of a scenario for a system.
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
    /// The system does not support the scenario.
    NotApplicable(String),
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

/// The identity of a run, for a test or the table.
#[derive(Clone, Copy, Debug)]
pub struct Settings<'a> {
    /// The seed: it repeats the decisions of a run, not the scheduling of the machine.
    pub seed: u64,
    /// The size; `None`: the default of the scenario.
    pub size: Option<u64>,
    /// The command that repeats the run, besides the variables.
    pub command: &'a str,
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

/// Runs a scenario in a folder of its own, and judges it. History and data are kept unless it held, or if
/// `DUEWHEEL_KEEP` is set.
pub fn conduct(scenario: &Scenario, system: &dyn System, settings: Settings<'_>) -> Finding {
    let size = settings.size.or_else(|| env(scenario.knob)).unwrap_or(scenario.usual);
    let seed = settings.seed;
    let again = format!("DUEWHEEL_SEED={seed} {}={size} {}", scenario.knob, settings.command);
    let mut finding = Finding::new(again);
    if let Some(missing) = scenario.needs.iter().find(|a| !system.can(**a)) {
        finding.verdict = Verdict::NotApplicable(format!("no {missing:?}"));
        return finding;
    }
    let folder = match tempfile::Builder::new().prefix("duewheel-blackbox-").tempdir() {
        Ok(folder) => folder,
        Err(e) => {
            finding.verdict = Verdict::Inconclusive(format!("no temporary folder: {e}"));
            return finding;
        }
    };
    let title = format!("{} of {}, {size}, seed {seed}", scenario.name, system.name());
    println!("{title}, folder {}", folder.path().display());
    let started = Instant::now();
    let run = Run::new(system);
    let done = (scenario.act)(&Trial { run: &run, folder: folder.path(), seed, size });
    finding.seconds = started.elapsed().as_secs_f32();
    conclude(&run, run.complaints(), &title, folder, &done, finding)
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
            Verdict::NotApplicable(why) => write!(f, "not applicable: {why}"),
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
