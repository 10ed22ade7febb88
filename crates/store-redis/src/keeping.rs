//! How safely a master keeps changes, and sentences that describe the consequences.

use std::fmt;

use duewheel_core::store::{ErrorKind, Level, StoreError};
use redis::{Pipeline, Value};

use crate::fault;
use crate::options::{Options, WaitFor};
use crate::wire::Wire;

/// The first version of Redis with `WAITAOF`, and the first of Valkey.
const WAITAOF_SINCE: (u32, u32) = (7, 2);

/// A fact about a master's settings that its operator should know.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finding {
    /// Whether messages can be lost because of it.
    pub weight: Weight,
    /// The master and the consequence, one sentence.
    pub what: String,
}

impl Finding {
    /// The finding for a master that cannot be asked.
    pub(crate) fn unknown(master: &str, error: &StoreError) -> Self {
        let what = format!("{master}: how safely it keeps changes is not known: {error}");
        Finding { weight: Weight::Danger, what }
    }
}

/// How much a [`Finding`] matters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Weight {
    /// For information.
    Note,
    /// Messages can be lost, or the server can run out of memory.
    Danger,
}

/// When the append-only file is synced.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Appendfsync {
    Always,
    EverySecond,
    /// The append-only file is synced when the operating system chooses.
    No,
}

/// The settings that a master reports. `None`: it does not report them, for example because its access control list
/// forbids `CONFIG`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Keeping {
    pub(crate) aof: Option<bool>,
    pub(crate) appendfsync: Option<Appendfsync>,
    pub(crate) no_sync_on_rewrite: Option<bool>,
    pub(crate) min_replicas: Option<u64>,
    /// Number of replicas that follow closely.
    pub(crate) replicas: u64,
    pub(crate) maxmemory: Option<u64>,
    pub(crate) policy: Option<String>,
    pub(crate) version: Option<(u32, u32)>,
}

impl Keeping {
    /// Asks a master.
    ///
    /// # Errors
    /// Fails if the master does not answer `INFO`, or is loading its data. A forbidden `CONFIG` is no error.
    pub(crate) async fn ask(wire: &Wire) -> Result<Keeping, StoreError> {
        let mut keeping = Keeping::default();
        let mut ask = Pipeline::new();
        for section in ["persistence", "replication", "memory", "server"] {
            ask.cmd("INFO").arg(section);
        }
        let replies = wire.call(ask).await?;
        let mut info = String::new();
        for reply in replies {
            info += &fault::some(fault::text(reply, "INFO")?, "INFO")?;
        }
        // A master that is loading reports no append-only file, because it writes none.
        if fault::info(&info, "loading").is_some_and(|loading| loading != "0") {
            return Err(StoreError::new(ErrorKind::Unavailable, "Redis: it is loading its data"));
        }
        keeping.aof = flag(fault::info(&info, "aof_enabled"));
        keeping.replicas = replicas(&info);
        keeping.maxmemory = fault::info(&info, "maxmemory").and_then(|max| max.parse().ok());
        keeping.policy = fault::info(&info, "maxmemory_policy").map(str::to_owned);
        let version = fault::info(&info, "valkey_version").or_else(|| fault::info(&info, "redis_version"));
        keeping.version = version.and_then(|version| {
            let mut parts = version.split('.').map(str::parse);
            Some((parts.next()?.ok()?, parts.next()?.ok()?))
        });
        let mut ask = Pipeline::new();
        let config = ask.cmd("CONFIG").arg("GET").arg("appendonly").arg("appendfsync");
        config.arg("no-appendfsync-on-rewrite").arg("min-replicas-to-write");
        if let Ok(replies) = wire.call(ask).await {
            let config = replies.into_iter().next().unwrap_or(Value::Nil);
            for (name, value) in fault::pairs(config, "CONFIG GET")? {
                keeping.take(&name, &String::from_utf8_lossy(&value));
            }
        }
        Ok(keeping)
    }

    fn take(&mut self, name: &[u8], value: &str) {
        match name {
            b"appendonly" if self.aof.is_none() => self.aof = flag(Some(value)),
            b"appendfsync" => {
                self.appendfsync = match value {
                    "always" => Some(Appendfsync::Always),
                    "everysec" => Some(Appendfsync::EverySecond),
                    "no" => Some(Appendfsync::No),
                    _ => None,
                }
            }
            b"no-appendfsync-on-rewrite" => self.no_sync_on_rewrite = flag(Some(value)),
            b"min-replicas-to-write" => self.min_replicas = value.parse().ok(),
            _ => {}
        }
    }

    /// The level of a change that only this master has. An unknown setting counts as the weaker one.
    pub(crate) fn level(&self) -> Level {
        match (self.aof, self.appendfsync, self.no_sync_on_rewrite) {
            (Some(false) | None, _, _) => Level::Memory,
            (Some(true), Some(Appendfsync::Always), Some(false)) => Level::Fsync,
            (Some(true), _, _) => Level::Buffered,
        }
    }

    /// Why this master is refused, if it is; the text names the option that would allow it.
    pub(crate) fn refusal(&self, master: &impl fmt::Display, options: &Options) -> Option<String> {
        if self.aof == Some(false) && !options.without_aof {
            return Some(format!(
                "{master}: appendonly is no: what it was told since its last snapshot is lost when it restarts. \
                 Set appendonly yes, or say --redis-without-aof if messages may be lost"
            ));
        }
        if self.aof == Some(false) && options.wait_for == WaitFor::Synced {
            return Some(format!(
                "{master}: --redis-wait-for synced waits for an append-only file, and appendonly is no. \
                 Set appendonly yes, or wait for received"
            ));
        }
        match self.version {
            Some(version) if options.wait_for == WaitFor::Synced && version < WAITAOF_SINCE => {
                let ((major, minor), (since, point)) = (version, WAITAOF_SINCE);
                Some(format!(
                    "{master}: --redis-wait-for synced needs WAITAOF, which Redis has from {since}.{point} on; \
                     this one is {major}.{minor}"
                ))
            }
            _ => None,
        }
    }

    /// The findings for the operator, a sentence for each setting.
    pub(crate) fn findings(&self, master: &impl fmt::Display, options: &Options) -> Vec<Finding> {
        let mut findings = Vec::new();
        let mut say = |weight, what: &str| {
            findings.push(Finding { weight, what: format!("{master}: {what}") });
        };
        match self.aof {
            Some(true) => {}
            Some(false) => say(
                Weight::Danger,
                "appendonly no (--redis-without-aof): a restart of it loses what it was told since its last snapshot; \
                 answers say \"memory\"",
            ),
            None => say(
                Weight::Danger,
                "whether it has an append-only file is not known: INFO persistence does not say; answers say \"memory\"",
            ),
        }
        if self.aof == Some(true) {
            match self.appendfsync {
                Some(Appendfsync::Always) => {
                    say(Weight::Note, "appendfsync always: what is answered is on its disk");
                }
                Some(Appendfsync::EverySecond) => say(
                    Weight::Danger,
                    "appendfsync everysec: a power loss takes up to two seconds of what was answered",
                ),
                Some(Appendfsync::No) => say(
                    Weight::Danger,
                    "appendfsync no: a power loss takes what its system has not written yet, some 30 s",
                ),
                None => say(
                    Weight::Note,
                    "appendfsync is not known, as it allows no CONFIG GET: answers say \"buffered\" where no replica follows",
                ),
            }
            if self.no_sync_on_rewrite == Some(true) {
                say(
                    Weight::Danger,
                    "no-appendfsync-on-rewrite yes: nothing is synced while it rewrites its append-only file",
                );
            }
        }
        self.replication(&mut say, options);
        match (self.maxmemory, self.policy.as_deref().unwrap_or("noeviction")) {
            (Some(0), _) => say(
                Weight::Danger,
                "maxmemory 0: messages are taken until its machine has no memory left; set it, or --max-message-bytes",
            ),
            (Some(_), policy) if policy.starts_with("allkeys") => {
                say(Weight::Danger, &format!("maxmemory-policy {policy} may throw messages away"));
            }
            (Some(max), _) => say(
                Weight::Note,
                &format!("maxmemory {max}: new messages are refused shortly before it is used up"),
            ),
            (None, _) => say(Weight::Note, "maxmemory is not known"),
        }
        findings
    }

    fn replication(&self, say: &mut impl FnMut(Weight, &str), options: &Options) {
        let n = self.replicas;
        if n < u64::from(options.wait) {
            let wait = options.wait;
            say(
                Weight::Danger,
                &format!(
                    "{n} replicas follow and --redis-wait is {wait}: until as many follow, every change is unknown"
                ),
            );
        } else if n == 0 {
            say(Weight::Note, "no replica follows: what its disk loses is lost for ever");
        } else if options.wait == 0 {
            say(
                Weight::Note,
                &format!(
                    "{n} replicas follow and --redis-wait is 0: a failover takes what they had not received"
                ),
            );
        } else {
            say(Weight::Note, &format!("{n} replicas follow, {} are waited for", options.wait));
        }
        if n > 0 && self.min_replicas == Some(0) {
            say(
                Weight::Note,
                "min-replicas-to-write 0: cut off from its replicas it goes on answering until it is known to be replaced",
            );
        }
    }
}

fn flag(text: Option<&str>) -> Option<bool> {
    match text? {
        "1" | "yes" => Some(true),
        "0" | "no" => Some(false),
        _ => None,
    }
}

/// Number of replicas that follow closely, counted as in `fence.lua`.
fn replicas(info: &str) -> u64 {
    let follows = |line: &&str| {
        let lag =
            line.split(',').find_map(|field| field.trim_end().strip_prefix("lag=")?.parse::<u64>().ok());
        line.starts_with("slave") && line.contains("state=online") && lag.is_some_and(|lag| lag <= LAG_S)
    };
    info.lines().filter(follows).count() as u64
}

/// A replica that was not heard of for longer than this, in seconds, does not follow closely. Replicas report once a
/// second.
const LAG_S: u64 = 2;

// The memory that a master reports.

/// The used and the largest memory; refuses a server that evicts keys.
pub(crate) async fn ask(wire: &Wire) -> Result<(u64, u64), StoreError> {
    let mut ask = Pipeline::new();
    ask.cmd("INFO").arg("memory");
    read(fault::some(wire.call(ask).await?.into_iter().next(), "INFO")?)
}

/// Reads the reply of `INFO memory`.
pub(crate) fn read(reply: redis::Value) -> Result<(u64, u64), StoreError> {
    let info = fault::some(fault::text(reply, "INFO")?, "INFO")?;
    let number = |field| fault::info(&info, field).and_then(|n| n.parse().ok()).unwrap_or(0);
    let (used, max) = (number("used_memory"), number("maxmemory"));
    let policy = fault::info(&info, "maxmemory_policy").unwrap_or("noeviction");
    if max > 0 && policy.starts_with("allkeys") {
        let what = format_args!("maxmemory-policy is {policy}: it would throw messages away; set noeviction")
            .to_string();
        return Err(StoreError::new(ErrorKind::Corrupt, what));
    }
    Ok((used, max))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn all() -> Keeping {
        Keeping {
            aof: Some(true),
            appendfsync: Some(Appendfsync::Always),
            no_sync_on_rewrite: Some(false),
            min_replicas: Some(0),
            replicas: 0,
            maxmemory: Some(1),
            policy: None,
            version: Some((7, 0)),
        }
    }

    #[test]
    fn unknown_settings_count_as_weaker() {
        assert_eq!(all().level(), Level::Fsync);
        for (keeping, level) in [
            (Keeping { aof: Some(false), ..all() }, Level::Memory),
            (Keeping { aof: None, ..all() }, Level::Memory),
            (Keeping { appendfsync: None, ..all() }, Level::Buffered),
            (Keeping { appendfsync: Some(Appendfsync::EverySecond), ..all() }, Level::Buffered),
            (Keeping { appendfsync: Some(Appendfsync::No), ..all() }, Level::Buffered),
            (Keeping { no_sync_on_rewrite: Some(true), ..all() }, Level::Buffered),
            (Keeping { no_sync_on_rewrite: None, ..all() }, Level::Buffered),
        ] {
            assert_eq!(keeping.level(), level, "{keeping:?}");
        }
    }

    #[test]
    fn silent_replicas_do_not_count() {
        let info = "role:master\r\nconnected_slaves:4\r\n\
                    slave0:ip=127.0.0.1,port=1,state=online,offset=14,lag=1\r\n\
                    slave1:ip=127.0.0.1,port=2,state=online,offset=14,lag=9\r\n\
                    slave2:ip=127.0.0.1,port=3,state=wait_bgsave,offset=0,lag=0\r\n\
                    slave3:ip=127.0.0.1,port=4,state=online,offset=14,lag=0,type=replica\r\n";
        assert_eq!(replicas(info), 2);
    }

    #[test]
    fn unknown_settings_are_reported_not_refused() {
        let options = Options::parse("redis://h").unwrap();
        let keeping = Keeping { aof: None, appendfsync: None, version: None, maxmemory: None, ..all() };
        assert_eq!(keeping.refusal(&"h:1", &options), None);
        let says = keeping.findings(&"h:1", &options);
        assert!(
            says.iter().any(|finding| finding.what.contains("append-only file is not known")),
            "{says:?}"
        );
        assert!(says.iter().any(|finding| finding.what.contains("maxmemory is not known")), "{says:?}");
    }
}
