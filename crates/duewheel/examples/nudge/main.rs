//! "Nudge this author of this project after 48 silent hours": real events, virtual time, the real log store.
//!
//! `commits.csv` holds 108,231 commits (time, project, author) of public histories from 2005 to 2026. Each schedules a
//! nudge 48 hours later under the key `project/author`, replacing the one that is pending, so that a nudge goes out
//! only after 48 hours of silence. Twenty years pass in seconds: the clock is virtual, everything else is real, and the
//! store is closed and opened again a few times on the way.
//!
//! `cargo run --release --example nudge -- [FILE] [--delay 48h]`

use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use clap::Parser;
use duewheel::{Created, DAY, Draft, Duewheel, HOUR, IfExists, MINUTE, Message, SECOND, VirtualClock};
use indicatif::{ProgressBar, ProgressStyle};

type Failure = Box<dyn std::error::Error + Send + Sync>;

#[derive(Debug, Parser)]
struct Args {
    /// Events: a line "time in s, project, author" each, in order of time; the first line is a heading.
    file: Option<PathBuf>,
    /// Silence before a nudge: 48h, 90m, 15d ...
    #[arg(long, default_value = "48h", value_parser = duration)]
    delay: Duration,
    /// How often the store is closed and opened again on the way.
    #[arg(long, default_value_t = 4)]
    reopen: usize,
}

struct Event {
    at: SystemTime,
    key: String,
}

/// What the handler has seen.
#[derive(Default)]
struct Seen {
    delivered: AtomicU64,
    early: AtomicU64,
    late: AtomicU64,
}

/// The wheel as it is opened again and again, and the way time passes in it.
struct World {
    data: PathBuf,
    clock: VirtualClock,
    seen: Arc<Seen>,
    wheel: Duewheel,
    /// Nothing is due before.
    quiet_until: Option<SystemTime>,
}

#[tokio::main]
async fn main() -> ExitCode {
    match run(Args::parse()).await {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("nudge: {error}");
            ExitCode::FAILURE
        }
    }
}

async fn run(args: Args) -> Result<(), Failure> {
    let file = args
        .file
        .unwrap_or_else(|| concat!(env!("CARGO_MANIFEST_DIR"), "/examples/nudge/commits.csv").into());
    let events = read(&file)?;
    let first = events.first().ok_or("no events")?.at;
    let dir = tempfile::tempdir()?;
    let started = Instant::now();
    let mut world = World::open(dir.path().join("data"), first).await?;
    let bar = ProgressBar::new(events.len() as u64); // shows itself on a terminal only
    bar.set_style(ProgressStyle::with_template("{wide_bar} {pos}/{len} events, {elapsed} of {duration}")?);

    let stretch = events.len().div_ceil(args.reopen + 1).max(1);
    let mut replaced = 0;
    for (i, events) in events.chunks(stretch).enumerate() {
        if i > 0 {
            world = world.reopen().await?;
        }
        let mut batch = Vec::new();
        for event in events {
            if world.quiet_until.is_some_and(|t| t <= event.at) {
                replaced += world.schedule(&mut batch, &bar).await?;
                world.pass_until(Some(event.at)).await?;
            }
            let due = event.at + args.delay;
            world.quiet_until = Some(world.quiet_until.map_or(due, |t| t.min(due)));
            let draft = world.wheel.queue("nudge").message(&event.key).key(&event.key).at(due);
            batch.push(draft.if_exists(IfExists::Replace));
            if batch.len() >= 1_000 {
                replaced += world.schedule(&mut batch, &bar).await?;
            }
        }
        replaced += world.schedule(&mut batch, &bar).await?;
    }
    world.pass_until(None).await?;
    world.wheel.shutdown(SECOND).await?;
    bar.finish_and_clear();

    let seen = &world.seen;
    let (early, late) = (seen.early.load(Ordering::SeqCst), seen.late.load(Ordering::SeqCst));
    let delivered = seen.delivered.load(Ordering::SeqCst);
    println!("{} events, silence of {:?}", events.len(), args.delay);
    println!("{delivered} nudges delivered, {replaced} replaced, {early} early, {late} late");
    println!(
        "{:.1} years in {:.1} s; the store was opened {} times",
        world.clock.now().duration_since(first)?.as_secs_f64() / DAY.as_secs_f64() / 365.25,
        started.elapsed().as_secs_f64(),
        args.reopen + 1,
    );
    if delivered + replaced != events.len() as u64 || early + late > 0 {
        return Err("every event must be delivered or replaced, none early, none late".into());
    }
    Ok(())
}

impl World {
    async fn open(data: PathBuf, start: SystemTime) -> Result<World, Failure> {
        let (clock, seen) = (VirtualClock::new(start), Arc::new(Seen::default()));
        let wheel = open(&data, &clock, &seen).await?;
        Ok(World { data, clock, seen, wheel, quiet_until: None })
    }

    async fn reopen(self) -> Result<World, Failure> {
        self.wheel.shutdown(10 * SECOND).await?;
        let wheel = open(&self.data, &self.clock, &self.seen).await?;
        Ok(World { wheel, ..self })
    }

    /// Schedules a batch; counts the nudges that were replaced.
    async fn schedule(&self, batch: &mut Vec<Draft>, bar: &ProgressBar) -> Result<u64, Failure> {
        let mut replaced = 0;
        bar.inc(batch.len() as u64);
        for receipt in self.wheel.enqueue_many(std::mem::take(batch)).await {
            replaced += u64::from(matches!(receipt?.created, Created::Replacing(_)));
        }
        Ok(replaced)
    }

    /// Lets time pass, from one due time to the next, so that each nudge is handled at its own instant.
    async fn pass_until(&mut self, end: Option<SystemTime>) -> Result<(), Failure> {
        loop {
            self.quiet_until = self.wheel.next_due().await?;
            match self.quiet_until {
                Some(due) if end.is_none_or(|end| due <= end) => {
                    self.clock.advance_to(due);
                    self.wheel.idle().await?;
                }
                Some(_) | None => break,
            }
        }
        if let Some(end) = end {
            self.clock.advance_to(end);
        }
        Ok(())
    }
}

async fn open(data: &PathBuf, clock: &VirtualClock, seen: &Arc<Seen>) -> Result<Duewheel, Failure> {
    let wheel = Duewheel::builder().data(data).clock(clock.clone()).open().await?;
    let (clock, seen) = (clock.clone(), seen.clone());
    wheel.queue("nudge").handler(move |msg: Message| {
        let (clock, seen) = (clock.clone(), seen.clone());
        async move {
            let counter = match clock.now().cmp(&msg.due_at()) {
                std::cmp::Ordering::Less => Some(&seen.early),
                std::cmp::Ordering::Equal => None,
                std::cmp::Ordering::Greater => Some(&seen.late),
            };
            if let Some(counter) = counter {
                counter.fetch_add(1, Ordering::SeqCst);
            }
            seen.delivered.fetch_add(1, Ordering::SeqCst);
        }
    })?;
    Ok(wheel)
}

fn read(file: &PathBuf) -> Result<Vec<Event>, Failure> {
    let text = std::fs::read_to_string(file).map_err(|e| format!("{}: {e}", file.display()))?;
    let mut events: Vec<Event> = Vec::new();
    for (n, line) in text.lines().enumerate().skip(1) {
        let event = parse(line)
            .ok_or_else(|| format!("{}:{}: not \"time,project,author\"", file.display(), n + 1))?;
        if events.last().is_some_and(|last| last.at > event.at) {
            return Err(format!("{}:{}: earlier than the line before", file.display(), n + 1).into());
        }
        events.push(event);
    }
    Ok(events)
}

fn parse(line: &str) -> Option<Event> {
    let mut parts = line.split(',');
    let (at, project, author) = (parts.next()?.parse().ok()?, parts.next()?, parts.next()?);
    let at = UNIX_EPOCH.checked_add(Duration::from_secs(at))?;
    parts.next().is_none().then(|| Event { at, key: format!("{project}/{author}") })
}

fn duration(text: &str) -> Result<Duration, String> {
    let split = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let unit = match &text[split..] {
        "ms" => Duration::from_millis(1),
        "s" => SECOND,
        "m" => MINUTE,
        "h" => HOUR,
        "d" => DAY,
        _ => return Err("a number and ms, s, m, h or d, such as 48h".into()),
    };
    let n: u32 = text[..split].parse().map_err(|_| "a number and ms, s, m, h or d, such as 48h")?;
    unit.checked_mul(n).ok_or_else(|| "too long".into())
}
