//! The settings of messages and of queues, each of them a tagged field.

use super::fields::{FieldKnown, FieldWriter, skip_fields};
use super::primitive::{Reader, Writer};
use super::{DecodeError, Decoded};
use crate::message::{Expiry, MaxAttempts, Options, QueueLimit};
use crate::policy::{GrantRate, Lasting, OnExpiry, QueueSettings, ReadyOrder, SECONDS_PER_HOUR, TraceMode};
use crate::time::WallMs;

/// Numbers of the fields of a message's options; none is ever used for another field.
mod option {
    pub(super) const LEASE: u64 = 1;
    pub(super) const MAX_ATTEMPTS: u64 = 2;
    pub(super) const BACKOFF: u64 = 3;
    pub(super) const SPREAD: u64 = 4;
    pub(super) const EXPIRES_IN: u64 = 5;
    pub(super) const EXPIRES_AT: u64 = 6;
    /// The dedupe id of the enqueue, which is no option.
    pub(super) const DEDUPE_ID: u64 = 7;
    pub(super) const QUEUE_LIMIT: u64 = 8;
    /// The highest one.
    pub(super) const LAST: u64 = QUEUE_LIMIT;
}

/// Numbers of the fields of a queue's settings.
mod setting {
    pub(super) const LEASE: u64 = 1;
    pub(super) const MAX_ATTEMPTS: u64 = 2;
    pub(super) const PRIORITY: u64 = 3;
    pub(super) const BACKOFF: u64 = 4;
    pub(super) const DEDUPE_WINDOW: u64 = 5;
    pub(super) const DEAD_TTL: u64 = 6;
    pub(super) const ORDER: u64 = 7;
    pub(super) const LASTING: u64 = 8;
    pub(super) const RATE: u64 = 9;
    pub(super) const BURST: u64 = 10;
    pub(super) const CATCHUP_RATE: u64 = 11;
    pub(super) const CONCURRENCY: u64 = 12;
    pub(super) const EXPIRES_IN: u64 = 13;
    pub(super) const ON_EXPIRY: u64 = 14;
    pub(super) const KEEP_DONE: u64 = 15;
    pub(super) const TRACE: u64 = 16;
    /// Grants an hour beyond the whole ones a second of the rate, and of the catch-up rate.
    pub(super) const RATE_REST: u64 = 17;
    pub(super) const CATCHUP_REST: u64 = 18;
}

fn attempts(n: Option<MaxAttempts>) -> Option<u64> {
    n.map(|n| u64::from(n.count()))
}

pub(super) fn max_attempts(n: u32) -> Decoded<MaxAttempts> {
    MaxAttempts::new(n).ok_or(DecodeError::Unknown("max_attempts"))
}

impl Writer {
    /// The options of a message.
    pub fn options(&mut self, options: &Options) {
        self.content_options(options, None);
    }

    /// The options of a message, and its dedupe id.
    pub(super) fn content_options(&mut self, options: &Options, dedupe_id: Option<&str>) {
        let Options { lease_ms, max_attempts, queue_limit, backoff, spread_ms, expiry } = *options;
        self.fields(|fields: &mut FieldWriter<'_>| {
            fields.number(option::LEASE, lease_ms);
            fields.number(option::MAX_ATTEMPTS, attempts(max_attempts));
            fields.bytes(option::BACKOFF, backoff, Writer::backoff);
            fields.number(option::SPREAD, spread_ms);
            match expiry {
                None => {}
                Some(Expiry::In(ms)) => fields.number(option::EXPIRES_IN, Some(ms)),
                Some(Expiry::At(at)) => fields.number(option::EXPIRES_AT, Some(at.0)),
            }
            fields.bytes(option::DEDUPE_ID, dedupe_id, |to, id| to.blob(id.as_bytes()));
            fields.number(option::QUEUE_LIMIT, (queue_limit == QueueLimit::Wins).then_some(1));
        });
    }

    /// A queue's settings.
    pub fn settings(&mut self, settings: &QueueSettings) {
        let s = settings;
        let order = s.order.map(|order| match order {
            ReadyOrder::Due => 0,
            ReadyOrder::Arrival => 1,
        });
        let lasting = match s.lasting {
            Lasting::Always => None,
            Lasting::WhileUsed => Some(1),
        };
        let on_expiry = s.on_expiry.map(|then| match then {
            OnExpiry::DeliverLate => 0,
            OnExpiry::Dead => 1,
            OnExpiry::Drop => 2,
        });
        let trace = s.trace.map(|mode| match mode {
            TraceMode::Link => 0,
            TraceMode::Child => 1,
        });
        self.fields(|fields| {
            fields.number(setting::LEASE, s.lease_ms);
            fields.number(setting::MAX_ATTEMPTS, attempts(s.max_attempts));
            fields.number(setting::PRIORITY, s.priority.map(u64::from));
            fields.bytes(setting::BACKOFF, s.backoff, Writer::backoff);
            fields.number(setting::DEDUPE_WINDOW, s.dedupe_window_ms);
            fields.number(setting::DEAD_TTL, s.dead_ttl_ms);
            fields.number(setting::ORDER, order);
            fields.number(setting::LASTING, lasting);
            let hourly = (s.limits.rate.map(|rate| rate.per_hour), s.limits.catchup_per_hour);
            fields.number(setting::RATE, hourly.0.map(|n| n / SECONDS_PER_HOUR));
            fields.number(setting::BURST, s.limits.rate.and_then(|rate| rate.burst).map(u64::from));
            fields.number(setting::CATCHUP_RATE, hourly.1.map(|n| n / SECONDS_PER_HOUR));
            fields.number(setting::CONCURRENCY, s.limits.concurrency.map(u64::from));
            fields.number(setting::EXPIRES_IN, s.expires_in_ms);
            fields.number(setting::ON_EXPIRY, on_expiry);
            fields.number(setting::KEEP_DONE, s.keep_done_ms);
            fields.number(setting::TRACE, trace);
            let rest = |hourly: Option<u64>| hourly.map(|n| n % SECONDS_PER_HOUR).filter(|n| *n > 0);
            fields.number(setting::RATE_REST, rest(hourly.0));
            fields.number(setting::CATCHUP_REST, rest(hourly.1));
        });
    }
}

#[expect(clippy::missing_errors_doc, reason = "the type lists the errors of all its methods")]
impl Reader {
    /// The options of a message.
    pub fn options(&mut self) -> Decoded<Options> {
        self.content_options().map(|(options, _)| options)
    }

    /// The options of a message, and its dedupe id.
    pub(super) fn content_options(&mut self) -> Decoded<(Options, Option<Box<str>>)> {
        let (mut options, mut dedupe_id) = (Options::default(), None);
        self.fields("message", |number, value| {
            match number {
                option::LEASE => options.lease_ms = Some(value.number()?),
                option::MAX_ATTEMPTS => options.max_attempts = Some(max_attempts(value.number_u32()?)?),
                option::BACKOFF => options.backoff = Some(value.bytes(Reader::backoff)?),
                option::SPREAD => options.spread_ms = Some(value.number()?),
                option::EXPIRES_IN => options.expiry = Some(Expiry::In(value.number()?)),
                option::EXPIRES_AT if options.expiry.is_some() => {
                    return Err(DecodeError::Unknown("expiry"));
                }
                option::EXPIRES_AT => options.expiry = Some(Expiry::At(WallMs(value.number()?))),
                option::QUEUE_LIMIT => {
                    options.queue_limit = match value.number()? {
                        1 => QueueLimit::Wins,
                        _ => return Err(DecodeError::Unknown("limit of the queue")),
                    };
                }
                option::DEDUPE_ID => dedupe_id = Some(value.bytes(|from| from.text("dedupe id"))?),
                _ => return Ok(FieldKnown::No),
            }
            Ok(FieldKnown::Yes)
        })?;
        Ok((options, dedupe_id))
    }

    /// A queue's settings.
    pub fn settings(&mut self) -> Decoded<QueueSettings> {
        let mut s = QueueSettings::default();
        self.fields("queue", |number, value| {
            match number {
                setting::LEASE => s.lease_ms = Some(value.number()?),
                setting::MAX_ATTEMPTS => s.max_attempts = Some(max_attempts(value.number_u32()?)?),
                setting::PRIORITY => s.priority = Some(value.number_u32()?),
                setting::BACKOFF => s.backoff = Some(value.bytes(Reader::backoff)?),
                setting::DEDUPE_WINDOW => s.dedupe_window_ms = Some(value.number()?),
                setting::DEAD_TTL => s.dead_ttl_ms = Some(value.number()?),
                setting::ORDER => {
                    s.order = Some(match value.number()? {
                        0 => ReadyOrder::Due,
                        1 => ReadyOrder::Arrival,
                        _ => return Err(DecodeError::Unknown("order of grants")),
                    });
                }
                setting::LASTING => {
                    s.lasting = match value.number()? {
                        1 => Lasting::WhileUsed,
                        _ => return Err(DecodeError::Unknown("how long settings last")),
                    };
                }
                setting::RATE => {
                    s.limits.rate = Some(GrantRate::per_second(value.number_u32()?));
                }
                setting::BURST => {
                    let burst = value.number_u32()?;
                    s.limits.rate.as_mut().ok_or(DecodeError::Unknown("burst"))?.burst = Some(burst);
                }
                setting::CATCHUP_RATE => {
                    s.limits.catchup_per_hour = Some(GrantRate::per_second(value.number_u32()?).per_hour);
                }
                setting::CONCURRENCY => s.limits.concurrency = Some(value.number_u32()?),
                setting::EXPIRES_IN => s.expires_in_ms = Some(value.number()?),
                setting::ON_EXPIRY => {
                    s.on_expiry = Some(match value.number()? {
                        0 => OnExpiry::DeliverLate,
                        1 => OnExpiry::Dead,
                        2 => OnExpiry::Drop,
                        _ => return Err(DecodeError::Unknown("effect of an expiry")),
                    });
                }
                setting::KEEP_DONE => s.keep_done_ms = Some(value.number()?),
                setting::TRACE => {
                    s.trace = Some(match value.number()? {
                        0 => TraceMode::Link,
                        1 => TraceMode::Child,
                        _ => return Err(DecodeError::Unknown("how traces belong to each other")),
                    });
                }
                setting::RATE_REST => {
                    add_rest(s.limits.rate.as_mut().map(|rate| &mut rate.per_hour), value.number()?)?;
                }
                setting::CATCHUP_REST => {
                    add_rest(s.limits.catchup_per_hour.as_mut(), value.number()?)?;
                }
                _ => return Ok(FieldKnown::No),
            }
            Ok(FieldKnown::Yes)
        })?;
        Ok(s)
    }
}

/// Adds the part of a rate that is no whole number a second.
fn add_rest(hourly: Option<&mut u64>, rest: u64) -> Decoded<()> {
    match hourly {
        Some(hourly) if (1..SECONDS_PER_HOUR).contains(&rest) => {
            *hourly += rest;
            Ok(())
        }
        _ => Err(DecodeError::Unknown("rate")),
    }
}

/// Skips the options of a message.
pub(super) fn skip_options(bytes: &mut &[u8]) -> Option<()> {
    skip_fields(bytes, option::LAST)
}
