//! Connections to Redis. No request is ever sent twice.

use std::borrow::Cow;
use std::collections::BTreeSet;
use std::future::Future;
use std::pin::Pin;
use std::sync::mpsc::sync_channel;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock};
use std::time::Duration;

use duewheel_core::store::{ErrorKind, StoreError};
use duewheel_store_medium::locked;
use futures_util::future::select_ok;
use redis::aio::MultiplexedConnection;
use redis::{
    Arg, AsyncConnectionConfig, Client, ClientTlsConfig, Cmd, ConnectionAddr, IntoConnectionInfo, Pipeline,
    RedisConnectionInfo, TlsCertificates, Value,
};
use tokio::runtime::{Builder, Runtime};

use crate::keys::HostPort;
use crate::options::{Options, Topology, Transport};
use crate::{fault, keys};

/// Number of threads for all connections of the process.
const THREADS: usize = 2;
/// Shortest time limit for one node of a cluster to list the masters.
const LEAST_TIME_LIMIT: Duration = Duration::from_millis(250);
/// The delay before each further node is asked.
const STAGGER: Duration = Duration::from_millis(50);
/// Number of slots of a Redis Cluster.
const SLOTS: u16 = 16_384;

/// The result of a request: a value for each of its commands. Unless refusals are returned as values, a refused command
/// is the error of all.
pub(crate) type RedisReply = Result<Vec<Value>, RequestFailure>;

/// Why a request has no reply.
#[derive(Clone, Debug)]
pub(crate) struct RequestFailure {
    pub(crate) error: StoreError,
    pub(crate) begun: Begun,
}

/// Whether the server may have begun to carry out a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Begun {
    /// The server has refused the first command, or never received it.
    No,
    /// The server may have begun: that is unknown.
    Maybe,
}

impl From<StoreError> for RequestFailure {
    fn from(error: StoreError) -> Self {
        RequestFailure { error, begun: Begun::Maybe }
    }
}

impl From<RequestFailure> for StoreError {
    fn from(failure: RequestFailure) -> Self {
        failure.error
    }
}

/// The runtime of all connections of the process, so that they do not depend on a runtime of the caller's.
pub(crate) fn runtime() -> Result<&'static Runtime, StoreError> {
    static RUNTIME: OnceLock<Result<Runtime, String>> = OnceLock::new();
    let made = RUNTIME.get_or_init(|| {
        // The process may have installed a provider for TLS already.
        let _ = rustls::crypto::ring::default_provider().install_default();
        let mut builder = Builder::new_multi_thread();
        builder.worker_threads(THREADS).thread_name("duewheel-redis").enable_all();
        builder.build().map_err(|error| error.to_string())
    });
    made.as_ref().map_err(|error| StoreError::new(ErrorKind::Unavailable, error))
}

/// Runs a future of the connections to its end, from a thread that may block.
pub(crate) fn wait_for<T: Send + 'static>(
    work: impl Future<Output = Result<T, StoreError>> + Send + 'static,
) -> Result<T, StoreError> {
    let (done, result) = sync_channel(1);
    // Boxed: the runtime's code for a task is compiled once.
    let work: Pin<Box<dyn Future<Output = ()> + Send>> = Box::pin(async move {
        let _ = done.send(work.await); // nobody waits any more
    });
    runtime()?.spawn(work);
    result.recv().map_err(|_| fault::bug("a task has ended without a result"))?
}

/// Makes connections.
#[derive(Clone, Debug)]
pub(crate) struct Servers(pub(crate) Arc<Options>);

impl Servers {
    /// Connects, logs in and selects the database.
    pub(crate) async fn connect(&self, address: &HostPort) -> Result<MultiplexedConnection, StoreError> {
        let failed = |error: redis::RedisError| {
            let error = fault::of_connection(&error);
            StoreError::new(error.kind(), format_args!("{}:{}: {error}", address.0, address.1))
        };
        let client = self.client(address).map_err(failed)?;
        let config = AsyncConnectionConfig::new()
            .set_connection_timeout(Some(self.0.connect_timeout))
            .set_response_timeout(Some(self.0.response_timeout));
        let mut connection =
            client.get_multiplexed_async_connection_with_config(&config).await.map_err(failed)?;
        if self.0.transport == Transport::Tls {
            // The handshake is over for this side before the server has checked our certificate, and the server's alert
            // may be lost.
            let heard: Result<Value, redis::RedisError> =
                redis::cmd("TIME").query_async(&mut connection).await;
            if let Err(error) = heard
                && error.code().is_none()
                && !error.is_timeout()
            {
                let why = "the server ended the TLS connection before its first answer: \
                           it may want a certificate, or another one, of its clients (tls-auth-clients)";
                return Err(StoreError::new(
                    ErrorKind::Unavailable,
                    format_args!("{}:{}: {why}; {error}", address.0, address.1),
                ));
            }
        }
        Ok(connection)
    }

    fn client(&self, (host, port): &HostPort) -> Result<Client, redis::RedisError> {
        let options = &*self.0;
        let mut settings = RedisConnectionInfo::default().set_db(options.db).set_skip_set_lib_name();
        if let Some(user) = &options.user {
            settings = settings.set_username(user);
        }
        if let Some(password) = &options.password {
            settings = settings.set_password(password);
        }
        let host = host.clone();
        match options.transport {
            Transport::Plain => {
                let info = ConnectionAddr::Tcp(host, *port).into_connection_info()?;
                Client::open(info.set_redis_settings(settings))
            }
            Transport::Tls => {
                let address = ConnectionAddr::TcpTls { host, port: *port, insecure: false, tls_params: None };
                let info = address.into_connection_info()?.set_redis_settings(settings);
                let client_tls = options.client.clone();
                let client_tls =
                    client_tls.map(|(client_cert, client_key)| ClientTlsConfig { client_cert, client_key });
                let root_cert = options.authority.clone();
                Client::build_with_tls(info, TlsCertificates { client_tls, root_cert })
            }
        }
    }

    /// The masters of the slots. In a cluster the nodes are asked one after the other, without waiting long for each,
    /// and the first answer is used.
    pub(crate) async fn slots(&self) -> Result<Slots, StoreError> {
        if self.0.shape == Topology::Single {
            return Ok(Slots(vec![(0, u64::from(SLOTS) - 1, self.0.hosts[0].clone())]));
        }
        let time_limit = self.0.connect_timeout.min(self.0.lease / 4).max(LEAST_TIME_LIMIT);
        // A node that hangs must not delay the others each time that the masters are asked for.
        let asked = (0..).zip(&self.0.hosts).map(|(n, seed)| {
            let ask = async move {
                tokio::time::sleep(STAGGER * n).await;
                match tokio::time::timeout(time_limit, self.slots_by(seed)).await {
                    Ok(slots) => slots,
                    Err(_) => {
                        let what = format_args!("{}:{} does not answer", seed.0, seed.1);
                        Err(StoreError::new(ErrorKind::Unavailable, what))
                    }
                }
            };
            Box::pin(ask)
        });
        select_ok(asked).await.map(|(slots, _)| slots)
    }

    async fn slots_by(&self, seed: &HostPort) -> Result<Slots, StoreError> {
        let mut connection = self.connect(seed).await?;
        let mut ask = redis::pipe();
        ask.cmd("CLUSTER").arg("SLOTS");
        let reply = send(&mut connection, &ask).await.and_then(all_or_none)?;
        let of = "CLUSTER SLOTS";
        let mut slots = Vec::new();
        for range in fault::list(fault::some(reply.into_iter().next(), of)?, of)? {
            let mut range = fault::list(range, of)?.into_iter();
            let mut next = || fault::some(range.next(), of);
            let (from, to, master) = (next()?, next()?, next()?);
            let mut master = fault::list(master, of)?.into_iter();
            let mut next = || fault::some(master.next(), of);
            let (host, port) = (fault::text(next()?, of)?, fault::number(next()?, of)?);
            // A node that does not know its own name means itself.
            let host = host.filter(|host| !host.is_empty() && host != "?").unwrap_or_else(|| seed.0.clone());
            let port = u16::try_from(fault::some(port, of)?).map_err(|_| fault::odd(of))?;
            let (from, to) = (fault::number(from, of)?, fault::number(to, of)?);
            slots.push((fault::some(from, of)?, fault::some(to, of)?, (host, port)));
        }
        Ok(Slots(slots))
    }
}

/// Ranges of slots, and their masters.
#[derive(Debug)]
pub(crate) struct Slots(Vec<(u64, u64, HostPort)>);

impl Slots {
    /// All masters, each once.
    pub(crate) fn masters(&self) -> BTreeSet<&HostPort> {
        self.0.iter().map(|(_, _, address)| address).collect()
    }

    /// The master of a key.
    pub(crate) fn master_of(&self, key: &str) -> Result<&HostPort, StoreError> {
        let slot = u64::from(slot_of(key));
        let range = self.0.iter().find(|(from, to, _)| (*from..=*to).contains(&slot));
        range.map(|(_, _, address)| address).ok_or_else(|| {
            StoreError::new(ErrorKind::Unavailable, format_args!("Redis Cluster: no master has slot {slot}"))
        })
    }
}

/// The slot of a key with a hash tag: CRC-16/XMODEM of the tag.
pub(crate) fn slot_of(key: &str) -> u16 {
    let tag = key.split_once('{').and_then(|(_, rest)| rest.split_once('}')).map_or(key, |(tag, _)| tag);
    let crc = tag.bytes().fold(0u16, |crc, byte| {
        (0..8).fold(crc ^ (u16::from(byte) << 8), |crc, _| {
            if crc & 0x8000 == 0 { crc << 1 } else { crc << 1 ^ 0x1021 }
        })
    });
    crc % SLOTS
}

/// Sends commands and waits for their replies, refusals among them.
async fn send(connection: &mut MultiplexedConnection, ask: &Pipeline) -> RedisReply {
    let count = ask.len();
    let sent = connection.send_packed_commands(ask, 0, count).await;
    let mut values = sent.map_err(|error| fault::of_connection(&error))?;
    for (value, command) in values.iter_mut().zip(ask.cmd_iter()) {
        if matches!(value, Value::ServerError(error) if fault::is_wrong_type(error))
            && let Some(named) = misused_key(connection, command).await
        {
            *value = named;
        }
    }
    if values.len() == count { Ok(values) } else { Err(fault::odd("several commands").into()) }
}

/// Makes a refusal of one command the error of all.
pub(crate) fn all_or_none(values: Vec<Value>) -> RedisReply {
    for (place, value) in values.iter().enumerate() {
        if let Value::ServerError(error) = value {
            let begun = if place == 0 && fault::is_before(error) { Begun::No } else { Begun::Maybe };
            return Err(RequestFailure { error: fault::of_server(error), begun });
        }
    }
    Ok(values)
}

/// A connection, for callers on any thread. Dropping it ends the connection.
pub(crate) struct Wire(Mutex<Option<MultiplexedConnection>>);

impl Wire {
    /// Takes over a connection.
    pub(crate) fn new(connection: MultiplexedConnection) -> Self {
        Wire(Mutex::new(Some(connection)))
    }

    /// Sends commands, and returns their replies.
    ///
    /// # Cancel safety
    /// The commands are carried out whether the caller waits or not.
    pub(crate) async fn call(&self, ask: Pipeline) -> RedisReply {
        self.call_each(ask).await.and_then(all_or_none)
    }

    /// Sends commands like [`Wire::call`]; a refusal is the value of its command ([`Value::ServerError`]).
    ///
    /// # Cancel safety
    /// See [`Wire::call`].
    pub(crate) async fn call_each(&self, ask: Pipeline) -> RedisReply {
        let connection = self.connection().clone();
        match connection {
            Some(mut connection) => send(&mut connection, &ask).await,
            None => Err(RequestFailure { error: gone(), begun: Begun::No }),
        }
    }

    /// Ends the connection, once the calls under way have ended.
    pub(crate) fn cut(&self) {
        *self.connection() = None;
    }

    fn connection(&self) -> MutexGuard<'_, Option<MultiplexedConnection>> {
        locked(&self.0)
    }
}

fn gone() -> StoreError {
    StoreError::new(ErrorKind::Unavailable, "the connection to Redis has ended")
}

/// The refusal of a command with `WRONGTYPE`, with the name of the key; `None`: the server does not answer any more.
pub(crate) async fn misused_key(connection: &mut MultiplexedConnection, command: &Cmd) -> Option<Value> {
    let keys = keys_of(command);
    let mut ask = Pipeline::with_capacity(keys.len());
    for key in &keys {
        ask.cmd("TYPE").arg(key);
    }
    let types = connection.send_packed_commands(&ask, 0, keys.len()).await.ok()?;
    let other = keys.iter().zip(types).find_map(|(key, is)| {
        let (is, should) = (fault::text(is, "TYPE").ok()??, keys::type_of(key));
        let is_other = is != should && is != "none";
        is_other.then(|| format!("{key} is a {is}, and should be a {should}: another program uses it"))
    });
    let what = other.unwrap_or_else(|| format!("one of {}", keys.join(", ")));
    // The client crate has no constructor of a refusal.
    redis::parse_redis_value(format!("-WRONGTYPE {what}\r\n").as_bytes()).ok()
}

/// The keys of a command: those of a script, or the first argument.
fn keys_of(command: &Cmd) -> Vec<String> {
    let words = command.args_iter().filter_map(|arg| match arg {
        Arg::Simple(word) => Some(String::from_utf8_lossy(word)),
        _ => None,
    });
    let words: Vec<Cow<'_, str>> = words.collect();
    let (first, count) = match &words[..] {
        [eval, _, count, ..] if eval == "EVAL" => (3, count.parse().unwrap_or(0)),
        _ => (1, 1),
    };
    words.into_iter().skip(first).take(count).map(Cow::into_owned).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slots_are_those_of_redis() {
        // `CLUSTER KEYSLOT` of a server.
        assert_eq!(slot_of("123456789"), 12_739);
        assert_eq!(slot_of("{user1000}.following"), slot_of("{user1000}.followers"));
        assert_eq!(slot_of("foo"), 12_182);
    }
}
