//! The cost of done messages: the same messages enqueued, reserved and acked in a queue that keeps what has ended, and
//! in one that does not, in turn, each in a new folder with `fdatasync`.
//!
//! `bench/run done [--rounds 5] [--messages 200000] [--body 200]`. Each figure is compared with that of the same round
//! without done messages; the medians of these ratios are the result. At the end a sample of what is kept is read by id.

use std::time::Instant;

use clap::Parser;
use duewheel::core::engine::{Enqueue, Op, When};
use duewheel::core::id::MessageId;
use duewheel::core::message::State;
use duewheel::core::name::QueueName;
use duewheel::core::policy::QueueSettings;
use duewheel::{DAY, Duewheel};
use duewheel_bench::process::{processor_time, written_bytes};
use duewheel_bench::submit::{ack, put_all, take};

#[derive(Parser)]
struct Args {
    #[arg(long, default_value_t = 5)]
    rounds: usize,
    #[arg(long, default_value_t = 200_000)]
    messages: u64,
    /// Bytes of a body.
    #[arg(long, default_value_t = 200)]
    body: usize,
}

/// What one run costs, for each message.
#[derive(Clone, Copy, Debug)]
struct Cost {
    us: f64,
    processor_us: f64,
    written_bytes: f64,
}

pub(crate) fn main() {
    let args = crate::arguments::<Args>();
    println!("{}", duewheel_bench::machine::describe());
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().expect("a runtime");
    let mut ratios: [Vec<f64>; 3] = Default::default();
    for round in 1..=args.rounds {
        let [without, with] = [false, true].map(|keeps| runtime.block_on(measure(&args, keeps)));
        println!("round {round}: without {without:?}, with {with:?}");
        ratios[0].push(with.us / without.us);
        ratios[1].push(with.processor_us / without.processor_us);
        ratios[2].push(with.written_bytes / without.written_bytes);
    }
    let [time, processor, written] = ratios.map(|mut ratios| {
        ratios.sort_by(f64::total_cmp);
        ratios[ratios.len() / 2]
    });
    println!(
        "\nwith done messages: {time:.2} times the time, {processor:.2} times the processor's, {written:.2} times the bytes written"
    );
}

async fn measure(args: &Args, keeps: bool) -> Cost {
    let folder = tempfile::tempdir().expect("a folder");
    let wheel = Duewheel::open(folder.path()).await.expect("opened");
    let name = QueueName::new("orders").expect("a name");
    let queue = wheel.queue("orders");
    let keep_done_ms = keeps.then(|| u64::try_from(DAY.as_millis()).expect("a day"));
    queue.configure(QueueSettings { keep_done_ms, ..QueueSettings::default() }).await.expect("configured");
    let client = wheel.client();
    let message = Enqueue { when: When::After(0), ..Enqueue::new(name.clone(), vec![b'x'; args.body]) };
    let (began, processor, written) = (Instant::now(), processor_time(), written_bytes());
    put_all(client, args.messages, |_| Op::Enqueue(Box::new(message.clone()))).await;
    let mut acked = 0;
    let mut last = MessageId(0);
    while acked < args.messages {
        let grants = take(client, name.clone(), 1_000, 10_000, 60_000).await;
        last = grants.last().map_or(last, |grant| grant.message.id);
        acked += grants.len() as u64;
        ack(client, &grants).await;
    }
    let each = |sum: f64| sum / args.messages as f64;
    let cost = Cost {
        us: each(began.elapsed().as_secs_f64() * 1e6),
        processor_us: each((processor_time() - processor).as_secs_f64() * 1e6),
        written_bytes: each((written_bytes() - written) as f64),
    };
    let done = queue.info().await.expect("answered").map_or(0, |queue| queue.done);
    let kept = client.ask(Op::recall(duewheel::core::engine::Target::Id(last))).await.expect("answered");
    assert_eq!(kept.is_some_and(|view| view.state == State::Done), keeps && done > 0);
    if keeps {
        println!("{done} of {} are kept", args.messages);
    }
    wheel.shutdown(DAY).await.expect("closed");
    cost
}
