//! Ownership of a shard: acquiring it, renewing the lease, returning it.

use std::fmt;
use std::sync::OnceLock;
use std::time::Duration;

use duewheel_core::Epoch;
use duewheel_core::store::{ErrorKind, PLACEMENT, StoreError};
use duewheel_core::time::ClockSample;
use duewheel_store_medium::{EndedOwners, boot_ms, hex, millis, random, read_clocks, refused_format};
use redis::{Pipeline, Value};

use crate::fault;
use crate::keys::{self, Keys};
use crate::options::{Create, Options};
use crate::wire::Wire;

/// The format of the data in Redis: format 1, in a form that no build before 0.1.0 takes for its own.
pub(crate) const FORMAT: &str = "duewheel-1";
/// The format of a cluster while a backup is restored to it.
pub(crate) const RESTORING: &str = "duewheel-1-restoring";
/// Format markers that builds before 0.1.0 have written.
const EARLIER: [&str; 4] = ["1", "2", "3", "restoring"];
/// Epochs count the seconds since the start of 2020.
pub(crate) const FIRST_EPOCH: u64 = 1_577_836_800;
/// The number of ids that are reserved at a time; new ones are reserved when half of them are used. When the server's
/// clock is found to have gone back, ids continue behind these. A shard gives every n-th of them.
pub(crate) const IDS_ASIDE: u64 = 1 << 26;
/// Ids for each second of the server's clock: after an unclean end, ids continue at the server's time times this
/// number. So data that was restored to an earlier time gives no id again, as long as fewer ids than this are given
/// each second. They stay below 2^53 until the year 2088.
const IDS_A_SECOND: u64 = 1 << 22;
/// Lease tokens of an epoch continue from the server's microseconds since the first epoch times this number: data that
/// was restored within a second gives the epoch of the lost owner again, but no token of it, as long as fewer tokens
/// than this were given in a microsecond. They stay below 2^64 until the year 2162.
const TOKENS_A_MICROSECOND: u64 = 1 << 12;
/// Longest time that replicas may take to know a new owner.
const REPLICAS_KNOW: Duration = Duration::from_secs(1);

/// A node that wants a shard.
#[derive(Clone, Debug)]
pub(crate) struct Claimant {
    pub(crate) node: Box<str>,
    pub(crate) number: u32,
    pub(crate) advertise: Box<str>,
    /// The cluster that it has joined; `None`: it is a single node.
    pub(crate) cluster: Option<ClusterIdentity>,
}

/// The common properties of the shards of a cluster.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct ClusterIdentity {
    /// A random id, which never changes.
    pub(crate) id: String,
    pub(crate) shards: u32,
    pub(crate) secret: [u8; 32],
    /// Whether each shard has had an owner: a shard that is missing then was lost.
    pub(crate) made: bool,
}

impl fmt::Debug for ClusterIdentity {
    /// Does not show the secret.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ClusterIdentity { id, shards, secret: _, made } = self;
        f.debug_struct("ClusterIdentity")
            .field("id", id)
            .field("shards", shards)
            .field("made", made)
            .finish_non_exhaustive()
    }
}

/// The result of acquiring a shard.
#[derive(Clone, Debug)]
pub(crate) struct RedisReign {
    pub(crate) epoch: Epoch,
    /// A random number for each opening: no older request can be taken for one of this owner.
    pub(crate) incarnation: String,
    /// The replication id of the master on which it was acquired.
    pub(crate) replid: String,
    /// Ids below this one may not be given.
    pub(crate) first_id: u64,
    /// Lease tokens continue from here.
    pub(crate) tokens: u64,
    /// The time since the clocks were recorded, by the server's clock, which all nodes share.
    pub(crate) noted_ago: Option<Duration>,
    /// This node's clocks at that answer.
    pub(crate) taken: ClockSample,
}

/// Incarnations of this process that have certainly ended, so that none of them answers any more.
pub(crate) fn ended() -> &'static EndedOwners<String> {
    static ENDED: OnceLock<EndedOwners<String>> = OnceLock::new();
    ENDED.get_or_init(EndedOwners::default)
}

/// The error of a key whose format is not [`FORMAT`].
pub(crate) fn unknown_format(key: &str, stored: &str) -> StoreError {
    refused_format(key, stored, [FORMAT, RESTORING], &EARLIER)
}

/// Acquires a shard; returns the result, and the time of the request.
pub(crate) async fn acquire(
    wire: &Wire,
    keys: &Keys,
    claimant: &Claimant,
    options: &Options,
) -> Result<(RedisReign, u64), StoreError> {
    let incarnation = hex(&random::<16>()?);
    let taken = acquire_as(&incarnation, wire, keys, claimant, options).await;
    if let Err(error) = &taken
        && error.kind() != ErrorKind::Fenced
    {
        // The shard may have been acquired although this failed: the reply may be lost, or a replica may not know of
        // it. No answer of that reign is ever sent.
        ended().note(incarnation.clone());
        let mut give_back = Pipeline::new();
        let mut call = keys::call(keys::renew(), keys);
        call.arg("").arg(&incarnation).arg("").arg(0).arg("");
        give_back.add_command(call);
        let _ = tokio::time::timeout(REPLICAS_KNOW, wire.call(give_back)).await; // or it runs out
    }
    taken
}

async fn acquire_as(
    incarnation: &str,
    wire: &Wire,
    keys: &Keys,
    claimant: &Claimant,
    options: &Options,
) -> Result<(RedisReign, u64), StoreError> {
    let incarnation = incarnation.to_owned();
    let known = options.remembered.epoch(keys);
    let made = claimant.cluster.as_ref().is_some_and(|cluster| cluster.made);
    let may_be_made = options.create == Create::Always && !made;
    let mut over = String::new();
    loop {
        let mut call = keys::call(keys::acquire(), keys);
        call.arg(&incarnation).arg(&*claimant.node).arg(claimant.number).arg(&*claimant.advertise);
        call.arg(millis(options.lease)).arg(known).arg(FORMAT).arg(&over).arg(FIRST_EPOCH);
        call.arg(IDS_ASIDE).arg(IDS_A_SECOND);
        match &claimant.cluster {
            Some(cluster) => call.arg(&cluster.id).arg(cluster.shards),
            None => call.arg("").arg(1),
        };
        call.arg(PLACEMENT).arg(if may_be_made { "new" } else { "" });
        let mut ask = Pipeline::new();
        ask.add_command(call);
        let asked = boot_ms();
        let of = "acquire";
        let reply = fault::some(wire.call(ask).await?.into_iter().next(), of)?;
        let taken = read_clocks();
        let mut words = fault::list(reply, of)?.into_iter();
        let mut next = || words.next().unwrap_or(Value::Nil);
        match fault::text(next(), of)?.as_deref() {
            Some("OK") => {
                let epoch = fault::some(fault::number(next(), of)?, of)?;
                let replid = fault::some(fault::text(next(), of)?, of)?;
                let replicas = fault::some(fault::number(next(), of)?, of)?;
                let first_id = fault::some(fault::number(next(), of)?, of)?;
                let noted_ago = fault::text(next(), of)?.filter(|ago| !ago.is_empty());
                let noted_ago = noted_ago.map(|ago| ago.parse().map(Duration::from_millis)).transpose();
                let noted_ago = noted_ago.map_err(|_| fault::odd(of))?;
                let micros: u64 = fault::some(fault::number(next(), of)?, of)?;
                let tokens = micros.saturating_mul(TOKENS_A_MICROSECOND);
                let epoch = u32::try_from(epoch)
                    .map_err(|_| StoreError::new(ErrorKind::Corrupt, "the shard has no epochs left"))?;
                options.remembered.note_epoch(keys, epoch);
                let epoch = Epoch(epoch);
                let reign = RedisReign { epoch, incarnation, replid, first_id, tokens, noted_ago, taken };
                all_know(wire, replicas).await?;
                return Ok((reign, asked));
            }
            Some("HELD") => {
                let node = fault::text(next(), of)?.unwrap_or_default();
                let left = fault::number(next(), of)?.unwrap_or(0);
                let holder = fault::text(next(), of)?.unwrap_or_default();
                if over != holder && ended().contains(&holder) {
                    over = holder;
                    continue;
                }
                let what = format!("node {node:?} has the shard; its lease runs for {left} ms");
                return Err(StoreError::new(ErrorKind::Fenced, what));
            }
            Some("EMPTY") => return Err(not_there(&keys.head, known, made)),
            Some("OTHER") => {
                let mut word = || fault::text(next(), of).map(Option::unwrap_or_default);
                let (id, shards, placement) = (word()?, word()?, word()?);
                let mine = claimant.cluster.as_ref().map_or("", |cluster| &cluster.id);
                let what = format!(
                    "{} belongs to cluster {id:?} of {shards} shards, placement {placement}, and not to cluster {mine:?}, \
                     which this node has joined: the cluster's own key was lost, or made anew",
                    keys.head
                );
                return Err(StoreError::new(ErrorKind::Corrupt, what));
            }
            Some("MOVING") => {
                let why = fault::text(next(), of)?.unwrap_or_default();
                return Err(fault::moving(&keys.owner, &why));
            }
            Some("FORMAT") => {
                let stored = fault::text(next(), of)?.unwrap_or_default();
                return Err(unknown_format(&keys.head, &stored));
            }
            _ => return Err(fault::odd(of)),
        }
    }
}

/// The error of a missing shard that must not be created.
fn not_there(head: &str, known: u32, made: bool) -> StoreError {
    let why = match (known, made) {
        (0, false) => "and must not be made (--redis-create never)".to_owned(),
        (0, true) => "although all shards of this cluster have been made before".to_owned(),
        (epoch, _) => format!("although this node has seen it at epoch {epoch}"),
    };
    let what = format_args!(
        "{head} is not there, {why}: Redis is new, was emptied or has lost its data. Give Redis its data back; \
         or stop all nodes and give up what is lost by `duewheel cluster reset`"
    )
    .to_string();
    StoreError::new(ErrorKind::Corrupt, what)
}

/// Waits until all replicas that follow know the new owner, because a promoted replica must know it.
async fn all_know(wire: &Wire, replicas: u64) -> Result<(), StoreError> {
    if replicas == 0 {
        return Ok(());
    }
    let mut ask = Pipeline::new();
    ask.cmd("WAIT").arg(replicas).arg(millis(REPLICAS_KNOW));
    let know = fault::number(fault::some(wire.call(ask).await?.into_iter().next(), "WAIT")?, "WAIT")?;
    if know.unwrap_or(0) >= replicas {
        return Ok(());
    }
    let what = "a replica is behind: the shard cannot be acquired before all replicas have the new owner";
    Err(StoreError::new(ErrorKind::Unavailable, what))
}

/// The command that renews a lease.
pub(crate) fn renewal(keys: &Keys, reign: &RedisReign, lease: Duration) -> redis::Cmd {
    let mut cmd = keys::call(keys::renew(), keys);
    cmd.arg(reign.epoch.0).arg(&reign.incarnation).arg(&reign.replid).arg(millis(lease)).arg("");
    cmd
}

/// The command that gives a lease back; after an orderly end ids continue with the given one.
pub(crate) fn giving_back(keys: &Keys, reign: &RedisReign, next_id: Option<u64>) -> redis::Cmd {
    let mut cmd = keys::call(keys::renew(), keys);
    cmd.arg(reign.epoch.0).arg(&reign.incarnation).arg(&reign.replid).arg(0);
    match next_id {
        Some(id) => cmd.arg(id),
        None => cmd.arg(""),
    };
    cmd
}

/// Reads the reply of a script that checks the fence.
pub(crate) fn judge(reply: Value) -> Result<(), StoreError> {
    judge_applied(reply).map(drop)
}

/// Reads the reply of the script that applies: the number of replicas that follow. Other scripts return none.
pub(crate) fn judge_applied(reply: Value) -> Result<u64, StoreError> {
    let of = "a script";
    match fault::text(reply, of)?.as_deref() {
        Some("OK") => Ok(0),
        Some(reply) => match reply.strip_prefix("OK ") {
            Some(replicas) => replicas.parse().map_err(|_| fault::odd(of)),
            None => Err(fault::of_script(reply)),
        },
        None => Err(fault::odd(of)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Story: code that printed a claimant for debugging wrote the nodes' secret into the log.
    #[test]
    fn the_secret_is_not_shown() {
        let cluster = ClusterIdentity { id: "c".to_owned(), shards: 4, secret: [0xab; 32], made: true };
        let claimant =
            Claimant { node: "a".into(), number: 1, advertise: "a:1".into(), cluster: Some(cluster) };
        let shown = format!("{claimant:?} {claimant:#?}");
        assert!(
            shown.contains("shards: 4") && !shown.contains("171") && !shown.contains("secret"),
            "{shown}"
        );
    }
}
