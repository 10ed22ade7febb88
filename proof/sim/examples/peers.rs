//! The black-box scenarios for our server and for its peers, as one table.
//!
//! ```text
//! ./scripts/peers [SYSTEM...] [-- SCENARIO...]     parts of names, as the table has them
//! ```
//!
//! Peers need not hold: what they do is written down. Ours must, and so must the harness: each system that was built
//! wrong on purpose must be found out by the scenario that is meant for it, or the table is worth nothing.

use std::fmt::Write as _;
use std::process::ExitCode;

use duewheel_judge::history::Told;
use duewheel_sim::blackbox::System;
use duewheel_sim::blackbox::beanstalk::{Beanstalkd, Binlog, DuewheelBeanstalk};
use duewheel_sim::blackbox::http::{DuewheelHttp, Memory};
use duewheel_sim::blackbox::redis::{Defect, Redis};
use duewheel_sim::blackbox::scenario::{ALL, KILL9, RACE, RESTART, STALE, Scenario};
use duewheel_sim::blackbox::verdict::{Finding, Settings, Verdict, conduct, env, seed};

/// What was built wrong, and which scenario must say so.
fn planted() -> Vec<(Box<dyn System>, Scenario)> {
    let redis = |defect| -> Box<dyn System> { Box::new(Redis::with(defect)) };
    Defect::ALL
        .into_iter()
        .map(|defect| match defect {
            Defect::AckBeforeProcessing => (redis(defect), KILL9),
            Defect::DueRoundedDown | Defect::NoLog => (redis(defect), RESTART),
            Defect::TokenIgnored => (redis(defect), STALE),
            Defect::PopInTwoSteps | Defect::CancelInTwoSteps => (redis(defect), RACE),
        })
        .chain([(Box::new(Beanstalkd::new(Binlog::Off)) as Box<dyn System>, RESTART)])
        .collect()
}

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let split = arguments.iter().position(|a| a == "--").unwrap_or(arguments.len());
    let wanted_systems = &arguments[..split];
    let wanted_scenarios = arguments.get(split + 1..).unwrap_or(&[]);
    let wanted =
        |list: &[String], name: &str| list.is_empty() || list.iter().any(|w| name.contains(w.as_str()));
    let seed = seed();

    let systems: [Box<dyn System>; 4] = [
        Box::new(DuewheelHttp { memory: Memory::Usual, shards: 1 }),
        Box::new(DuewheelBeanstalk::new(Memory::Usual, Told::Yes)),
        Box::new(Beanstalkd::new(Binlog::Synced)),
        Box::new(Redis::sound()),
    ];
    let mut failed = 0;
    let mut rows: Vec<(&str, Vec<Finding>)> = Vec::new();
    let shown: Vec<&dyn System> =
        systems.iter().map(|s| &**s).filter(|s| wanted(wanted_systems, s.name())).collect();
    for scenario in ALL.iter().filter(|s| wanted(wanted_scenarios, s.name)) {
        let mut findings = Vec::new();
        for system in &shown {
            let finding = run(scenario, *system, seed);
            if system.name().starts_with("duewheel") && finding.verdict != Verdict::Held {
                failed += 1;
            }
            findings.push(finding);
        }
        rows.push((scenario.name, findings));
    }
    let mut found = Vec::new();
    for (system, scenario) in planted() {
        if !wanted(wanted_systems, system.name()) || !wanted(wanted_scenarios, scenario.name) {
            continue;
        }
        let finding = run(&scenario, &*system, seed);
        if !matches!(finding.verdict, Verdict::Broken { .. }) {
            failed += 1;
        }
        found.push((system.name(), scenario.name, finding));
    }
    print!("\n{}", table(&shown, &rows, &found));
    if failed > 0 {
        println!(
            "\n{failed} runs did not come out as they must: ours hold, what is built wrong is found out"
        );
        return ExitCode::FAILURE;
    }
    ExitCode::SUCCESS
}

fn run(scenario: &Scenario, system: &dyn System, seed: u64) -> Finding {
    let command = format!("./scripts/peers '{}' -- '{}'", system.name(), scenario.name);
    let size = env(scenario.knob);
    let finding = conduct(scenario, system, Settings { seed, size, command: &command });
    println!("{finding}");
    finding
}

fn table(
    systems: &[&dyn System],
    rows: &[(&str, Vec<Finding>)],
    planted: &[(&str, &str, Finding)],
) -> String {
    let mut out = String::new();
    for system in systems {
        let _ = writeln!(out, "* {}: {}", system.name(), system.described());
    }
    let names: Vec<&str> = systems.iter().map(|s| s.name()).collect();
    if !names.is_empty() {
        let _ = writeln!(out, "\n| test | {} |", names.join(" | "));
        let _ = writeln!(out, "|---|{}", "---|".repeat(names.len()));
    }
    for (name, findings) in rows.iter().filter(|(_, findings)| !findings.is_empty()) {
        let cells: Vec<String> = findings.iter().map(cell).collect();
        let _ = writeln!(out, "| {name} | {} |", cells.join(" | "));
    }
    if !planted.is_empty() {
        let _ = writeln!(out, "\n| built wrong | test | verdict |\n|---|---|---|");
        for (system, scenario, finding) in planted {
            let _ = writeln!(out, "| {system} | {scenario} | {} |", cell(finding));
        }
    }
    out
}

fn cell(finding: &Finding) -> String {
    let figures = if finding.figures.is_empty() { String::new() } else { format!("; {}", finding.figures) };
    match &finding.verdict {
        Verdict::Held => format!("**held**{figures}"),
        Verdict::Broken { count, example } => {
            let first = example.lines().next().unwrap_or("").replace('|', "\\|");
            format!("**broken**, {count} violations: {first}{figures}")
        }
        Verdict::NotApplicable(why) => format!("not applicable ({why})"),
        Verdict::Inconclusive(why) => format!("inconclusive: {}", why.lines().next().unwrap_or("")),
    }
}
