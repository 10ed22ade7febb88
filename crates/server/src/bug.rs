//! A panic anywhere ends the server.
//!
//! The server runs no code of users, so a panic is a bug of duewheel, and its effects are unknown: a listener may
//! accept no more connections, a store may have lost its worker. Accepted messages are on the disk; a server that
//! restarts is better than one that works only in part.

use std::panic::{PanicHookInfo, set_hook, take_hook};
use std::process::exit;
use std::thread;
use std::time::Duration;

use tokio::sync::watch;

/// Reports the first panic of this process.
#[derive(Clone, Debug)]
pub struct Bugs(watch::Receiver<Option<String>>);

impl Bugs {
    /// Observes every thread from now on. After a panic the process ends by itself within `grace`, whatever its state.
    pub fn watch(grace: Duration) -> Bugs {
        let (sender, receiver) = watch::channel(None);
        let print = take_hook();
        set_hook(Box::new(move |info| {
            print(info);
            let is_first = sender.send_if_modified(|first| {
                let is_first = first.is_none();
                if is_first {
                    *first = Some(sentence(info));
                }
                is_first
            });
            if is_first {
                let ending = thread::Builder::new().name("duewheel-end".into()).spawn(move || {
                    thread::sleep(grace);
                    eprintln!("duewheel: ended at once: after a bug it did not stop in time");
                    exit(1);
                });
                if ending.is_err() {
                    exit(1);
                }
            }
        }));
        Bugs(receiver)
    }

    /// Observes nothing: the owner of this process handles panics.
    pub fn unwatched() -> Bugs {
        Bugs(watch::channel(None).1)
    }

    /// Waits for the first panic, and returns its place. Cancel safe.
    pub(crate) async fn first(&mut self) -> String {
        match self.0.wait_for(Option::is_some).await {
            Ok(first) => first.clone().unwrap_or_default(),
            Err(_) => std::future::pending().await,
        }
    }
}

fn sentence(info: &PanicHookInfo<'_>) -> String {
    let thread = thread::current();
    let name = thread.name().unwrap_or("without a name");
    let place = info.location().map(|at| format!(" at {}:{}", at.file(), at.line())).unwrap_or_default();
    let payload = info.payload();
    let what = payload.downcast_ref::<&str>().copied();
    let what = what.or_else(|| payload.downcast_ref::<String>().map(String::as_str)).unwrap_or("no message");
    format!("a bug in duewheel: thread {name} has panicked{place}: {what}")
}
