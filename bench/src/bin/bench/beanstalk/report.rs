//! The tables.

use std::collections::BTreeMap;

use crate::beanstalk::measure::{Case, Figure, Run};
use crate::beanstalk::servers::System;

type Figures = BTreeMap<(Case, System), Vec<Figure>>;

/// Rates and their ratios, processor time, latency, and the targets.
pub(crate) fn print(figures: &Figures, systems: &[System], burst: u64) {
    let table = Table { figures, systems, burst };
    if figures.is_empty() {
        return;
    }
    table.rates();
    table.cores();
    table.latency();
    table.aims();
}

/// Rates by tenths, and memory.
pub(crate) fn print_sustained(jobs: u64, runs: &[(&str, Figure)]) {
    println!("\n| {jobs} puts into duewheel, 50 x 100, jobs/s | {} |", names(runs));
    println!("|---|{}", "--:|".repeat(runs.len()));
    for tenth in 0..10 {
        let rates = runs.iter().map(|(_, figure)| {
            let end = figure.tenths.get(tenth).copied().unwrap_or(f64::NAN);
            let start = if tenth == 0 { 0.0 } else { figure.tenths[tenth - 1] };
            format!("{:.0}", figure.jobs as f64 / 10.0 / (end - start))
        });
        println!("| tenth {} | {} |", tenth + 1, rates.collect::<Vec<_>>().join(" | "));
    }
    let row = |name: &str, cell: &dyn Fn(&Figure) -> String| {
        let cells: Vec<String> = runs.iter().map(|(_, figure)| cell(figure)).collect();
        println!("| {name} | {} |", cells.join(" | "));
    };
    row("all", &|figure| format!("{:.0}", figure.rate()));
    row("resident memory at the end, MiB", &|figure| figure.resident_mib.to_string());
    row("cores: server", &|figure| format!("{:.2}", figure.server_cores()));
    row("cores: load generator", &|figure| format!("{:.2}", figure.generator_cores()));
}

fn names(runs: &[(&str, Figure)]) -> String {
    runs.iter().map(|(name, _)| *name).collect::<Vec<_>>().join(" | ")
}

struct Table<'a> {
    figures: &'a Figures,
    systems: &'a [System],
    burst: u64,
}

impl Table<'_> {
    fn rates(&self) {
        println!("| jobs/s | connections x depth | {} | ours / beanstalkd | ours / fsync |", self.heads());
        println!("|---|---|{}--:|--:|", "--:|".repeat(self.systems.len()));
        for case in self.cases() {
            let cells = self.systems.iter().map(|system| {
                let cut = if self.is_cut(case, *system) { "*" } else { "" };
                self.rate(case, *system).map_or("-".into(), |rate| format!("{rate:.0}{cut}"))
            });
            println!(
                "| {} | {} | {} | {} | {} |",
                self.name(case.run),
                case.shape(),
                join(cells),
                factor(self.ratio(case, System::Beanstalkd)),
                factor(self.ratio(case, System::BeanstalkdFsync))
            );
        }
        if self.figures.keys().any(|(case, system)| self.is_cut(*case, *system)) {
            println!("\n*: cut off before all jobs of the burst were put.");
        }
    }

    fn cores(&self) {
        println!("\n| cores busy: server, load generator | connections x depth | {} |", self.heads());
        println!("|---|---|{}", "--:|".repeat(self.systems.len()));
        for case in self.cases() {
            let cells = self.systems.iter().map(|system| {
                let server = self.median(case, *system, Figure::server_cores);
                let own = self.median(case, *system, Figure::generator_cores);
                server.zip(own).map_or("-".into(), |(server, own)| format!("{server:.2}, {own:.2}"))
            });
            println!("| {} | {} | {} |", self.name(case.run), case.shape(), join(cells));
        }
    }

    fn latency(&self) {
        let case = Case { run: Run::Put, connections: 1, depth: 1 };
        if !self.cases().contains(&case) {
            return;
        }
        println!("\n| a put alone (1 x 1), us | p50 | p90 | p99 | p50 / fsync |\n|---|--:|--:|--:|--:|");
        for system in self.systems {
            let at = |n: usize| self.median(case, *system, |figure| figure.put_us[n]).unwrap_or(f64::NAN);
            let fsync = self.median(case, System::BeanstalkdFsync, |figure| figure.put_us[0]);
            println!(
                "| {system} | {:.1} | {:.1} | {:.1} | {} |",
                at(0),
                at(1),
                at(2),
                factor(fsync.map(|fsync| at(0) / fsync))
            );
        }
    }

    fn aims(&self) {
        use Run::{Burst, BurstDelayed, Put, Reserve};
        use System::{Beanstalkd, BeanstalkdFsync};
        println!("\n| aim | | measured | |\n|---|--:|--:|---|");
        for run in [Burst, BurstDelayed] {
            let case = Case { run, connections: 50, depth: 100 };
            let rate = self.rate(case, System::Duewheel);
            aim(&format!("{}, 50 x 100, jobs/s", self.name(run)), 1e6, rate, |rate| format!("{rate:.0}"));
            self.aim_ratio(case, Beanstalkd, 7.0);
            self.aim_ratio(case, BeanstalkdFsync, 60.0);
        }
        let wide = |run, depth| Case { run, connections: 50, depth };
        self.aim_ratio(wide(Reserve, 100), Beanstalkd, 5.0);
        self.aim_ratio(wide(Reserve, 100), BeanstalkdFsync, 25.0);
        self.aim_ratio(wide(Put, 1), BeanstalkdFsync, 4.0);
        self.aim_ratio(wide(Put, 1), Beanstalkd, 0.5);
        self.aim_ratio(wide(Reserve, 1), BeanstalkdFsync, 2.0);

        let alone = Case { run: Put, connections: 1, depth: 1 };
        let p50 = |system| self.median(alone, system, |figure| figure.put_us[0]);
        let ratio = p50(System::Duewheel).zip(p50(BeanstalkdFsync)).map(|(ours, theirs)| ours / theirs);
        println!(
            "| median latency of a put, 1 x 1, to {BeanstalkdFsync}'s | <= 1.3 | {} | {} |",
            factor(ratio),
            verdict(ratio.map(|ratio| ratio <= 1.3))
        );
    }

    fn aim_ratio(&self, case: Case, to: System, least: f64) {
        let name = format!("{}, {}, to {to}'s", self.name(case.run), case.shape());
        aim(&name, least, self.ratio(case, to), |ratio| format!("{ratio:.2}"));
    }

    fn cases(&self) -> Vec<Case> {
        let mut cases: Vec<Case> = self.figures.keys().map(|(case, _)| *case).collect();
        cases.dedup();
        cases
    }

    fn heads(&self) -> String {
        join(self.systems.iter().map(System::to_string))
    }

    fn name(&self, run: Run) -> String {
        match run {
            Run::Burst => format!("burst of {}", self.burst),
            Run::BurstDelayed => format!("burst of {}, delayed", self.burst),
            Run::Put | Run::Delayed | Run::Reserve | Run::Mixed | Run::Sustained => run.to_string(),
        }
    }

    fn is_cut(&self, case: Case, system: System) -> bool {
        let burst = matches!(case.run, Run::Burst | Run::BurstDelayed);
        let figures = self.figures.get(&(case, system));
        burst && figures.is_some_and(|figures| figures.iter().any(|figure| figure.jobs < self.burst))
    }

    fn rate(&self, case: Case, system: System) -> Option<f64> {
        self.median(case, system, Figure::rate)
    }

    /// The ratio of duewheel to another system.
    fn ratio(&self, case: Case, to: System) -> Option<f64> {
        Some(self.rate(case, System::Duewheel)? / self.rate(case, to)?)
    }

    /// The median over the rounds.
    fn median(&self, case: Case, system: System, of: impl Fn(&Figure) -> f64) -> Option<f64> {
        let mut values: Vec<f64> = self.figures.get(&(case, system))?.iter().map(of).collect();
        values.sort_by(f64::total_cmp);
        values.get((values.len().max(1) - 1) / 2).copied()
    }
}

/// A row of the targets, with the least acceptable value.
fn aim(name: &str, least: f64, measured: Option<f64>, show: impl Fn(f64) -> String) {
    println!(
        "| {name} | >= {least} | {} | {} |",
        measured.map_or("-".into(), show),
        verdict(measured.map(|measured| measured >= least))
    );
}

fn verdict(met: Option<bool>) -> &'static str {
    match met {
        Some(true) => "met",
        Some(false) => "missed",
        None => "not measured",
    }
}

fn factor(ratio: Option<f64>) -> String {
    ratio.map_or("-".into(), |ratio| format!("{ratio:.2}"))
}

fn join(cells: impl Iterator<Item = String>) -> String {
    cells.collect::<Vec<_>>().join(" | ")
}
