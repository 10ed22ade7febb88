//! The coordinator on PostgreSQL: membership of nodes, and ownership of shards.

use std::collections::BTreeMap;
use std::future::Future;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use duewheel_core::store::{
    Candidate, Coordinator, ErrorKind, Joined, Level, Node, Owner, Ownership, PLACEMENT, Secrets, Store,
    StoreError, Waker,
};
use duewheel_core::{Epoch, ShardId};
use duewheel_store_medium::{
    Acquired, EndedOwners, FillFolder, Medium, MediumFiles, MediumShared, MediumStore, ROTATION_LEASES,
    RestoreTarget, SecretRotation, hex, locked, millis, name_in_use, option_differs, random,
};
use tokio_postgres::types::Type;
use tokio_postgres::{Row, Transaction};

use crate::calls::{self, CallFailure, Database, Param, odd};
use crate::files::PgMedium;
use crate::options::Options;
use crate::reading::{PgMoment, PgReader};
use crate::reign::{self, FIRST_SECOND, OfProcess, PgLeases};
use crate::schema::{FORMAT, RESTORING, check_format};

const READ: &str = "SELECT format, id, shards, placement, secret, former_secret FROM {s}.cluster";
const CREATE: &str = "INSERT INTO {s}.cluster (format, id, shards, placement, secret, last_number) \
    VALUES ($1, $2, $3, $4, $5, 0) ON CONFLICT DO NOTHING RETURNING 1";
const CREATE_SHARDS: &str = "INSERT INTO {s}.shard (shard, cluster, epoch, mark) \
    SELECT n, $1, $3, 0 FROM generate_series(0, $2 - 1) AS n";
const NODES: &str = "SELECT name, number, advertise, \
    LEAST(EXTRACT(EPOCH FROM until - clock_timestamp()) * 1000, lease_ms)::float8, lease_ms, settle_ms FROM {s}.node \
    WHERE until > clock_timestamp() ORDER BY name";
const NUMBER: &str = "UPDATE {s}.cluster SET last_number = \
    greatest(last_number + 1, EXTRACT(EPOCH FROM clock_timestamp())::bigint - $1) RETURNING last_number";
const JOIN: &str = "INSERT INTO {s}.node (name, number, advertise, until, lease_ms, settle_ms) \
    VALUES ($1, $2, $3, clock_timestamp() + make_interval(secs => $4::float8 / 1000), $4, $5) \
    ON CONFLICT (name) DO UPDATE SET number = excluded.number, advertise = excluded.advertise, \
    until = excluded.until, lease_ms = excluded.lease_ms, settle_ms = excluded.settle_ms";
/// A server that has lost changes may lack the node, or have one of an earlier start.
const BEAT: &str = "WITH beat AS (INSERT INTO {s}.node AS n (name, number, advertise, until, lease_ms, settle_ms) \
    SELECT $1, $2, $3, clock_timestamp() + make_interval(secs => $4::float8 / 1000), $4, $5 FROM {s}.cluster c WHERE c.id = $6 \
    ON CONFLICT (name) DO UPDATE SET number = excluded.number, advertise = excluded.advertise, until = excluded.until \
    WHERE n.number <= excluded.number RETURNING 1) \
    SELECT c.id, (SELECT count(*) FROM beat), n.name, n.number, n.advertise FROM {s}.cluster c \
    LEFT JOIN {s}.node n ON n.until > clock_timestamp() OR n.name = $1 ORDER BY n.name";
const LEAVE: &str = "DELETE FROM {s}.node WHERE name = $1 AND number = $2";
const OWNERS: &str = "SELECT s.shard, s.epoch, l.node, l.number, l.advertise, \
    COALESCE(l.mark = s.mark AND l.until > clock_timestamp(), false), (SELECT format FROM {s}.cluster) \
    FROM {s}.shard s LEFT JOIN {s}.lease l ON l.shard = s.shard ORDER BY s.shard";
const USED: &str = "SELECT used OR EXISTS (SELECT 1 FROM {s}.turn t WHERE t.shard = $1 AND t.n > 0) \
    FROM {s}.shard WHERE shard = $1";
const GIVE_UP: &str = "WITH lost AS (UPDATE {s}.shard s SET refused = NULL, given_up = epoch, used = false \
      WHERE refused IS NOT NULL OR (NOT EXISTS (SELECT 1 FROM {s}.file f WHERE f.shard = s.shard) \
        AND (used OR EXISTS (SELECT 1 FROM {s}.turn t WHERE t.shard = s.shard AND t.n > 0))) RETURNING shard), \
    turned AS (DELETE FROM {s}.turn t USING lost WHERE t.shard = lost.shard) SELECT shard FROM lost";
const BEGIN_ROTATION: &str =
    "UPDATE {s}.cluster SET former_secret = secret, secret = $1 WHERE former_secret IS NULL RETURNING 1";
const END_ROTATION: &str = "UPDATE {s}.cluster SET former_secret = NULL RETURNING 1";

/// Nodes and shards in PostgreSQL.
///
/// Every call ends within the time limits of its [`Options`], and needs no runtime of the caller's; it must not be made
/// on a thread that may not block.
///
/// # Examples
/// ```no_run
/// use std::sync::Arc;
/// use std::time::Duration;
/// use duewheel_core::ShardId;
/// use duewheel_core::store::{Candidate, Coordinator};
/// use duewheel_store_postgres::{Options, PostgresCoordinator};
///
/// let nodes = PostgresCoordinator::new(Options::parse("postgres://duewheel@127.0.0.1/orders")?)?;
/// nodes.init()?;
/// let candidate =
///     Candidate { name: "a".into(), advertise: "10.0.1.1:7600".into(), shards_if_new: 16, settle_delay: Duration::from_secs(10) };
/// let joined = nodes.join(&candidate)?;
/// let store = nodes.open(&joined.node, ShardId(0), Arc::new(|| {}))?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct PostgresCoordinator {
    of_process: OfProcess,
    /// The cluster that this node has joined.
    joined: Mutex<Option<JoinedCluster>>,
    /// The greatest epoch that was seen of each shard.
    epochs: Mutex<BTreeMap<u32, u32>>,
}

/// Facts about the cluster that a node knows since it has joined.
#[derive(Clone, Debug)]
struct JoinedCluster {
    id: String,
    settle_ms: i64,
}

/// The cluster as it is stored.
struct StoredCluster {
    id: String,
    shards: u32,
    secrets: Secrets,
}

impl PostgresCoordinator {
    /// Makes a coordinator, which connects on demand.
    ///
    /// # Errors
    /// [`ErrorKind::Unavailable`] when the system starts no thread for the connections.
    pub fn new(options: Options) -> Result<Self, StoreError> {
        let database = Database::new(options)?;
        let leases = Arc::new(PgLeases::default());
        leases.start(&database)?;
        let of_process = OfProcess {
            database,
            shared: MediumShared::default(),
            leases,
            ended: Arc::new(EndedOwners::default()),
        };
        Ok(PostgresCoordinator { of_process, joined: Mutex::default(), epochs: Mutex::default() })
    }

    /// The address of PostgreSQL, and the settings.
    pub fn options(&self) -> &Options {
        &self.of_process.database.options
    }

    /// Makes the tables, if they are missing.
    ///
    /// # Errors
    /// [`ErrorKind::Corrupt`] without the right to create them, [`ErrorKind::Unavailable`] when the server does not
    /// answer.
    pub fn init(&self) -> Result<(), StoreError> {
        let database = Arc::clone(&self.of_process.database);
        calls::wait_for(async move { database.init().await })
    }

    /// Whether the tables are there.
    ///
    /// # Errors
    /// [`ErrorKind::Unavailable`] when the server does not answer, [`ErrorKind::Corrupt`] when it refuses this user.
    pub fn has_tables(&self) -> Result<bool, StoreError> {
        let database = Arc::clone(&self.of_process.database);
        calls::wait_for(async move { database.has_tables().await })
    }

    /// A warning for the operator about how safely the server keeps changes; `None` if a commit is as safe as its disk.
    ///
    /// # Errors
    /// [`ErrorKind::Unavailable`] when the server does not answer, [`ErrorKind::Corrupt`] when it refuses this user.
    pub fn inspect(&self) -> Result<Option<String>, StoreError> {
        let database = Arc::clone(&self.of_process.database);
        calls::wait_for(async move { database.inspect().await })
    }

    /// Begins to replace the secret by which nodes authenticate each other: from now on a new one is valid, and also
    /// the former one. This survives a crash: an interrupted rotation can be continued.
    ///
    /// # Errors
    /// [`ErrorKind::Corrupt`] when there is no cluster, [`ErrorKind::Unavailable`] when the server does not answer.
    pub fn begin_rotation(&self) -> Result<SecretRotation, StoreError> {
        let secret = random::<32>()?;
        let wait = self.options().lease * ROTATION_LEASES;
        let is_new = self.bounded(|database| async move {
            read_cluster(&database.call(&database.sql(READ), &[]).await?)?;
            let secret = &secret[..];
            let changed = database.call(&database.sql(BEGIN_ROTATION), &[(&secret, Type::BYTEA)]).await?;
            Ok(!changed.is_empty())
        })?;
        Ok(SecretRotation { is_new, wait })
    }

    /// Ends the validity of the former secret. Call it [`SecretRotation::wait`] after
    /// [`PostgresCoordinator::begin_rotation`]; without a rotation nothing changes.
    ///
    /// # Errors
    /// See [`PostgresCoordinator::begin_rotation`].
    pub fn end_rotation(&self) -> Result<(), StoreError> {
        self.bounded(|database| async move {
            database.call(&database.sql(END_ROTATION), &[]).await?;
            Ok(())
        })
    }

    /// Acquires a shard, without opening its store: its files on the server, for their owner. `waker` is called when the
    /// lease is lost.
    ///
    /// # Errors
    /// As [`Coordinator::open`].
    pub fn acquire(
        &self,
        node: &Node,
        shard: ShardId,
        waker: Waker,
    ) -> Result<(Arc<dyn Medium>, Acquired), StoreError> {
        let Some(cluster) = self.joined() else {
            return Err(StoreError::new(ErrorKind::Closed, "the node has not joined the cluster"));
        };
        let known = locked(&self.epochs).get(&shard.0).copied().unwrap_or(0);
        let no = i32::try_from(shard.0).map_err(|_| odd("a shard"))?;
        let of_process = self.of_process.clone();
        let (ended, node) = (Arc::clone(&of_process.ended), node.clone());
        let (reign, acquired) = self.bounded(|database| async move {
            reign::acquire(&database, no, &node, &cluster, (known, &ended)).await
        })?;
        self.note_epoch(shard.0, reign.epoch.0);
        let reign = Arc::new(reign);
        of_process.leases.add(&reign, waker);
        Ok((Arc::new(PgMedium::new(of_process, reign)), acquired))
    }

    /// The files of a shard, to read, whether it has an owner or not.
    ///
    /// # Errors
    /// [`ErrorKind::Corrupt`] for a number that no shard has.
    pub fn read(&self, shard: ShardId) -> Result<Arc<dyn MediumFiles>, StoreError> {
        let shard = i32::try_from(shard.0).map_err(|_| odd("a shard"))?;
        Ok(Arc::new(PgReader::new(&self.of_process.database, shard)))
    }

    /// The files of all shards as of one moment, to read while nodes change them. PostgreSQL keeps removed files
    /// until the last of these readers is dropped.
    ///
    /// # Errors
    /// [`ErrorKind::Corrupt`] when there is no cluster, [`ErrorKind::Unavailable`] when the server does not answer.
    pub fn read_at_one_moment(&self) -> Result<Vec<Arc<dyn MediumFiles>>, StoreError> {
        let (moment, shards) = self.bounded(|database| async move {
            let moment = PgMoment::begin(&database).await?;
            let cluster = read_cluster(&moment.asked(&database.sql(READ), &[]).await?)?;
            Ok((Arc::new(moment), cluster.shards))
        })?;
        let shards = i32::try_from(shards).map_err(|_| odd("a number"))?;
        let reader = |shard| Arc::new(PgReader::at(&moment, self.database(), shard)) as Arc<dyn MediumFiles>;
        Ok((0..shards).map(reader).collect())
    }

    /// Whether a shard has had files.
    ///
    /// # Errors
    /// [`ErrorKind::Corrupt`] if the shard is not there, [`ErrorKind::Unavailable`] when the server does not answer.
    pub fn has_been_written(&self, shard: ShardId) -> Result<bool, StoreError> {
        let no = i32::try_from(shard.0).map_err(|_| odd("a shard"))?;
        let rows = self.bounded(|database| async move {
            Ok(database.call(&database.sql(USED), &[(&no, Type::INT4)]).await?)
        })?;
        let missing = || StoreError::new(ErrorKind::Corrupt, format_args!("shard {shard} is not there"));
        column(rows.first().ok_or_else(missing)?, 0)
    }

    /// Gives up the changes for which shards are refused, and the files of shards that have lost all of them: these are
    /// opened again, without them. Returns their numbers, ascending.
    ///
    /// # Errors
    /// See [`PostgresCoordinator::begin_rotation`].
    pub fn give_up_lost(&self) -> Result<Vec<ShardId>, StoreError> {
        let rows = self.bounded(|database| async move {
            read_cluster(&database.call(&database.sql(READ), &[]).await?)?;
            Ok(database.call(&database.sql(GIVE_UP), &[]).await?)
        })?;
        let mut shards: Vec<ShardId> = Vec::new();
        for row in &rows {
            shards.push(ShardId(column::<i32>(row, 0)?.unsigned_abs()));
        }
        shards.sort_unstable();
        Ok(shards)
    }

    pub(crate) fn database(&self) -> &Arc<Database> {
        &self.of_process.database
    }

    pub(crate) fn shared(&self) -> &MediumShared {
        &self.of_process.shared
    }

    /// The id of the cluster that this process has joined.
    pub(crate) fn joined(&self) -> Option<String> {
        locked(&self.joined).as_ref().map(|joined| joined.id.clone())
    }

    pub(crate) fn set_joined(&self, id: String, settle_ms: i64) {
        *locked(&self.joined) = Some(JoinedCluster { id, settle_ms });
    }

    /// Remembers an epoch: later ones of this shard are greater, also on a server that has lost it.
    fn note_epoch(&self, shard: u32, epoch: u32) {
        let known = &mut *locked(&self.epochs);
        let greatest = known.entry(shard).or_default();
        *greatest = epoch.max(*greatest);
    }

    /// Makes calls of the cluster's tables, within a time limit for all of them together.
    fn bounded<T, F>(&self, work: impl FnOnce(Arc<Database>) -> F) -> Result<T, StoreError>
    where
        T: Send + 'static,
        F: Future<Output = Result<T, StoreError>> + Send + 'static,
    {
        let most = self.options().lease.max(Duration::from_secs(1)) * 2;
        let work = work(Arc::clone(&self.of_process.database));
        calls::wait_for(async move {
            let late = |_| StoreError::new(ErrorKind::Unavailable, "PostgreSQL does not answer in time");
            tokio::time::timeout(most, work).await.map_err(late)?
        })
    }
}

pub(crate) fn failed(error: tokio_postgres::Error) -> StoreError {
    CallFailure::from(error).into()
}

/// Reads a column of any type.
pub(crate) fn column<'a, T: tokio_postgres::types::FromSql<'a>>(
    row: &'a Row,
    no: usize,
) -> Result<T, StoreError> {
    row.try_get(no).map_err(|error| odd(&format!("a row, whose column {no} cannot be read ({error}), and")))
}

fn read_cluster(rows: &[Row]) -> Result<StoredCluster, StoreError> {
    let Some(row) = rows.first() else {
        return Err(StoreError::new(
            ErrorKind::Corrupt,
            "there is no cluster in the database: no node has taken part yet",
        ));
    };
    let (format, placement): (i32, i32) = (column(row, 0)?, column(row, 3)?);
    check_format(format)?;
    if u32::try_from(placement) != Ok(PLACEMENT) {
        let what =
            format_args!("the cluster places messages by rule {placement}; this version knows {PLACEMENT}");
        return Err(StoreError::new(ErrorKind::Corrupt, what));
    }
    let secret = |bytes: &[u8]| <[u8; 32]>::try_from(bytes).map_err(|_| odd("a secret"));
    let former: Option<&[u8]> = column(row, 5)?;
    let secrets = Secrets { current: secret(column(row, 4)?)?, former: former.map(secret).transpose()? };
    let shards: i32 = column(row, 2)?;
    Ok(StoredCluster {
        id: column(row, 1)?,
        shards: u32::try_from(shards).map_err(|_| odd("a number"))?,
        secrets,
    })
}

fn read_node(row: &Row, from: usize) -> Result<Node, StoreError> {
    let (name, number): (&str, i64) = (column(row, from)?, column(row, from + 1)?);
    let advertise: &str = column(row, from + 2)?;
    let number = u32::try_from(number).map_err(|_| odd("a number"))?;
    Ok(Node { name: name.into(), advertise: advertise.into(), number })
}

/// Makes the cluster if there is none, and takes part in it.
async fn join(database: &Database, candidate: &Candidate) -> Result<(Joined, String), StoreError> {
    database.clamp().await?;
    let mut lent = database.connection().await?;
    let transaction = database.begin(&mut lent).await?;
    let cluster = existing_or_new(database, &transaction, candidate).await?;
    let lease = i64::try_from(millis(database.options.lease)).unwrap_or(i64::MAX);
    let settle = settle_ms(candidate);
    // This statement locks the cluster's row: nodes join one after the other.
    let first: [Param<'_>; 1] = [(&FIRST_SECOND, Type::INT8)];
    let numbers = transaction.query_typed(&database.sql(NUMBER), &first).await.map_err(failed)?;
    let number: i64 = column(numbers.first().ok_or_else(|| odd("a number"))?, 0)?;
    for row in &transaction.query_typed(&database.sql(NODES), &[]).await.map_err(failed)? {
        let (node, left): (Node, f64) = (read_node(row, 0)?, column(row, 3)?);
        let (their_lease, their_settle): (i64, i64) = (column(row, 4)?, column(row, 5)?);
        if node.name == candidate.name {
            return Err(name_in_use(&node.name, format_args!("{left:.0}")));
        }
        for (option, theirs, own) in
            [("--shard-lease", their_lease, lease), ("--settle-delay", their_settle, settle)]
        {
            if theirs != own {
                return Err(option_differs(option, theirs, own));
            }
        }
    }
    let (name, advertise) = (&*candidate.name, &*candidate.advertise);
    let params: [Param<'_>; 5] = [
        (&name, Type::TEXT),
        (&number, Type::INT8),
        (&advertise, Type::TEXT),
        (&lease, Type::INT8),
        (&settle, Type::INT8),
    ];
    transaction.query_typed(&database.sql(JOIN), &params).await.map_err(failed)?;
    transaction.commit().await.map_err(failed)?;
    lent.give_back();
    let number = u32::try_from(number).map_err(|_| odd("a number"))?;
    let node = Node { name: candidate.name.clone(), advertise: candidate.advertise.clone(), number };
    let StoredCluster { id, shards, secrets } = cluster;
    Ok((Joined { node, shards, secret: secrets.current, is_alone: false }, id))
}

fn settle_ms(candidate: &Candidate) -> i64 {
    i64::try_from(millis(candidate.settle_delay)).unwrap_or(i64::MAX)
}

async fn existing_or_new(
    database: &Database,
    transaction: &Transaction<'_>,
    candidate: &Candidate,
) -> Result<StoredCluster, StoreError> {
    let read = database.sql(READ);
    let rows = transaction.query_typed(&read, &[]).await.map_err(failed)?;
    if !rows.is_empty() {
        return read_cluster(&rows);
    }
    create(database, transaction, FORMAT, candidate.shards_if_new.max(1), 0).await?;
    read_cluster(&transaction.query_typed(&read, &[]).await.map_err(failed)?)
}

/// Makes a cluster whose shards have had this epoch; returns its id. `None`: another process has made one.
async fn create(
    database: &Database,
    transaction: &Transaction<'_>,
    format: i32,
    shards: u32,
    epoch: i64,
) -> Result<Option<String>, StoreError> {
    let (id, secret) = (hex(&random::<16>()?), &random::<32>()?[..]);
    let shards = i32::try_from(shards).map_err(|_| odd("a number"))?;
    let placement = i32::try_from(PLACEMENT).unwrap_or(i32::MAX);
    let params: [Param<'_>; 5] = [
        (&format, Type::INT4),
        (&id, Type::TEXT),
        (&shards, Type::INT4),
        (&placement, Type::INT4),
        (&secret, Type::BYTEA),
    ];
    if transaction.query_typed(&database.sql(CREATE), &params).await.map_err(failed)?.is_empty() {
        return Ok(None);
    }
    let params: [Param<'_>; 3] = [(&id, Type::TEXT), (&shards, Type::INT4), (&epoch, Type::INT8)];
    transaction.query_typed(&database.sql(CREATE_SHARDS), &params).await.map_err(failed)?;
    Ok(Some(id))
}

impl Coordinator for PostgresCoordinator {
    fn join(&self, candidate: &Candidate) -> Result<Joined, StoreError> {
        let (candidate, settle) = (candidate.clone(), settle_ms(candidate));
        let (joined, id) = self.bounded(|database| async move { join(&database, &candidate).await })?;
        self.set_joined(id, settle);
        Ok(joined)
    }

    fn beat(&self, node: &Node) -> Result<Vec<Node>, StoreError> {
        let (node, number) = (node.clone(), i64::from(node.number));
        let lease = i64::try_from(millis(self.options().lease)).unwrap_or(i64::MAX);
        let joined = locked(&self.joined).clone();
        self.bounded(|database| async move {
            database.clamp().await?;
            let (name, advertise) = (&*node.name, &*node.advertise);
            let (id, settle) = joined.map_or((None, 0), |joined| (Some(joined.id), joined.settle_ms));
            let params: [Param<'_>; 6] = [
                (&name, Type::TEXT),
                (&number, Type::INT8),
                (&advertise, Type::TEXT),
                (&lease, Type::INT8),
                (&settle, Type::INT8),
                (&id, Type::TEXT),
            ];
            let rows = database.heartbeat(&database.sql(BEAT), &params).await?;
            let Some(first) = rows.first() else {
                let what = "there is no cluster in the database any more: it was emptied, or restored to an earlier time";
                return Err(StoreError::new(ErrorKind::Corrupt, what));
            };
            let (found, beats): (String, i64) = (column(first, 0)?, column(first, 1)?);
            if id.is_some_and(|joined| joined != found) {
                let what = format_args!("the database has cluster {found:?}, and not the one that this node has joined");
                return Err(StoreError::new(ErrorKind::Corrupt, what));
            }
            if beats == 0 {
                let what = format_args!("another node has taken the name {name:?}, or this one has left");
                return Err(StoreError::new(ErrorKind::Fenced, what));
            }
            let mut living = vec![node.clone()];
            for row in &rows {
                // The look is older than the beat: of this node it may show nothing, or an earlier start.
                if column::<Option<&str>>(row, 2)?.is_some_and(|other| *other != *node.name) {
                    living.push(read_node(row, 2)?);
                }
            }
            living.sort_by(|one, other| one.name.cmp(&other.name));
            Ok(living)
        })
    }

    fn leave(&self, node: &Node) -> Result<(), StoreError> {
        let (name, number) = (node.name.clone(), i64::from(node.number));
        self.bounded(|database| async move {
            let params: [Param<'_>; 2] = [(&&*name, Type::TEXT), (&number, Type::INT8)];
            database.call(&database.sql(LEAVE), &params).await?;
            Ok(())
        })?;
        // A late beat would make it a member again.
        *locked(&self.joined) = None;
        Ok(())
    }

    fn secrets(&self) -> Result<Secrets, StoreError> {
        self.bounded(|database| async move {
            Ok(read_cluster(&database.call(&database.sql(READ), &[]).await?)?.secrets)
        })
    }

    fn owners(&self) -> Result<Vec<Ownership>, StoreError> {
        let rows =
            self.bounded(|database| async move { Ok(database.call(&database.sql(OWNERS), &[]).await?) })?;
        // Nodes find it out when they join; others, who only read, here.
        if let Some(row) = rows.first() {
            column::<Option<i32>>(row, 6)?.map_or(Ok(()), check_format)?;
        }
        let mut owners = Vec::new();
        for row in &rows {
            let (shard, epoch, runs): (i32, i64, bool) = (column(row, 0)?, column(row, 1)?, column(row, 5)?);
            if usize::try_from(shard) != Ok(owners.len()) {
                return Err(StoreError::new(ErrorKind::Corrupt, "the database has lost rows of shards"));
            }
            let epoch = u32::try_from(epoch).map_err(|_| odd("an epoch"))?;
            self.note_epoch(shard.unsigned_abs(), epoch);
            owners.push(match runs {
                true => Ownership::Owned(Owner { node: read_node(row, 2)?, epoch: Epoch(epoch) }),
                false => Ownership::Free,
            });
        }
        Ok(owners)
    }

    fn open(&self, node: &Node, shard: ShardId, waker: Waker) -> Result<Box<dyn Store>, StoreError> {
        let (medium, acquired) = self.acquire(node, shard, Arc::clone(&waker))?;
        let log = self.options().log.clone();
        Ok(Box::new(MediumStore::open(medium, self.shared(), log, &acquired, waker)?))
    }

    fn lease(&self) -> Duration {
        self.options().lease
    }

    fn level(&self) -> Level {
        self.of_process.database.level()
    }
}

// Restores a backup to PostgreSQL.
//
// The format of the cluster's row says that a restore has begun, from before the first shard is filled until the last
// is complete. A restore that has not ended is begun anew: its rows are removed in one transaction, so that an earlier
// restore that still runs no longer finds its shards.

const LOOK: &str = "SELECT format, shards, (SELECT count(*) FROM {s}.node WHERE until > clock_timestamp()) \
    FROM {s}.cluster FOR UPDATE";
const REMAINS: &str = "SELECT EXISTS (SELECT 1 FROM {s}.shard) OR EXISTS (SELECT 1 FROM {s}.file)";
const LEASES: &str = "SELECT shard, (EXTRACT(EPOCH FROM until - clock_timestamp()) * 1000)::bigint FROM {s}.lease \
    WHERE until > clock_timestamp() ORDER BY shard LIMIT 1";
const EPOCH: &str = "SELECT COALESCE(max(epoch), 0) FROM {s}.shard";
const REMOVE: [&str; 6] = [
    "DELETE FROM {s}.shard",
    "DELETE FROM {s}.turn",
    "DELETE FROM {s}.lease",
    "DELETE FROM {s}.file",
    "DELETE FROM {s}.piece",
    "DELETE FROM {s}.cluster",
];
const END: &str = "UPDATE {s}.cluster SET format = $1 WHERE id = $2 AND format IN ($1, $3) RETURNING 1";

impl RestoreTarget for PostgresCoordinator {
    fn begin_restore(&self, shards: u32) -> Result<(), StoreError> {
        let database = Arc::clone(self.database());
        let id = calls::wait_for(async move { begin(&database, shards).await })?;
        self.set_joined(id, 0);
        Ok(())
    }

    fn restore_shard(
        &self,
        shard: ShardId,
        waker: Waker,
        fill: FillFolder<'_>,
    ) -> Result<MediumStore, StoreError> {
        let node = Node { name: "duewheel restore".into(), advertise: "".into(), number: 0 };
        let (medium, acquired) = self.acquire(&node, shard, Arc::clone(&waker))?;
        MediumStore::restore(medium, self.shared(), self.options().log.clone(), &acquired, waker, fill)
    }

    fn end_restore(&self) -> Result<(), StoreError> {
        let closed = || StoreError::new(ErrorKind::Closed, "no restore has begun");
        let (id, database) = (self.joined().ok_or_else(closed)?, Arc::clone(self.database()));
        calls::wait_for(async move {
            let params: [Param<'_>; 3] = [(&FORMAT, Type::INT4), (&id, Type::TEXT), (&RESTORING, Type::INT4)];
            if database.call(&database.sql(END), &params).await?.is_empty() {
                let what = "another restore of the store has begun since, or its tables were emptied";
                return Err(StoreError::new(ErrorKind::Fenced, what));
            }
            Ok(())
        })
    }
}

/// Makes a cluster that no node can join, in place of that of a restore that has not ended. Returns its id.
async fn begin(database: &Database, shards: u32) -> Result<String, StoreError> {
    if !database.has_tables().await? {
        database.init().await?;
    }
    database.clamp().await?;
    let mut lent = database.connection().await?;
    let transaction = database.begin_long(&mut lent).await?;
    let ask = async |sql: &str, params: &[Param<'_>]| {
        transaction.query_typed(&database.sql(sql), params).await.map_err(failed)
    };
    let found = ask(LOOK, &[]).await?;
    match found.first() {
        Some(row) if column::<i32>(row, 0)? == RESTORING => {}
        Some(row) => {
            check_format(column(row, 0)?)?;
            let (shards, nodes): (i32, i64) = (column(row, 1)?, column(row, 2)?);
            return Err(there(format_args!(
                "a cluster of {shards} shards, in which {nodes} nodes take part"
            )));
        }
        None => {
            let remains = ask(REMAINS, &[]).await?;
            if column(remains.first().ok_or_else(|| odd("a look"))?, 0)? {
                return Err(there(format_args!("shards or files without their cluster")));
            }
        }
    }
    if let Some(row) = ask(LEASES, &[]).await?.first() {
        let (shard, left): (i32, i64) = (column(row, 0)?, column(row, 1)?);
        let what = format_args!(
            "another process restores the store, or did until a moment ago: its lease of shard {shard} runs for {left} ms"
        );
        return Err(StoreError::new(ErrorKind::Fenced, what));
    }
    let epochs = ask(EPOCH, &[]).await?;
    let epoch: i64 = column(epochs.first().ok_or_else(|| odd("an epoch"))?, 0)?;
    for removal in REMOVE {
        ask(removal, &[]).await?;
    }
    let created = create(database, &transaction, RESTORING, shards, epoch).await?;
    let id = created.ok_or_else(|| there(format_args!("another process has made it just now")))?;
    transaction.commit().await.map_err(failed)?;
    let has_warned = lent.has_warned();
    lent.give_back();
    if has_warned {
        let what = "the commit returned with a warning: a standby may not know that the restore has begun";
        return Err(StoreError::new(ErrorKind::Unavailable, what));
    }
    Ok(id)
}

/// The refusal of a restore to a store that exists.
fn there(what: std::fmt::Arguments<'_>) -> StoreError {
    let what = format_args!(
        "there is a store already: {what}. A backup is restored to an empty schema, say under a --postgres-schema of its \
         own"
    );
    StoreError::new(ErrorKind::Corrupt, what)
}
