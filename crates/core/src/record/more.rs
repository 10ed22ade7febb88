//! Settings of queues, and the fields of messages that format 7 added. Where none of that format is set, the bytes are
//! those of format 6.

use super::codec::{Reader, Writer};
use super::layout::{DecodeError, Decoded, EXPIRES_AT, EXPIRES_IN, MORE, SPREAD};
use crate::message::{Expiry, Options};
use crate::policy::{GrantLimits, GrantRate, Lasting, OnExpiry, QueueSettings, ReadyOrder, TraceMode};
use crate::time::WallMs;

/// Added to a queue's "how long settings last": how long done messages are kept stands behind all other settings.
const KEEP_DONE: u8 = 4;
/// Added to it, too: how the traces of deliveries belong to those of the messages' creation. One of the two, or none.
const TRACE_LINK: u8 = 8;
const TRACE_CHILD: u8 = 16;

/// Bits of the fields of settings that follow, in this order. The last two have no value behind them.
mod setting_bits {
    pub(super) const RATE: u8 = 1;
    pub(super) const BURST: u8 = 2;
    pub(super) const CATCHUP: u8 = 4;
    pub(super) const CONCURRENCY: u8 = 8;
    pub(super) const EXPIRES_IN: u8 = 16;
    pub(super) const LATE: u8 = 32;
    pub(super) const DEAD: u8 = 64;
    pub(super) const DROP: u8 = 128;
}

impl Options {
    /// The fields that format 7 added, as bits.
    pub(super) fn more(&self) -> u8 {
        let spread = if self.spread_ms.is_some() { SPREAD } else { 0 };
        spread
            | match self.expiry {
                None => 0,
                Some(Expiry::In(_)) => EXPIRES_IN,
                Some(Expiry::At(_)) => EXPIRES_AT,
            }
    }
}

impl QueueSettings {
    /// The fields that format 7 added, as bits.
    fn more(&self) -> u8 {
        let bit = |there: bool, bit: u8| if there { bit } else { 0 };
        let limits = self.limits;
        bit(limits.rate.is_some(), setting_bits::RATE)
            | bit(limits.rate.is_some_and(|rate| rate.burst.is_some()), setting_bits::BURST)
            | bit(limits.catchup_rate.is_some(), setting_bits::CATCHUP)
            | bit(limits.concurrency.is_some(), setting_bits::CONCURRENCY)
            | bit(self.expires_in_ms.is_some(), setting_bits::EXPIRES_IN)
            | match self.on_expiry {
                None => 0,
                Some(OnExpiry::DeliverLate) => setting_bits::LATE,
                Some(OnExpiry::Dead) => setting_bits::DEAD,
                Some(OnExpiry::Drop) => setting_bits::DROP,
            }
    }
}

impl Writer {
    /// A queue's settings.
    pub fn settings(&mut self, s: &QueueSettings) {
        self.option_varint(s.lease_ms);
        self.option_varint(s.max_attempts.map(|n| u64::from(n.count())));
        self.option_varint(s.priority.map(u64::from));
        self.option(s.backoff, Self::backoff);
        self.option_varint(s.dedupe_window_ms);
        self.option_varint(s.dead_ttl_ms);
        self.option(s.order, |w, order| {
            w.byte(match order {
                ReadyOrder::Due => 0,
                ReadyOrder::Arrival => 1,
            });
        });
        let lasting = match s.lasting {
            Lasting::Always => 0,
            Lasting::WhileUsed => 1,
        };
        let more = s.more();
        let keeps = if s.keep_done_ms.is_some() { KEEP_DONE } else { 0 };
        let trace = match s.trace {
            None => 0,
            Some(TraceMode::Link) => TRACE_LINK,
            Some(TraceMode::Child) => TRACE_CHILD,
        };
        self.byte(lasting | keeps | trace | if more == 0 { 0 } else { MORE });
        if more != 0 {
            self.more_settings(more, s);
        }
        if let Some(ms) = s.keep_done_ms {
            self.varint(ms);
        }
    }

    pub(super) fn more_options(&mut self, more: u8, options: &Options) {
        self.byte(more);
        if let Some(ms) = options.spread_ms {
            self.varint(ms);
        }
        match options.expiry {
            None => {}
            Some(Expiry::In(ms)) => self.varint(ms),
            Some(Expiry::At(at)) => self.varint(at.0),
        }
    }

    fn more_settings(&mut self, more: u8, s: &QueueSettings) {
        self.byte(more);
        let GrantLimits { rate, catchup_rate, concurrency } = s.limits;
        let limits = [rate.map(|r| r.per_second), rate.and_then(|r| r.burst), catchup_rate, concurrency];
        for n in limits.into_iter().map(|n| n.map(u64::from)).chain([s.expires_in_ms]).flatten() {
            self.varint(n);
        }
    }
}

#[expect(clippy::missing_errors_doc, reason = "the type lists the errors of all its methods")]
impl Reader {
    /// A queue's settings.
    pub fn settings(&mut self) -> Decoded<QueueSettings> {
        let mut settings = QueueSettings {
            lease_ms: self.option(Self::varint)?,
            max_attempts: self.option(Self::max_attempts)?,
            priority: self.option(Self::varint_u32)?,
            backoff: self.option(Self::backoff)?,
            dedupe_window_ms: self.option(Self::varint)?,
            dead_ttl_ms: self.option(Self::varint)?,
            order: self.option(|r| match r.byte()? {
                0 => Ok(ReadyOrder::Due),
                1 => Ok(ReadyOrder::Arrival),
                _ => Err(DecodeError::Unknown("order of grants")),
            })?,
            ..QueueSettings::default()
        };
        let byte = self.byte()?;
        settings.lasting = match byte & !(MORE | KEEP_DONE | TRACE_LINK | TRACE_CHILD) {
            0 => Lasting::Always,
            1 => Lasting::WhileUsed,
            _ => return Err(DecodeError::Unknown("how long settings last")),
        };
        settings.trace = match byte & (TRACE_LINK | TRACE_CHILD) {
            0 => None,
            TRACE_LINK => Some(TraceMode::Link),
            TRACE_CHILD => Some(TraceMode::Child),
            _ => return Err(DecodeError::Unknown("how traces belong to each other")),
        };
        if byte & MORE != 0 {
            self.more_settings(&mut settings)?;
        }
        if byte & KEEP_DONE != 0 {
            settings.keep_done_ms = Some(self.varint()?);
        }
        Ok(settings)
    }

    pub(super) fn more_options(&mut self, options: Options) -> Decoded<Options> {
        let more = self.byte()?;
        if more == 0 {
            return Err(DecodeError::Unknown("option"));
        }
        let spread_ms = if more & SPREAD == 0 { None } else { Some(self.varint()?) };
        let expiry = match more & !SPREAD {
            0 => None,
            EXPIRES_IN => Some(Expiry::In(self.varint()?)),
            EXPIRES_AT => Some(Expiry::At(WallMs(self.varint()?))),
            _ => return Err(DecodeError::Unknown("option")),
        };
        Ok(Options { spread_ms, expiry, ..options })
    }

    fn more_settings(&mut self, settings: &mut QueueSettings) -> Decoded<()> {
        let more = self.byte()?;
        if more == 0 {
            return Err(DecodeError::Unknown("setting"));
        }
        let has = |bit: u8| more & bit != 0;
        if has(setting_bits::RATE) {
            let per_second = self.varint_u32()?;
            let burst = if has(setting_bits::BURST) { Some(self.varint_u32()?) } else { None };
            settings.limits.rate = Some(GrantRate { per_second, burst });
        } else if has(setting_bits::BURST) {
            return Err(DecodeError::Unknown("setting"));
        }
        settings.limits.catchup_rate =
            if has(setting_bits::CATCHUP) { Some(self.varint_u32()?) } else { None };
        settings.limits.concurrency =
            if has(setting_bits::CONCURRENCY) { Some(self.varint_u32()?) } else { None };
        settings.expires_in_ms = if has(setting_bits::EXPIRES_IN) { Some(self.varint()?) } else { None };
        settings.on_expiry = match more & (setting_bits::LATE | setting_bits::DEAD | setting_bits::DROP) {
            0 => None,
            setting_bits::LATE => Some(OnExpiry::DeliverLate),
            setting_bits::DEAD => Some(OnExpiry::Dead),
            setting_bits::DROP => Some(OnExpiry::Drop),
            _ => return Err(DecodeError::Unknown("setting")),
        };
        Ok(())
    }
}
