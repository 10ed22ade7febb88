//! Runs a server: opens the wheel, listens, and drains when told to stop.

use std::io::Write;
use std::time::Duration;

use duewheel::Duewheel;
use tokio::signal::unix::{Signal, SignalKind, signal};

use crate::config::{ConfigError, Level, Settings};
use crate::http::{App, Listener};

/// Connections may take this long for their last answers once the wheel is closed.
const LINGER: Duration = Duration::from_secs(2);

/// Why a server did not start, or ended other than it should.
#[derive(Debug, thiserror::Error)]
pub enum ServeError {
    /// The settings cannot be.
    #[error("{0}")]
    Config(#[from] ConfigError),
    /// This store is not in this version.
    #[error(
        "--store {0}: this version keeps messages in the data folder only; leave --store out, or say log"
    )]
    UnknownStore(String),
    /// Every listener is off.
    #[error("every listener is off; there is nothing to serve")]
    NoListener,
    /// The data folder did not open.
    #[error("cannot open {data}: {why}")]
    Open {
        /// Which folder.
        data: String,
        /// Why.
        why: duewheel::OpenError,
    },
    /// An address could not be taken.
    #[error("cannot listen on {address}: {why}")]
    Bind {
        /// Which address.
        address: std::net::SocketAddr,
        /// Why.
        why: std::io::Error,
    },
    /// Signals or standard output do not work.
    #[error("{0}")]
    System(#[from] std::io::Error),
    /// The driver ended by itself.
    #[error("stopped: {0}")]
    Ended(String),
    /// The end was not clean.
    #[error("{0}")]
    Shutdown(#[from] duewheel::ShutdownError),
}

/// Serves until a signal. Writes a line for each listener to `out` when it is ready.
///
/// # Errors
/// See [`ServeError`]. A clean stop is none.
pub async fn serve(settings: Settings, out: &mut impl Write) -> Result<(), ServeError> {
    if !matches!(settings.store.as_str(), "log" | "log:") {
        return Err(ServeError::UnknownStore(settings.store));
    }
    let Some(address) = settings.http_address()? else { return Err(ServeError::NoListener) };
    if settings.beanstalk.is_some() {
        eprintln!("notice: the beanstalkd listener is not in this version; --beanstalk is ignored");
    }
    // Before anything that takes time, so that no signal is missed.
    let mut stop = Signals::new()?;

    let wheel = open(&settings).await?;
    let app = App::new(wheel.clone(), settings.policy, settings.limits);
    let listener =
        Listener::bind(address, app.clone()).await.map_err(|why| ServeError::Bind { address, why })?;
    let stopper = listener.stopper();
    writeln!(out, "listening on http://{}", listener.address()?)?;
    out.flush()?;
    let serving = tokio::spawn(listener.run(LINGER));

    let result = tokio::select! {
        () = stop.next() => {
            tracing::info!("stopping");
            app.set_draining();
            tokio::select! {
                result = wheel.shutdown(settings.drain_timeout) => result.map_err(ServeError::from),
                () = stop.next() => Err(ServeError::Ended("a second signal came while draining".into())),
            }
        }
        why = wheel.ended() => Err(ServeError::Ended(why)),
    };
    stopper.stop();
    // The listener's own task does not panic; and if it did, there is nothing left to wait for.
    tokio::select! {
        _ = serving => {}
        () = stop.next() => {}
    }
    result
}

async fn open(settings: &Settings) -> Result<Duewheel, ServeError> {
    if settings.durability == Level::Memory {
        tracing::warn!("durability is memory: nothing survives the end of this process");
    }
    let opened = Duewheel::builder()
        .data(&settings.data)
        .durability(settings.durability.into())
        .policy(settings.policy.clone())
        .log_options(settings.log_options())
        .open()
        .await;
    opened.map_err(|why| ServeError::Open { data: settings.data.display().to_string(), why })
}

/// SIGTERM and SIGINT.
struct Signals {
    terminate: Signal,
    interrupt: Signal,
}

impl Signals {
    fn new() -> std::io::Result<Self> {
        Ok(Signals {
            terminate: signal(SignalKind::terminate())?,
            interrupt: signal(SignalKind::interrupt())?,
        })
    }

    /// The next one. Cancel safe.
    async fn next(&mut self) {
        tokio::select! {
            _ = self.terminate.recv() => {}
            _ = self.interrupt.recv() => {}
        }
    }
}
