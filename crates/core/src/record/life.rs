//! The state of a message: its *head*, which scans read, and the rest of it. A record has both together, a row of a run
//! has weight, key and content between them.

use std::sync::Arc;

use super::fields::{FieldKnown, FieldWriter, skip_fields};
use super::head::{LifeHead, StageKind};
use super::primitive::{Reader, Writer, varint};
use super::settings::max_attempts;
use super::{DecodeError, Decoded};
use crate::id::{Epoch, LeaseToken, MessageId, SessionId};
use crate::message::{DeadReason, DoneOutcome, Ended, Lease, Life, PastAttempt, Row, Stage};
use crate::name::QueueName;
use crate::time::{Due, EngineMs, WallMs};

/// Numbers of the fields of a life; none is ever used for another field.
mod field {
    pub(super) const PRIORITY: u64 = 1;
    pub(super) const TIMEOUTS: u64 = 2;
    pub(super) const RELEASES: u64 = 3;
    pub(super) const BURIALS: u64 = 4;
    pub(super) const FIRES: u64 = 5;
    pub(super) const DELAY: u64 = 6;
    pub(super) const ASKED_AT: u64 = 7;
    pub(super) const ASKED_AFTER: u64 = 8;
    pub(super) const LIMIT: u64 = 9;
    pub(super) const DIED: u64 = 10;
    pub(super) const HISTORY: u64 = 11;
    /// The token of the lease whose end was the death.
    pub(super) const LAPSED: u64 = 12;
    pub(super) const LOSSES: u64 = 13;
    pub(super) const SUPERSEDED_BY: u64 = 14;
    /// The highest one.
    pub(super) const LAST: u64 = SUPERSEDED_BY;
}

impl Writer {
    pub(super) fn life(&mut self, life: &Life) {
        self.life_head(life);
        self.life_rest(life);
    }

    /// A message without the name of its queue, and its life, as a run holds them. The fields that a scan needs come
    /// first ([`super::RowHead`]); no field is written twice.
    pub fn stored(&mut self, row: &Row) {
        let m = &row.message;
        self.varint(m.id.0);
        self.life_head(&row.life);
        self.varint(m.weight() as u64);
        self.blob(m.key.as_ref().map_or(&[], |k| k.as_str().as_bytes()));
        self.content(m);
        self.life_rest(&row.life);
    }

    fn life_head(&mut self, life: &Life) {
        let (stage, when) = match &life.stage {
            Stage::Waiting { token: None } => (0, None),
            Stage::Waiting { token: Some(_) } => (1, None),
            Stage::Leased(lease) => (2, Some(lease.until.0)),
            Stage::Dead { at, .. } => (3, Some(at.raw())),
        };
        self.byte(life.due.class() as u8 | stage << 1);
        self.varint(life.due.raw());
        if let Some(when) = when {
            self.varint(when);
        }
    }

    fn life_rest(&mut self, life: &Life) {
        for n in [life.generation, life.attempt, life.forgiven] {
            self.varint(u64::from(n));
        }
        let (mut died, mut lapsed) = (None, None);
        match &life.stage {
            Stage::Waiting { token: None } => {}
            Stage::Waiting { token: Some(token) } => self.token(*token),
            Stage::Leased(lease) => {
                self.token(lease.token);
                self.varint(lease.session.0);
                self.varint(lease.granted_at.0);
            }
            Stage::Dead { reason, at, token } => {
                self.byte(match reason {
                    DeadReason::MaxAttempts => 0,
                    DeadReason::Buried => 1,
                    DeadReason::Expired => 2,
                    DeadReason::Done(DoneOutcome::Acked) => 3,
                    DeadReason::Done(DoneOutcome::Cancelled) => 4,
                    DeadReason::Done(DoneOutcome::Replaced) => 5,
                    DeadReason::Done(DoneOutcome::Expired) => 6,
                    DeadReason::Done(DoneOutcome::Superseded) => 7,
                });
                (died, lapsed) = (at.engine(), *token);
            }
        }
        let marks = &life.marks;
        let counted = |n: u32| Some(u64::from(n)).filter(|n| *n > 0);
        self.fields(|fields: &mut FieldWriter<'_>| {
            fields.number(field::PRIORITY, life.priority.map(u64::from));
            fields.number(field::TIMEOUTS, counted(marks.timeouts));
            fields.number(field::RELEASES, counted(marks.releases));
            fields.number(field::BURIALS, counted(marks.burials));
            fields.number(field::FIRES, counted(marks.fires));
            fields.number(field::DELAY, marks.delay_ms);
            match marks.asked {
                None => {}
                Some(Due::At(at)) => fields.number(field::ASKED_AT, Some(at.0)),
                Some(Due::After(after)) => fields.number(field::ASKED_AFTER, Some(after.0)),
            }
            fields.number(field::LIMIT, marks.limit.map(|limit| u64::from(limit.count())));
            fields.number(field::DIED, died.map(|engine| engine.0));
            let history = Some(&life.history[..]).filter(|history| !history.is_empty());
            fields.bytes(field::HISTORY, history, Writer::history);
            fields.bytes(field::LAPSED, lapsed, Writer::token);
            fields.number(field::LOSSES, counted(marks.losses));
            fields.number(field::SUPERSEDED_BY, marks.superseded_by.map(|id| id.0));
        });
    }

    fn history(&mut self, history: &[PastAttempt]) {
        self.varint(history.len() as u64);
        for past in history {
            self.varint(u64::from(past.attempt));
            self.varint(past.granted_at.0);
            self.varint(past.ended_at.0);
            self.byte(match past.how {
                Ended::Nacked => 0,
                Ended::LeaseExpired => 1,
                Ended::Released => 2,
                Ended::Buried => 3,
            });
            self.blob(past.note.as_bytes());
        }
    }

    fn token(&mut self, token: LeaseToken) {
        self.varint(u64::from(token.epoch.0));
        self.varint(token.counter);
    }

    pub(super) fn lease(&mut self, lease: &Lease) {
        self.token(lease.token);
        self.varint(lease.until.0);
        self.varint(lease.session.0);
        self.varint(lease.granted_at.0);
    }
}

impl Reader {
    pub(super) fn life(&mut self) -> Decoded<Life> {
        let head = self.life_head()?;
        self.life_rest(head)
    }

    /// Reads what [`Writer::stored`] has written for a message of this queue.
    ///
    /// # Errors
    /// [`DecodeError`].
    pub fn stored(&mut self, queue: QueueName) -> Decoded<Row> {
        let id = MessageId(self.varint()?);
        let head = self.life_head()?;
        self.varint()?; // the weight follows from the rest
        let key = self.key()?;
        let message = self.content(id, queue, key)?;
        Ok(Row { message: Arc::new(message), life: self.life_rest(head)? })
    }

    fn life_head(&mut self) -> Decoded<LifeHead> {
        let mut rest = self.rest();
        let length = rest.len();
        let head = LifeHead::read(&mut rest)?;
        let read = length - rest.len();
        self.skip(read);
        Ok(head)
    }

    fn life_rest(&mut self, head: LifeHead) -> Decoded<Life> {
        let (generation, attempt, forgiven) = (self.varint_u32()?, self.varint_u32()?, self.varint_u32()?);
        let stage = match head.stands {
            StageKind::Waiting if head.has_token => Stage::Waiting { token: Some(self.token()?) },
            StageKind::Waiting => Stage::Waiting { token: None },
            StageKind::Leased { until } => Stage::Leased(Lease {
                token: self.token()?,
                until,
                session: SessionId(self.varint()?),
                granted_at: WallMs(self.varint()?),
            }),
            StageKind::Dead { at } => Stage::Dead { reason: self.dead_reason()?, at, token: None },
        };
        let mut life = Life::new(head.due, None);
        (life.generation, life.attempt, life.forgiven, life.stage) = (generation, attempt, forgiven, stage);
        self.fields("message", |number, value| {
            let marks = &mut life.marks;
            match number {
                field::PRIORITY => life.priority = Some(value.number_u32()?),
                field::TIMEOUTS => marks.timeouts = value.number_u32()?,
                field::RELEASES => marks.releases = value.number_u32()?,
                field::BURIALS => marks.burials = value.number_u32()?,
                field::FIRES => marks.fires = value.number_u32()?,
                field::LOSSES => marks.losses = value.number_u32()?,
                field::SUPERSEDED_BY => marks.superseded_by = Some(MessageId(value.number()?)),
                field::DELAY => marks.delay_ms = Some(value.number()?),
                field::ASKED_AT => marks.asked = Some(Due::At(WallMs(value.number()?))),
                field::ASKED_AFTER if marks.asked.is_some() => return Err(DecodeError::Unknown("due time")),
                field::ASKED_AFTER => marks.asked = Some(Due::After(EngineMs(value.number()?))),
                field::LIMIT => marks.limit = Some(max_attempts(value.number_u32()?)?),
                field::DIED => match &mut life.stage {
                    Stage::Dead { at, .. } => *at = at.since(EngineMs(value.number()?)),
                    Stage::Waiting { .. } | Stage::Leased(_) => {
                        return Err(DecodeError::Unknown("time of death"));
                    }
                },
                field::HISTORY => life.history = value.bytes(Reader::history)?,
                field::LAPSED => match &mut life.stage {
                    Stage::Dead { token, .. } => *token = Some(value.bytes(Reader::token)?),
                    Stage::Waiting { .. } | Stage::Leased(_) => {
                        return Err(DecodeError::Unknown("token of a dead message"));
                    }
                },
                _ => return Ok(FieldKnown::No),
            }
            Ok(FieldKnown::Yes)
        })?;
        Ok(life)
    }

    fn dead_reason(&mut self) -> Decoded<DeadReason> {
        Ok(match self.byte()? {
            0 => DeadReason::MaxAttempts,
            1 => DeadReason::Buried,
            2 => DeadReason::Expired,
            3 => DeadReason::Done(DoneOutcome::Acked),
            4 => DeadReason::Done(DoneOutcome::Cancelled),
            5 => DeadReason::Done(DoneOutcome::Replaced),
            6 => DeadReason::Done(DoneOutcome::Expired),
            7 => DeadReason::Done(DoneOutcome::Superseded),
            _ => return Err(DecodeError::Unknown("reason of death")),
        })
    }

    fn history(&mut self) -> Decoded<Vec<PastAttempt>> {
        let n = self.count(5)?;
        (0..n).map(|_| self.past_attempt()).collect()
    }

    fn past_attempt(&mut self) -> Decoded<PastAttempt> {
        Ok(PastAttempt {
            attempt: self.varint_u32()?,
            granted_at: WallMs(self.varint()?),
            ended_at: WallMs(self.varint()?),
            how: match self.byte()? {
                0 => Ended::Nacked,
                1 => Ended::LeaseExpired,
                2 => Ended::Released,
                3 => Ended::Buried,
                _ => return Err(DecodeError::Unknown("end of an attempt")),
            },
            note: self.text("note")?,
        })
    }

    fn token(&mut self) -> Decoded<LeaseToken> {
        Ok(LeaseToken { epoch: Epoch(self.varint_u32()?), counter: self.varint()? })
    }

    pub(super) fn lease(&mut self) -> Decoded<Lease> {
        Ok(Lease {
            token: self.token()?,
            until: EngineMs(self.varint()?),
            session: SessionId(self.varint()?),
            granted_at: WallMs(self.varint()?),
        })
    }
}

/// Skips what follows the head of a life that waits without a token.
pub(super) fn skip_rest_of_waiting(bytes: &mut &[u8]) -> Option<()> {
    for _ in 0..3 {
        varint(bytes).ok()?; // generation, attempt, forgiven
    }
    skip_fields(bytes, field::LAST)
}
