//! Deliveries to webhooks by the real server, to a receiver of this program on loopback:
//!
//! * **through**: messages that are due at once are delivered to one target; the same client sends as many requests to
//!   the same receiver without a queue between (asked: half of that, and 20,000 a second);
//! * **late**: messages that come due evenly; how much later than that they arrive (asked: p99 of 50 ms at 5,000/s);
//! * **hanging**: 50 targets with messages that come due, alone and then beside a target that never answers and has
//!   10,000 messages (asked: p99 within 1.5 times of alone).
//!
//! `bench/run push [--rounds 3]`, two minutes. Each round measures both sides of a ratio one after the other, and the
//! medians of the ratios are the result. The program exits with 1 if something asked is missed.

mod direct;
mod receiver;
mod server;

use std::io;
use std::net::SocketAddr;
use std::process::{Command, ExitCode};
use std::thread::sleep;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use clap::Parser;
use duewheel_bench::instant::instant;
use receiver::PushReceiver;
use server::PushServer;

/// Deliveries through the queue for each of those without it, at least.
const SHARE: f64 = 0.5;
/// Deliveries a second, at least.
const PER_SECOND: f64 = 20_000.0;
/// The p99 of lateness at the rate below, in ms, at most.
const LATE_MS: u64 = 50;
/// The p99 beside a hanging target for each of alone, at most.
const SLOWED: f64 = 1.5;
/// Targets that answer.
const HEALTHY: u64 = 50;
/// Messages of the target that does not.
const HANGING: u64 = 10_000;
/// How long it may take until everything has arrived.
const PATIENCE: Duration = Duration::from_secs(120);

#[derive(Debug, Parser)]
struct Args {
    #[arg(long, default_value_t = 3)]
    rounds: usize,
    /// Messages of a round that are due at once.
    #[arg(long, default_value_t = 200_000)]
    messages: u64,
    /// Requests to their target at a time.
    #[arg(long, default_value_t = 256)]
    concurrency: u32,
    /// Messages that come due a second, for the lateness.
    #[arg(long, default_value_t = 5_000)]
    rate: u64,
    /// The same for the healthy targets, all together.
    #[arg(long, default_value_t = 1_000)]
    healthy_rate: u64,
    /// For how many seconds they come due.
    #[arg(long, default_value_t = 8)]
    seconds: u64,
    #[arg(long, default_value = "fsync")]
    durability: String,
    /// Only this part: through, late or hanging.
    #[arg(long)]
    only: Option<String>,
    /// Sends requests to this address (used by the program itself).
    #[arg(long, hide = true)]
    direct: Option<SocketAddr>,
}

pub(crate) fn main() -> io::Result<ExitCode> {
    let args = crate::arguments::<Args>();
    if let Some(address) = args.direct {
        return direct::run(address, args.messages, args.concurrency).map(|()| ExitCode::SUCCESS);
    }
    duewheel_bench::server::build()?;
    duewheel_bench::machine::without_huge_pages();
    println!("{}\n", duewheel_bench::machine::describe());
    let receiver = PushReceiver::start()?;
    let dir = tempfile::tempdir()?;
    let server = PushServer::start(dir.path(), &args.durability)?;
    let is_wanted = |part: &str| args.only.as_deref().is_none_or(|only| only == part);
    let mut met = true;
    if is_wanted("through") {
        met &= through(&args, &server, &receiver)?;
    }
    if is_wanted("late") {
        met &= late(&args, &server, &receiver)?;
    }
    if is_wanted("hanging") {
        met &= hanging(&args, &server, &receiver)?;
    }
    Ok(if met { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(f64::NAN)
}

fn now_ms() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
}

/// Waits until so many requests have arrived.
fn arrived(receiver: &PushReceiver, count: u64) -> io::Result<()> {
    let begun = Instant::now();
    while receiver.count() < count {
        if begun.elapsed() > PATIENCE {
            return Err(io::Error::other(format!("{} of {count} have arrived", receiver.count())));
        }
        sleep(Duration::from_millis(5));
    }
    Ok(())
}

// ----- through -----

fn through(args: &Args, server: &PushServer, receiver: &PushReceiver) -> io::Result<bool> {
    server.target("through", &receiver.url("through"), args.concurrency, 30_000)?;
    server.deliver("through", "through")?;
    println!("| round | without a queue /s | through the queue /s | ratio |\n|---|--:|--:|--:|");
    let (mut ratios, mut rates) = (Vec::new(), Vec::new());
    for round in 1..=args.rounds {
        receiver.reset();
        let status = Command::new(std::env::current_exe()?)
            .arg("push")
            .args(["--direct", &receiver.address().to_string()])
            .args(["--messages", &args.messages.to_string(), "--concurrency", &args.concurrency.to_string()])
            .status()?;
        if !status.success() {
            return Err(io::Error::other("requests without a queue have failed"));
        }
        arrived(receiver, args.messages)?;
        let without = receiver.per_second();
        server.pause("through")?;
        // An edit takes effect within about a second.
        sleep(Duration::from_secs(2));
        server.enqueue("through", args.messages, |_| r#""delay_ms": 0"#.to_owned())?;
        receiver.reset();
        server.resume("through")?;
        arrived(receiver, args.messages)?;
        let with = receiver.per_second();
        println!("| {round} | {without:.0} | {with:.0} | {:.2} |", with / without);
        ratios.push(with / without);
        rates.push(with);
    }
    let (ratio, rate) = (median(ratios), median(rates));
    println!(
        "\nthrough the queue: {ratio:.2} of without, {rate:.0} deliveries/s (medians; asked {SHARE}, {PER_SECOND})\n"
    );
    Ok(ratio >= SHARE && rate >= PER_SECOND)
}

// ----- late -----

/// Enqueues what comes due evenly over `seconds` from a moment on, waits until all has arrived, and returns p50 and p99
/// of how much later that was, in ms. `queue` is that of the n-th message.
fn come_due(
    (server, receiver): (&PushServer, &PushReceiver),
    (rate, seconds): (u64, u64),
    queues: &[String],
) -> io::Result<(u64, u64)> {
    let each = rate * seconds / u64::try_from(queues.len()).unwrap_or(1);
    let begin = now_ms() + 4_000;
    receiver.reset();
    for queue in queues {
        server.enqueue(queue, each, |n| {
            format!("\"due_at\": \"{}\"", instant(begin + n * seconds * 1_000 / each))
        })?;
    }
    if now_ms() >= begin {
        return Err(io::Error::other("enqueuing took longer than the messages waited"));
    }
    arrived(receiver, each * u64::try_from(queues.len()).unwrap_or(1))?;
    Ok((receiver.lateness_ms(500), receiver.lateness_ms(990)))
}

fn late(args: &Args, server: &PushServer, receiver: &PushReceiver) -> io::Result<bool> {
    server.target("late", &receiver.url("late"), args.concurrency, 30_000)?;
    server.deliver("late", "late")?;
    println!("| round | due/s | p50 of lateness, ms | p99, ms |\n|---|--:|--:|--:|");
    let mut worst = Vec::new();
    for round in 1..=args.rounds {
        let (p50, p99) = come_due((server, receiver), (args.rate, args.seconds), &["late".to_owned()])?;
        println!("| {round} | {} | {p50} | {p99} |", args.rate);
        worst.push(p99);
    }
    worst.sort_unstable();
    let p99 = worst[worst.len() / 2];
    println!("\nlateness: p99 {p99} ms at {} due/s (median; asked {LATE_MS})\n", args.rate);
    Ok(p99 <= LATE_MS)
}

// ----- hanging -----

fn hanging(args: &Args, server: &PushServer, receiver: &PushReceiver) -> io::Result<bool> {
    let queues: Vec<String> = (0..HEALTHY).map(|n| format!("healthy-{n}")).collect();
    for queue in &queues {
        server.target(queue, &receiver.url(queue), 10, 30_000)?;
        server.deliver(queue, queue)?;
    }
    // The time-out passes within a round: the round has requests that hang, and a breaker that opens.
    server.target("hang", &receiver.url("hang"), 10, 5_000)?;
    server.deliver("hang", "hang")?;
    println!(
        "| round | {HEALTHY} targets alone: p99 of lateness, ms | beside one that hangs | ratio |\n|---|--:|--:|--:|"
    );
    let due = (args.healthy_rate, args.seconds);
    // Connections are opened in a round that does not count.
    come_due((server, receiver), (args.healthy_rate, 2), &queues)?;
    let mut ratios = Vec::new();
    for round in 1..=args.rounds {
        let (_, alone) = come_due((server, receiver), due, &queues)?;
        let hung = receiver.hung();
        server.enqueue("hang", HANGING, |_| r#""delay_ms": 0"#.to_owned())?;
        let (_, beside) = come_due((server, receiver), due, &queues)?;
        if receiver.hung() == hung {
            return Err(io::Error::other("nothing has hung"));
        }
        server.purge("hang")?;
        // Those that are under way end.
        sleep(Duration::from_secs(6));
        server.purge("hang")?;
        server.resume("hang")?;
        #[allow(clippy::cast_precision_loss, reason = "milliseconds")]
        let ratio = beside as f64 / alone.max(1) as f64;
        println!("| {round} | {alone} | {beside} | {ratio:.2} |");
        ratios.push(ratio);
    }
    let ratio = median(ratios);
    println!("\nbeside a hanging target: p99 {ratio:.2} times of alone (median; asked {SLOWED})");
    Ok(ratio <= SLOWED)
}
