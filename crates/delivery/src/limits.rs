//! All limits and defaults of delivery.

use std::time::Duration;

use duewheel::core::policy::{ON_TIME_MS, WITHHELD_MS};

/// Longest URL of a target, in bytes.
pub const MAX_URL: usize = 4_096;
/// Most headers that a target may add to its requests.
pub const MAX_HEADERS: usize = 50;
/// Most bytes of names and values of these headers together.
pub const MAX_HEADER_BYTES: usize = 16 * 1024;
/// Most secrets of a target at a time: the current one, and those that are being replaced.
pub const MAX_SECRETS: usize = 3;
/// Most bytes of PEM text: certificates of authorities, or certificate and key of the client.
pub const MAX_PEM: usize = 256 * 1024;

/// How long one request may take, from the look-up of the name to the end of the answer.
pub const TIMEOUT: Duration = Duration::from_secs(30);
/// The longest such time that a target may ask for.
pub const MAX_TIMEOUT: Duration = Duration::from_secs(15 * 60);
/// Requests to one target at a time.
pub const CONCURRENCY: u32 = 10;
/// The most that a target may ask for.
pub const MAX_CONCURRENCY: u32 = 10_000;
/// The highest rate that a target may ask for, and the largest burst, in requests a second.
pub const MAX_RATE: u32 = 1_000_000;
/// Attempts after which a message is dead.
pub const MAX_ATTEMPTS: u32 = 10;
/// The delays after the first, second, … failed attempt; the last one repeats.
pub const DELAYS: [Duration; 6] = [
    Duration::from_secs(5),
    Duration::from_secs(5 * 60),
    Duration::from_secs(30 * 60),
    Duration::from_secs(2 * 3_600),
    Duration::from_secs(5 * 3_600),
    Duration::from_secs(10 * 3_600),
];
/// Most delays in a target's own plan.
pub const MAX_DELAYS: usize = 100;
/// Longest delay in a target's own plan.
pub const MAX_DELAY: Duration = Duration::from_secs(30 * 86_400);
/// By how much a delay varies, in percent of it, up and down.
pub const JITTER_PERCENT: u64 = 20;
/// Most networks that a target may name.
pub const MAX_NETWORKS: usize = 100;
/// Most prefixes of queues that a target may name.
pub const MAX_PREFIXES: usize = 100;
/// Most status codes in `dead_on`.
pub const MAX_DEAD_ON: usize = 100;

/// Bytes of an answer that are read; the rest stays unread, and its connection is closed.
pub const MAX_ANSWER: usize = 64 * 1024;
/// Most headers of an answer.
pub const MAX_ANSWER_HEADERS: usize = 1_000;
/// Most headers of an answer behind which its connection is used again.
pub const MAX_PLAIN_HEADERS: usize = 100;
/// Bytes of the head of such an answer.
pub const MAX_PLAIN_HEAD: usize = 16 * 1024;
/// Bytes of an answer that are kept for people to read.
pub const MAX_EXCERPT: usize = 1024;
/// Shortest delay that an answer can ask for: less would be a loop.
pub const MIN_RETRY_AFTER: Duration = Duration::from_secs(1);
/// Longest delay of `Retry-After`.
pub const MAX_RETRY_AFTER: Duration = Duration::from_secs(86_400);
/// Longest delay of `duewheel-snooze`.
pub const MAX_SNOOZE: Duration = Duration::from_secs(365 * 86_400);
/// How long a connection that is not used stays open, if its receiver does not say. Many close theirs after five seconds.
pub const IDLE: Duration = Duration::from_secs(4);
/// How long the close of such a connection may take.
pub const CLOSING: Duration = Duration::from_secs(5);
/// The longest idle time that a receiver can ask for.
pub const MAX_IDLE: Duration = Duration::from_secs(60);

/// Connection failures, errors of DNS or TLS, and time-outs in a row after which a breaker opens.
pub const OPEN_AFTER: u32 = 10;
/// The span in which nothing has succeeded, when fewer failures open a breaker.
pub const OPEN_WINDOW: Duration = Duration::from_secs(5 * 60);
/// The failures that it takes within [`OPEN_WINDOW`].
pub const OPEN_LEAST: usize = 3;
/// The pause before the first probe of an open breaker; it doubles with each probe that fails.
pub const FIRST_PROBE: Duration = Duration::from_secs(5);
/// The longest pause between probes.
pub const LONGEST_PROBE: Duration = Duration::from_secs(5 * 60);
/// A target is paused when it has done nothing but fail for this long.
pub const PAUSE_AFTER: Duration = Duration::from_secs(5 * 86_400);
/// The failures that it takes: a target that is rarely used is not judged by two.
pub const PAUSE_LEAST: u32 = 10;
/// How long a target is left alone at most because of one `Retry-After`.
pub const MAX_SLOWED: Duration = Duration::from_secs(5 * 60);

/// By how much the lease of a message is longer than the time-out of its request: the time to settle it.
pub const LEASE_MARGIN: Duration = Duration::from_secs(10);
/// While a target's breaker is not closed, the next message is not reserved for so long after one with a URL of its own
/// that has not ended.
pub const ASIDE: Duration = Duration::from_secs(1);
/// When a message comes back whose attempt was forgiven because its target is away and has not answered.
pub const FORGIVEN_DELAY: Duration = Duration::from_secs(1);
/// Messages of a target that are not settled at a time, for each request that it allows at a time: while one is settled,
/// the next is sent.
pub const UNSETTLED_PER_REQUEST: usize = 4;
/// The pause after a message could not be settled because the store is behind; it doubles.
pub const FIRST_SETTLE: Duration = Duration::from_millis(20);
/// The longest such pause.
pub const LONGEST_SETTLE: Duration = Duration::from_secs(1);
/// How long a pusher that stops waits until its leases are released; otherwise they run out.
pub const CLOSE: Duration = Duration::from_secs(5);
/// Longest name of a store in `webhook-id`, in bytes.
pub const MAX_STORE_NAME: usize = 64;

/// Requests to URLs of messages at a time, on one node.
pub const URL_CONCURRENCY: usize = 100;
/// How long a message waits for its turn among these requests, at most; then it comes again.
pub const URL_WAIT: Duration = Duration::from_secs(5);
/// Messages for such URLs, at other origins than the target's, that a pusher has under way at a time: those that are
/// sent, and as many that wait.
pub const URLS_PER_PUSHER: usize = 2 * URL_CONCURRENCY;
const _: () = assert!(URL_WAIT.as_secs() < LEASE_MARGIN.as_secs());
/// Names of targets that a process looks up at a time. Each takes a thread until the operating system answers.
pub const TARGET_LOOKUPS: usize = 8;
/// Names in URLs of messages that a process looks up at a time, besides those of targets.
pub const URL_LOOKUPS: usize = 8;
/// Origins of such URLs whose breakers a node keeps; the least recently used go first.
pub const MAX_ORIGINS: usize = 10_000;
/// Origins of such URLs to which a node keeps connections open; the least recently used go first.
pub const CONNECTED_ORIGINS: usize = 256;
/// Connections that stay open to each of these.
pub const ORIGIN_CONNECTIONS: usize = 4;

/// Longest name of a target, in bytes.
pub const MAX_TARGET_NAME: usize = 128;
/// Most targets of a store.
pub const MAX_TARGETS: u64 = 1_000;
/// Most queues of a store that have a target.
pub const MAX_TARGET_QUEUES: u64 = 10_000;
/// Longest reason of a pause, in bytes.
pub const MAX_PAUSE_REASON: usize = 1_024;
/// How often a node looks whether a target was edited.
pub const TARGETS_LOOK: Duration = Duration::from_secs(1);
/// How often a node reads all targets, whether or not it knows of an edit.
pub const TARGETS_READ: Duration = Duration::from_secs(60);
/// How often an edit is tried that others come in the way of.
pub const TARGET_TRIES: u32 = 5;
/// Most keys that open what is sealed: the current one, and those that are being replaced.
pub const MAX_SEAL_KEYS: usize = 16;

/// The lease of a target's ticket: how long the target rests when the node that pushes has died.
pub const TICKET_LEASE: Duration = Duration::from_secs(15);
/// How often the node that pushes renews it.
pub const TICKET_RENEWAL: Duration = Duration::from_secs(5);
/// How often a node makes sure that each of its targets has a ticket.
pub const TICKET_CHECK: Duration = Duration::from_secs(5);
/// How long a ticket is postponed whose target this node does not know.
pub const TICKET_PASSED: Duration = Duration::from_secs(5);
/// The number of times that a node sees the ticket of an unknown target before it removes the ticket.
pub const TICKET_STRANGE: u32 = 12;
/// How often a node looks at its targets.
pub const WORKERS_TICK: Duration = Duration::from_millis(200);
/// How long a node waits for the store in one such look.
pub const WORKERS_WAIT: Duration = Duration::from_secs(2);
/// The pause before a pause of a target is reported again that was not recorded.
pub const REPORT_AGAIN: Duration = Duration::from_secs(1);
/// A time of nothing but failures is recorded once it has lasted for this long: so a target that fails now and then
/// costs no writes.
pub const FAILING_NOTED: Duration = Duration::from_secs(600);
/// How many attempts of a message are kept, the latest ones.
pub const KEPT_ATTEMPTS: usize = 10;
/// How many attempts to a target the node keeps in memory that has made them, the latest ones.
pub const LATEST_ATTEMPTS: usize = 50;
/// Bytes of an answer that are kept there: 1,000 targets take some 25 MB at most.
pub const LATEST_EXCERPT: usize = 200;

/// Longest cron expression, in bytes.
pub const MAX_EXPRESSION: usize = 256;
/// How far ahead an occurrence is looked for: ten years.
pub const HORIZON: Duration = Duration::from_secs(3_653 * 86_400);
/// Shortest time between occurrences of `every`.
pub const MIN_EVERY: Duration = Duration::from_secs(1);
/// Most instants in a list of them.
pub const MAX_AT: usize = 1_000;
/// Longest jitter of an occurrence.
pub const MAX_OCCURRENCE_JITTER: Duration = Duration::from_secs(86_400);

/// Longest name of a schedule, in bytes.
pub const MAX_SCHEDULE_NAME: usize = 128;
/// Most schedules of a store.
pub const MAX_SCHEDULES: u64 = 10_000;
/// Longest note of a schedule, in bytes.
pub const MAX_SCHEDULE_NOTE: usize = 1_024;
/// How late a missed occurrence still enters its queue.
pub const CATCHUP: Duration = Duration::from_secs(86_400);
/// The longest such time that a schedule may ask for.
pub const MAX_CATCHUP: Duration = Duration::from_secs(366 * 86_400);
/// An occurrence that is looked at within this time is on time; a later one was missed. It is longer than a record is
/// held: when a node dies during a look, another one is on time.
pub const ON_TIME: Duration = Duration::from_millis(ON_TIME_MS);
const _: () = assert!(ON_TIME.as_secs() > 2 * HELD.as_secs());
/// How long before its instant an occurrence that is put ahead is looked for in its queue: one that a caller has removed
/// until then has not entered.
pub const CHECK_AHEAD: Duration = Duration::from_secs(1);
/// Most missed occurrences that enter their queue; older ones are counted only.
pub const MAX_LATE: usize = 1_000;
/// Most missed occurrences that enter together, so that they are no burst.
pub const LATE_TOGETHER: usize = 10;
/// The pause before the next of them enter.
pub const LATE_SPREAD: Duration = Duration::from_secs(1);
/// By how much longer than `catchup` an occurrence may wait that was accepted in time: what the distance needs.
pub const LATE_GRACE: Duration = Duration::from_secs(300);
/// Most occurrences that one look at a schedule enters.
pub const MAX_ENTERED: usize = 32;
/// Most instants that one look at a schedule judges.
pub const MAX_JUDGED: usize = 5_000;
/// Most occurrences that wait in their queue for a jitter to pass; further ones are put later.
pub const MAX_PENDING: usize = 32;
/// How many of the latest occurrences are remembered, and of the next ones shown.
pub const SHOWN_OCCURRENCES: usize = 10;
/// Most instants of one backfill.
pub const MAX_BACKFILL: usize = 10_000;
/// How long the answer to the enqueue of an occurrence is remembered at most; less if the engine's limit is lower.
pub const REMEMBERED: Duration = Duration::from_secs(7 * 86_400);
/// By how much earlier a remembered answer is not relied on any more: clocks may be moved by that.
pub const REMEMBERED_MARGIN: Duration = Duration::from_secs(86_400);
/// How long a shard is asked at most whether an occurrence that is due has entered.
pub const ASKED: Duration = Duration::from_secs(7 * 86_400);
/// How long a worker has a record for itself. It looks at most that long.
pub const HELD: Duration = Duration::from_secs(10);
/// How often a schedule whose occurrence waits for an earlier one looks at that.
pub const OVERLAP_POLL: Duration = Duration::from_secs(1);
/// The pause after a queue has refused an occurrence; it doubles.
pub const FIRST_REFUSED: Duration = Duration::from_secs(1);
/// The longest such pause.
pub const LONGEST_REFUSED: Duration = Duration::from_secs(60);
/// When a schedule is looked at again that has nothing to do.
pub const IDLE_LOOK: Duration = Duration::from_secs(30 * 86_400);
/// When a schedule is looked at again whose record cannot be read, or whose settings do not check: another node, or the next
/// version of this one, may be able to.
pub const UNREADABLE_LOOK: Duration = Duration::from_secs(60);
/// Bytes of a record that are kept free for what the worker adds to it.
pub const WORKER_ROOM: usize = 40 * 1024;
/// Schedules that a worker looks at at a time.
pub const LOOKS: usize = 16;
/// Steps of one look; more work waits for the next one, so that others get their turn.
pub const LOOK_STEPS: u32 = 6;
/// Most instants that an edit judges by the former settings.
pub const MAX_JUDGED_AT_EDIT: usize = 100_000;
/// How long an edit waits for a worker that looks at the schedule.
pub const EDIT_WAIT: Duration = Duration::from_secs(20);
/// The pause before a schedule is looked at again whose store gave no answer.
pub const LOOK_AGAIN: Duration = Duration::from_secs(2);
/// How long a look waits for shards that it asks about messages that are due. With the pause before it asks again it is
/// shorter than a shard withholds such a message.
pub const DUE_WAIT: Duration = Duration::from_millis(500);
const _: () = assert!(2 * (DUE_WAIT.as_millis() + LOOK_AGAIN.as_millis()) <= WITHHELD_MS as u128);
/// Most bytes of an id that a caller gives to a trigger or a backfill.
pub const MAX_RUN_ID: usize = 48;
/// The pause after which a worker that has ended by a bug begins again; it doubles.
pub const FIRST_RESTART: Duration = Duration::from_secs(1);
/// The longest such pause.
pub const LONGEST_RESTART: Duration = Duration::from_secs(60);

/// Most jobs of a tenant, with those that have ended.
pub const MAX_JOBS: u64 = 1_000;
/// How long a job is kept after its end.
pub const KEEP_JOBS: Duration = Duration::from_secs(7 * 86_400);
/// Most messages a second that a job may ask for.
pub const MAX_BULK_RATE: u32 = 1_000_000;
/// Jobs of which a node does a step at a time.
pub const BULK_RUNS: usize = 16;
/// Jobs of a tenant that are worked on at a time; the others wait.
pub const BULK_TENANT_RUNS: usize = 4;
/// How long a node's index of all jobs is used before all records are read again, if nothing suggests that before.
pub const BULK_INDEX_AGE: Duration = Duration::from_secs(60);
/// How old that index may be when a tenant is refused one more job, or a job has ended: others may have ended or begun on
/// other nodes.
pub const BULK_REREAD_AGE: Duration = Duration::from_secs(1);
/// Reading all records for that reason takes at most this part of the time: one in so many.
pub const BULK_INDEX_SHARE: u32 = 50;
/// When a waiting job looks by itself whether it is its turn. The end of another one wakes it before.
pub const BULK_TURN_LOOK: Duration = Duration::from_secs(3_600);
/// How long a node has a job for itself after each step.
pub const BULK_HELD: Duration = Duration::from_secs(10);
/// Most messages of a part of a job.
pub const BULK_PART: usize = 4_000;
/// Messages that one step of a job walks over at most before it is written how far it has come.
pub const BULK_WALK: usize = 20_000;
/// Messages that a job changes together.
pub const BULK_SLICE: usize = 256;
/// Messages that a job removes and keeps, or puts back, together: the store reads and writes all their bodies.
pub const BULK_SLICE_OF_KEPT: usize = 64;
/// Messages that a job puts into another queue together; all their bodies are in memory at the same time.
pub const BULK_SLICE_WITH_BODIES: usize = 16;
/// How often the end of a job is tried that its worker comes in the way of.
pub const BULK_EDIT_TRIES: u32 = 100;
