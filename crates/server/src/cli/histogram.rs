//! `duewheel histogram [QUEUE]`: how many messages are due when, drawn in the terminal.

use std::io::{self, Write};

use clap::Args;
use duewheel::core::QueueName;
use jiff::{Timestamp, Zoned};
use serde_json::Value;

use super::invocation::print_json;
use super::queue::queue_name;
use super::remote::{Remote, segment};
use super::table::counted;
use super::when::GivenInstant;
use super::{ClientCommand, CommandFailure, ServerArgs, when};

/// Characters of the longest bar.
const WIDTH: u64 = 50;
const EIGHTHS: [&str; 8] = ["", "▏", "▎", "▍", "▌", "▋", "▊", "▉"];

#[derive(Args, Debug)]
pub(super) struct HistogramArgs {
    /// The queue [default: all queues]
    #[arg(value_parser = queue_name)]
    queue: Option<QueueName>,
    /// Where the first bar begins [default: now]
    #[arg(long, value_name = "INSTANT")]
    from: Option<String>,
    /// Where the last bar ends [default: a day later]
    #[arg(long, value_name = "INSTANT")]
    to: Option<String>,
    /// Number of bars
    #[arg(long, value_name = "N", default_value_t = 24)]
    buckets: u32,
    #[command(flatten)]
    server: ServerArgs,
}

impl ClientCommand for HistogramArgs {
    fn server(&self) -> &ServerArgs {
        &self.server
    }

    fn run(self) -> Result<(), CommandFailure> {
        let now = Zoned::now();
        let mut path = match &self.queue {
            Some(queue) => format!("{}/histogram", super::queue::path(queue)),
            None => "/v1/histogram".to_owned(),
        };
        path.push_str(&format!("?buckets={}", self.buckets));
        for (name, text) in [("from", &self.from), ("to", &self.to)] {
            if let Some(text) = text {
                let instant = instant(name, text, &now)?;
                path.push_str(&format!("&{name}={}", segment(&instant)));
            }
        }
        let answer = Remote::new(&self.server)?.get(&path)?;
        let mut out = io::stdout().lock();
        if self.server.json {
            print_json(&mut out, &answer)?;
        } else {
            draw(&mut out, &answer, &now)?;
        }
        Ok(())
    }
}

/// An instant of an option, as RFC 3339.
fn instant(option: &str, text: &str, now: &Zoned) -> Result<String, CommandFailure> {
    let usage = |what: String| CommandFailure::Usage(format!("--{option} {text:?}: {what}"));
    let GivenInstant { instant, note } = GivenInstant::read(text, now).map_err(usage)?;
    when::say(&format!("--{option}"), text, note.as_deref());
    Ok(instant)
}

/// Draws a bar for each bucket, all to one scale; the ends are counted without a bar.
fn draw(out: &mut impl Write, answer: &Value, now: &Zoned) -> io::Result<()> {
    let width_ms = answer["width_ms"].as_u64().unwrap_or(0);
    let format = match width_ms {
        0..60_000 => "%a %H:%M:%S",
        60_000..86_400_000 => "%a %-d %b %H:%M",
        _ => "%Y-%m-%d",
    };
    let none = Vec::new();
    let buckets = answer["buckets"].as_array().unwrap_or(&none);
    let count = |bucket: &Value| bucket["count"].as_u64().unwrap_or(0);
    let most = buckets.iter().map(count).max().unwrap_or(0).max(1);
    let digits = most.to_string().len().max(5);
    let total: u64 = buckets.iter().map(count).sum();
    for bucket in buckets {
        let from = bucket["from"].as_str().and_then(|text| text.parse::<Timestamp>().ok());
        let from = from.map(|at| at.to_zoned(now.time_zone().clone()).strftime(format).to_string());
        let count = count(bucket);
        writeln!(out, "{:<18} {count:>digits$}  {}", from.unwrap_or_default(), bar(count, most))?;
    }
    let outside = |name: &str| answer[name].as_u64().unwrap_or(0);
    writeln!(
        out,
        "{}; {} due before, {} after; times of {}",
        counted(total, "message"),
        outside("before"),
        outside("after"),
        when::zone_name(now)
    )
}

/// A bar of eighths of characters; whatever is not nothing is seen.
fn bar(count: u64, most: u64) -> String {
    let eighths = (u128::from(count) * u128::from(WIDTH) * 8).div_ceil(u128::from(most));
    let (whole, part) =
        (usize::try_from(eighths / 8).unwrap_or(0), usize::try_from(eighths % 8).unwrap_or(0));
    format!("{}{}", "█".repeat(whole), EIGHTHS[part])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn histogram_bars_are_to_scale() {
        let now: Zoned = "2026-11-22T19:30:00[Europe/Berlin]".parse().unwrap();
        let answer = serde_json::json!({
            "from": "2026-11-22T18:30:00.000Z", "width_ms": 3_600_000, "before": 1, "after": 2,
            "buckets": [
                {"from": "2026-11-22T18:30:00.000Z", "count": 1_000},
                {"from": "2026-11-22T19:30:00.000Z", "count": 500},
                {"from": "2026-11-22T20:30:00.000Z", "count": 1},
                {"from": "2026-11-22T21:30:00.000Z", "count": 0},
            ],
        });
        let mut out = Vec::new();
        draw(&mut out, &answer, &now).unwrap();
        let lines: Vec<String> = String::from_utf8(out).unwrap().lines().map(str::to_owned).collect();
        assert_eq!(lines[0], format!("Sun 22 Nov 19:30    1000  {}", "█".repeat(50)));
        assert_eq!(lines[1], format!("Sun 22 Nov 20:30     500  {}", "█".repeat(25)));
        assert_eq!(lines[2], "Sun 22 Nov 21:30       1  ▏");
        assert_eq!(lines[3], "Sun 22 Nov 22:30       0  ");
        assert_eq!(lines[4], "1501 messages; 1 due before, 2 after; times of Europe/Berlin");
    }
}
