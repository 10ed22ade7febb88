//! All limits and defaults of delivery.

use std::time::Duration;

/// Longest URL of a target, in bytes.
pub const MAX_URL: usize = 4_096;
/// Most headers that a target may add to its requests.
pub const MAX_HEADERS: usize = 50;
/// Most bytes of names and values of these headers together.
pub const MAX_HEADER_BYTES: usize = 16 * 1024;
/// Most secrets of a target at a time: the current one, and those that are being replaced.
pub const MAX_SECRETS: usize = 3;
/// Fewest bytes of a symmetric secret, as the specification says.
pub const MIN_SECRET: usize = 24;
/// Most bytes of a symmetric secret, as the specification says.
pub const MAX_SECRET: usize = 64;
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
/// Most status codes in `dead_on`.
pub const MAX_DEAD_ON: usize = 100;

/// Bytes of an answer that are read; the rest stays unread, and its connection is closed.
pub const MAX_ANSWER: usize = 64 * 1024;
/// Bytes of an answer that are kept for people to read.
pub const MAX_EXCERPT: usize = 1024;
/// Shortest delay that an answer can ask for: less would be a loop.
pub const MIN_RETRY_AFTER: Duration = Duration::from_secs(1);
/// Longest delay of `Retry-After`.
pub const MAX_RETRY_AFTER: Duration = Duration::from_secs(86_400);
/// Longest delay of `duewheel-snooze`.
pub const MAX_SNOOZE: Duration = Duration::from_secs(365 * 86_400);
/// How long a connection that is not used stays open.
pub const IDLE: Duration = Duration::from_secs(60);

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
/// When a message comes back whose attempt was forgiven because its target is away and has not answered.
pub const FORGIVEN_DELAY: Duration = Duration::from_secs(1);
/// How often settling a message is tried while the store is behind.
pub const SETTLE_TRIES: u32 = 5;
/// How long a pusher that stops waits until its leases are released; otherwise they run out.
pub const CLOSE: Duration = Duration::from_secs(5);
/// Longest name of a store in `webhook-id`, in bytes.
pub const MAX_STORE_NAME: usize = 64;

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
