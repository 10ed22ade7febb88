//! Comparisons with other systems and earlier versions, each by its name: `bench/run NAME [ARGUMENTS]`.

use std::process::{ExitCode, Termination};

use clap::Parser;

mod backlog;
mod beanstalk;
mod burst;
mod cold;
mod done;
mod engine;
mod hostile;
mod idle_queue;
mod neighbours;
mod outbox;
mod postgres;
mod push;
mod rabbitmq;
mod redis;
mod rest;
mod server;
mod store;
mod takeover;

use rabbitmq::until; // the broker's file is that of tests, where it is found here

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc; // the server's

fn main() -> ExitCode {
    let name = std::env::args().nth(1).unwrap_or_default();
    match name.as_str() {
        "backlog" => end_of(backlog::main),
        "beanstalk" => end_of(beanstalk::main),
        "burst" => end_of(burst::main),
        "cold" => end_of(cold::main),
        "done" => end_of(done::main),
        "engine" => end_of(engine::main),
        "hostile" => end_of(hostile::main),
        "idle-queue" => end_of(idle_queue::main),
        "neighbours" => end_of(neighbours::main),
        "outbox" => end_of(outbox::main),
        "postgres" => end_of(postgres::main),
        "push" => end_of(push::main),
        "rabbitmq" => end_of(rabbitmq::main),
        "redis" => end_of(redis::main),
        "rest" => end_of(rest::main),
        "server" => end_of(server::main),
        "store" => end_of(store::main),
        "takeover" => end_of(takeover::main),
        _ => {
            eprintln!("there is no bench {name:?}: bench/run lists them");
            ExitCode::from(2)
        }
    }
}

fn end_of<T: Termination>(bench: impl FnOnce() -> T) -> ExitCode {
    bench().report()
}

/// The arguments behind the name of a bench.
fn arguments<A: Parser>() -> A {
    A::parse_from(std::env::args_os().skip(1))
}
