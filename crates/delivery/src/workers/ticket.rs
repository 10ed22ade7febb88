//! Tickets: the node that has the ticket of a target pushes to it, so that its limits hold over all nodes.
//!
//! ```text
//!                 reserved            renewed each 5 s
//!     free  ─────────────────► held ◄──────────────────┐
//!      ▲                        │ └────────────────────┘
//!      │  given back, or 15 s   │
//!      └────────────────────────┤  target paused or removed
//!                               └─────────────────────────► no ticket
//! ```
//!
//! A ticket is a message of a system queue with the name of the target, or of a bridge, as its key. A node that dies stops
//! renewing.

use duewheel::core::MessageId;
use duewheel::core::engine::{Attempt, Enqueue, Grant, IfExists, Op};
use duewheel::core::id::{LeaseToken, SessionId};
use duewheel::core::message::{MaxAttempts, Options};
use duewheel::core::name::{BadName, Key, QueueName};
use duewheel::core::policy::Backoff;
use duewheel::core::time::{EngineMs, ceil_ms};
use duewheel::{CallError, Client};
use duewheel_shard::client::Reserve;

use crate::limits::{TICKET_LEASE, TICKET_RENEWAL, WORKERS_WAIT};
use crate::records::granted;

/// How long a reserve waits, in ms. A node that is suspended holds its tickets for ten seconds at least: its reserve must
/// have ended then, or they would be granted to it again.
const WAIT_MS: u64 = 5_000;
/// Tickets taken at a time, so that nodes that start together share.
const TAKEN: usize = 4;
/// Tickets that one call concerns.
const PAGE: usize = 256;
/// A ticket lives through any number of crashes. It is held off after some of them, as each message, but never for long.
const HELD_OFF: Backoff = Backoff { min_ms: 50, max_ms: 1_000 };

/// A ticket that this node holds.
#[derive(Clone, Copy, Debug)]
pub struct Ticket {
    pub(crate) id: MessageId,
    token: LeaseToken,
    /// Until when nobody else can have it, by the clock of this node. 0 until it was renewed for the first time.
    pub until: EngineMs,
    renew_at: EngineMs,
}

impl Ticket {
    /// The name of what it is for, and the ticket; `None` for a message that is none.
    pub fn of(grant: &Grant) -> Option<(String, Ticket)> {
        let name = grant.message.key.as_ref()?.as_str().to_owned();
        let never = EngineMs(0);
        Some((name, Ticket { id: grant.message.id, token: grant.token, until: never, renew_at: never }))
    }

    /// Whether it is to be renewed.
    pub fn wants_renewal(&self, now: EngineMs) -> bool {
        now >= self.renew_at
    }
}

/// The tickets of a store. Cheap to clone; clones hold the same ones.
#[derive(Clone, Debug)]
pub struct Tickets {
    client: Client,
    queue: QueueName,
    /// The session that leases are bound to: a restart of the process releases them at once.
    session: SessionId,
}

impl Tickets {
    /// The tickets in this system queue.
    ///
    /// # Errors
    /// The queue has no valid name, which is a bug.
    pub fn new(client: &Client, queue: &str) -> Result<Self, BadName> {
        Ok(Tickets {
            client: client.clone(),
            queue: QueueName::system(queue)?,
            session: client.new_session(),
        })
    }

    /// Makes sure that there is a ticket with each of these names.
    ///
    /// # Cancel safety
    /// Cancel safe: a ticket that is there stays.
    pub async fn lay_out(&self, names: &[&str]) {
        let enqueue = |name: &&str| {
            Some(Enqueue {
                key: Some(Key::new(name).ok()?),
                if_exists: IfExists::Reject,
                options: Options {
                    max_attempts: Some(MaxAttempts::UNLIMITED),
                    backoff: Some(HELD_OFF),
                    ..Options::default()
                },
                ..Enqueue::new(self.queue.clone(), bytes::Bytes::new())
            })
        };
        for names in names.chunks(PAGE) {
            let asked = self.client.ask_many(names.iter().filter_map(enqueue).collect());
            // A refusal says that there is one. After an error they are laid out again.
            drop(tokio::time::timeout(WORKERS_WAIT, asked).await);
        }
    }

    /// Waits for free tickets, some seconds at most.
    ///
    /// # Errors
    /// No answer came.
    ///
    /// # Cancel safety
    /// Cancel safe: tickets granted to a dropped future go back.
    pub async fn free(&self) -> Result<Vec<Grant>, CallError> {
        let demand = Reserve {
            max: TAKEN,
            wait_ms: WAIT_MS,
            lease_ms: Some(ceil_ms(TICKET_LEASE)),
            session: self.session,
            ..Reserve::new(self.queue.clone())
        };
        granted(&self.client, demand).await
    }

    /// Renews tickets. Those that are lost, or may be, are `None` afterwards.
    ///
    /// # Cancel safety
    /// When the future is dropped, a ticket may be renewed without being marked so: it is held for longer.
    pub async fn renew(&self, tickets: &mut [&mut Option<Ticket>]) {
        for page in tickets.chunks_mut(PAGE) {
            self.renew_page(page).await;
        }
    }

    async fn renew_page(&self, tickets: &mut [&mut Option<Ticket>]) {
        let lease = ceil_ms(TICKET_LEASE);
        // Read before: a lease that the store extends later ends later.
        let asked_at = self.client.now().engine;
        let extend = |ticket: &Ticket| Op::extend(ticket.id, ticket.token, Some(lease));
        let ops: Vec<_> = tickets.iter().filter_map(|ticket| ticket.as_ref().map(extend)).collect();
        let answers = tokio::time::timeout(WORKERS_WAIT, self.client.ask_many(ops)).await;
        let mut answers = match answers {
            Ok(Ok(answers)) => answers.into_iter(),
            Ok(Err(_)) | Err(_) => Vec::new().into_iter(),
        };
        let now = self.client.now().engine;
        for slot in tickets {
            let Some(ticket) = slot.as_mut() else { continue };
            match answers.next() {
                Some(Ok(Ok(_))) => {
                    ticket.until = EngineMs(asked_at.0.saturating_add(lease));
                    ticket.renew_at = EngineMs(asked_at.0.saturating_add(ceil_ms(TICKET_RENEWAL)));
                }
                Some(Ok(Err(_))) => **slot = None,
                // Unknown: it is asked again for as long as it can be ours. A new one was never renewed.
                Some(Err(_)) | None if ticket.until.0 != 0 && now >= ticket.until => **slot = None,
                Some(Err(_)) | None => {}
            }
        }
    }

    /// Lets another node have it, at once or after `delay_ms`.
    ///
    /// # Cancel safety
    /// When the future is dropped, its lease may have to run out.
    pub async fn give_back(&self, ticket: Ticket, delay_ms: u64) {
        let op = Op::nack(ticket.id, ticket.token, Attempt::NotYet, Some(delay_ms), "");
        drop(tokio::time::timeout(WORKERS_WAIT, self.client.ask(op)).await);
    }

    /// Removes it: its target takes no messages now.
    pub(crate) async fn remove(&self, ticket: Ticket) {
        drop(tokio::time::timeout(WORKERS_WAIT, self.client.ask(Op::ack(ticket.id, ticket.token))).await);
    }

    /// Gives all back that this node holds.
    ///
    /// # Cancel safety
    /// When the future is dropped, their leases may have to run out.
    pub async fn close(&self) {
        let closing = self.client.ask(Op::session_closed(self.session));
        drop(tokio::time::timeout(WORKERS_WAIT, closing).await);
    }
}
