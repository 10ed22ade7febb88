//! Refused connections at the nodes' port, and the limits of their log lines.
//!
//! Any client that reaches the port can cause refusals, so the log has a line for the first one, and then at most one a
//! minute with the number of refusals since. Each reason has a quota of lines, and so has each named node for each
//! reason: a flood of one kind hides no refusal of another kind, and no node hides another.

use std::collections::BTreeMap;
use std::io;
use std::net::SocketAddr;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

/// The time between two log lines about refusals of one kind.
const BETWEEN_LINES: Duration = Duration::from_secs(60);

/// The number of nodes that have a quota of their own for a reason. Names that nobody has proved also count: a stranger
/// may use up all of these, and further names share the quota of their reason.
const MAX_NAMED: usize = 16;

/// The reason why a connection was refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum RefusalReason {
    /// The client did not identify itself in time.
    Silent,
    /// The client does not speak TLS.
    WithoutTls,
    /// The client is a node of a build before 0.1.0.
    EarlierVersion,
    /// The TLS handshake failed, for example because of a certificate.
    Handshake,
    /// The connection broke, or its greeting is not valid.
    Greeting,
    /// The client does not know the cluster's secret.
    Secret,
    /// The client looks for another node than this one.
    OtherNode,
    /// The two nodes have no version of the protocol in common.
    OtherVersions,
    /// The number of connections of nodes has reached its limit.
    TooMany,
}

/// A connection that was refused.
#[derive(Debug)]
pub(super) struct RefusedPeer {
    pub(super) reason: RefusalReason,
    /// The name of the node according to the client. With [`RefusalReason::Secret`] it is not proved.
    pub(super) node: Option<Box<str>>,
    /// The reason as a sentence.
    pub(super) why: io::Error,
}

impl RefusedPeer {
    /// A refusal of a connection that has not named its node.
    pub(super) fn unnamed(
        reason: RefusalReason,
        why: impl Into<Box<dyn std::error::Error + Send + Sync>>,
    ) -> Self {
        RefusedPeer { reason, node: None, why: io::Error::other(why) }
    }

    /// A refusal of a connection that claims to be this node.
    pub(super) fn named(
        reason: RefusalReason,
        node: &str,
        why: impl Into<Box<dyn std::error::Error + Send + Sync>>,
    ) -> Self {
        RefusedPeer { node: Some(node.into()), ..RefusedPeer::unnamed(reason, why) }
    }
}

/// Covers failures before the client has identified itself.
impl From<io::Error> for RefusedPeer {
    fn from(why: io::Error) -> Self {
        RefusedPeer { reason: RefusalReason::Greeting, node: None, why }
    }
}

/// The quotas of log lines for all kinds of refusals.
#[derive(Debug, Default)]
pub(super) struct Refusals(Mutex<LogQuotas>);

#[derive(Debug, Default)]
struct LogQuotas {
    /// The quotas for connections that name no node, and for nodes without a quota of their own.
    unnamed: BTreeMap<RefusalReason, LogQuota>,
    named: BTreeMap<RefusalReason, BTreeMap<Box<str>, LogQuota>>,
}

/// The number of refusals since the last log line, and the time of that line.
#[derive(Clone, Copy, Debug, Default)]
struct LogQuota {
    unsaid: u64,
    /// When the last line was logged, by the clock that is never stopped.
    said: Option<Duration>,
}

impl LogQuota {
    /// Counts a refusal; returns the number that a log line is to report, if one is due.
    fn one_more(&mut self, now: Duration) -> Option<u64> {
        self.unsaid += 1;
        if self.is_recent(now) {
            return None;
        }
        self.said = Some(now);
        Some(std::mem::take(&mut self.unsaid))
    }

    fn is_recent(&self, now: Duration) -> bool {
        self.said.is_some_and(|said| now.saturating_sub(said) < BETWEEN_LINES)
    }
}

impl LogQuotas {
    /// Counts a refusal; returns the number that a log line is to report, if one is due.
    fn one_more(&mut self, refused: &RefusedPeer, now: Duration) -> Option<u64> {
        self.quota(refused, now).one_more(now)
    }

    fn quota(&mut self, refused: &RefusedPeer, now: Duration) -> &mut LogQuota {
        let unnamed = self.unnamed.entry(refused.reason).or_default();
        let Some(node) = &refused.node else { return unnamed };
        let named = self.named.entry(refused.reason).or_default();
        if !named.contains_key(node) && named.len() >= MAX_NAMED {
            named.retain(|_, quota| {
                let stays = quota.is_recent(now);
                if !stays {
                    // A later line of this reason counts them.
                    unnamed.unsaid += quota.unsaid;
                }
                stays
            });
            if named.len() >= MAX_NAMED {
                return unnamed;
            }
        }
        named.entry(node.clone()).or_default()
    }
}

impl Refusals {
    /// Logs a refusal, or counts it for a later line.
    pub(super) fn say(&self, from: SocketAddr, now: Duration, refused: &RefusedPeer) {
        let count = self.0.lock().unwrap_or_else(PoisonError::into_inner).one_more(refused, now);
        let RefusedPeer { reason: _, node, why } = refused;
        let node = node.as_deref();
        match count {
            Some(refused) => tracing::warn!(
                %from, node, %why, refused,
                "refused a connection at the nodes' port; for each reason and node there is one line a minute at most"
            ),
            None => tracing::debug!(%from, node, %why, "refused a connection at the nodes' port"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(reason: RefusalReason, node: Option<&str>) -> RefusedPeer {
        RefusedPeer { reason, node: node.map(Into::into), why: io::Error::other("why") }
    }

    /// Story: a scanner that connected a thousand times a second wrote a thousand lines a second into the log.
    #[test]
    fn scanner_flood_logs_once_per_minute() {
        let (mut lines, begin) = (LogQuotas::default(), Duration::from_secs(5));
        let scanner = refused(RefusalReason::WithoutTls, None);
        // Ten refusals a second, for five minutes.
        let at = |n: u64| begin + Duration::from_millis(n * 100);
        let said: Vec<u64> = (0..3_000).filter_map(|n| lines.one_more(&scanner, at(n))).collect();
        assert_eq!(said, [1, 600, 600, 600, 600], "the first at once, then how many there were");
        assert_eq!(lines.one_more(&scanner, at(3_600)), Some(600), "none is left out");
    }

    /// Story: strangers and nodes shared one line a minute, so a scanner hid that a node was refused for its version.
    #[test]
    fn flood_hides_no_other_refusals() {
        use RefusalReason::{Handshake, OtherNode, OtherVersions, Secret, WithoutTls};
        let (mut lines, now) = (LogQuotas::default(), Duration::from_secs(5));
        let mut said = |reason, node| lines.one_more(&refused(reason, node), now);
        for n in 0..1_000 {
            assert_eq!(said(WithoutTls, None), (n == 0).then_some(1));
        }
        let kinds = [
            (Handshake, None),
            (Secret, Some("a")),
            (OtherVersions, Some("a")),
            (OtherVersions, Some("b")),
            (OtherNode, Some("a")),
        ];
        for (reason, node) in kinds {
            assert_eq!(said(reason, node), Some(1), "{reason:?} {node:?}");
            assert_eq!(said(reason, node), None, "{reason:?} {node:?} again");
        }
    }

    #[test]
    fn named_log_quotas_are_bounded() {
        let (mut lines, begin) = (LogQuotas::default(), Duration::from_secs(5));
        let of = |n: usize| refused(RefusalReason::Secret, Some(&format!("n{n}")));
        let said: u64 = (0..1_000).filter_map(|n| lines.one_more(&of(n), begin)).sum();
        assert_eq!(said, MAX_NAMED as u64 + 1, "a line for each place, and one for all others");
        let other = refused(RefusalReason::OtherVersions, Some("n0"));
        assert_eq!(lines.one_more(&other, begin), Some(1), "another reason has places of its own");
        // Quotas that were not used for a minute are given to other nodes, and their unreported refusals are reported.
        for n in 0..MAX_NAMED {
            assert_eq!(lines.one_more(&of(n), begin), None);
        }
        let later = begin + BETWEEN_LINES;
        assert_eq!(lines.one_more(&of(1_000), later), Some(1));
        let all = refused(RefusalReason::Secret, None);
        let unsaid = 1_000 - said + MAX_NAMED as u64 + 1;
        assert_eq!(lines.one_more(&all, later), Some(unsaid));
    }
}
