//! Communication with the service manager that runs the server (systemd): sockets that the manager keeps open, and
//! states of the server. Neither needs a manager: without its variables in the environment nothing here has an effect.

mod notify;
mod sockets;

pub(crate) use notify::ServiceManager;
pub use sockets::GivenSockets;

/// Reads a number of a variable; `None` if it is missing or no number.
fn number(name: &str) -> Option<u64> {
    std::env::var(name).ok()?.parse().ok()
}

/// Whether a variable with a process id is for this process, and not for the one that started it.
fn is_for_us(name: &str) -> bool {
    number(name) == Some(u64::from(std::process::id()))
}
