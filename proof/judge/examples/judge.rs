//! Judges a history file: `cargo run -p duewheel-sim --example judge -- FILE [MESSAGE-ID]`.

use std::fs::File;
use std::io::BufReader;
use std::process::ExitCode;

use duewheel_judge::checker::check;
use duewheel_judge::history::History;

fn main() -> ExitCode {
    let mut args = std::env::args().skip(1);
    let Some(path) = args.next() else {
        eprintln!("usage: judge FILE [MESSAGE-ID]");
        return ExitCode::from(2);
    };
    let only: Option<u64> = args.next().and_then(|id| id.parse().ok());
    let history = match File::open(&path).and_then(|file| History::load(BufReader::new(file))) {
        Ok(history) => history,
        Err(e) => {
            eprintln!("{path}: {e}");
            return ExitCode::from(2);
        }
    };
    let report = check(&history);
    println!("{}\n{report}", history.title);
    for violation in &report.violations {
        if only.is_none() || violation.message.map(|id| id.0) == only {
            println!("{violation}");
        }
    }
    if report.violations.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
