//! The record codec: what goes in comes out, and no bytes make it panic. The bytes themselves are pinned by the golden
//! tests of the log store.

use std::sync::Arc;

use bytes::Bytes;
use proptest::prelude::*;

use duewheel_core::answers::AnswerPosition;
use duewheel_core::id::{Epoch, LeaseToken, SessionId};
use duewheel_core::message::{
    DeadReason, Died, DoneOutcome, Ended, Expiry, Kind, Lease, Life, Marks, MaxAttempts, MessageContent,
    Options, PastAttempt, QueueLimit, Row, Stage, State,
};
use duewheel_core::policy::{
    Backoff, GrantLimits, GrantRate, Lasting, OnExpiry, Policy, QueueSettings, ReadyOrder, TraceMode,
};
use duewheel_core::record::{
    ClockPair, Created, DecodeError, DedupeRow, EnqueueDefaults, Gone, NewPut, Pause, Reader, Record,
    RowHead, StageKind, Totals, Was, Writer,
};
use duewheel_core::time::Class;
use duewheel_core::{Due, EngineMs, IdSet, Key, Lsn, MessageId, QueueName, WallMs};

fn number() -> impl Strategy<Value = u64> {
    prop_oneof![Just(0), Just(127), Just(128), Just(u64::MAX), any::<u64>(), 0u64..1000]
}

fn queue() -> impl Strategy<Value = QueueName> {
    "[A-Za-z0-9+/;.$_()][A-Za-z0-9+/;.$_()-]{0,199}".prop_map(|s| QueueName::new(&s).expect("a good name"))
}

fn key() -> impl Strategy<Value = Option<Key>> {
    proptest::option::of("\\PC{1,60}".prop_map(|s| Key::new(&s).expect("a good key")))
}

fn text() -> impl Strategy<Value = Box<str>> {
    "\\PC{0,20}".prop_map(Into::into)
}

fn attempts() -> impl Strategy<Value = Option<MaxAttempts>> {
    any::<u32>().prop_map(MaxAttempts::new)
}

fn backoff() -> impl Strategy<Value = Option<Backoff>> {
    proptest::option::of((number(), number()).prop_map(|(min_ms, max_ms)| Backoff { min_ms, max_ms }))
}

fn token() -> impl Strategy<Value = LeaseToken> {
    (any::<u32>(), number()).prop_map(|(epoch, counter)| LeaseToken { epoch: Epoch(epoch), counter })
}

fn lease() -> impl Strategy<Value = Lease> {
    (token(), number(), number(), number()).prop_map(|(token, until, session, granted_at)| Lease {
        token,
        until: EngineMs(until),
        session: SessionId(session),
        granted_at: WallMs(granted_at),
    })
}

/// A few ids, or many with any distances between them.
fn kept() -> impl Strategy<Value = IdSet> {
    let few = proptest::collection::vec(number().prop_map(MessageId), 0..9).prop_map(IdSet::from);
    let many = (1u64..1 << 50, 0u32..50, any::<u64>(), 4_000u64..6_000).prop_map(|(first, bits, seed, n)| {
        let mut seed = seed;
        let far = (1..=n).scan(first, |last, n| {
            seed = seed.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(n);
            *last += 1 + (seed >> 14) % (1 << bits);
            Some(MessageId(*last))
        });
        far.collect()
    });
    prop_oneof![20 => few, 1 => many]
}

fn stage() -> BoxedStrategy<Stage> {
    let done = DoneOutcome::ALL.map(DeadReason::Done);
    let reason = proptest::sample::select([&DeadReason::ALL[..], &done].concat());
    prop_oneof![
        proptest::option::of(token()).prop_map(|token| Stage::Waiting { token }),
        lease().prop_map(Stage::Leased),
        (reason, number(), proptest::option::of(number()), proptest::option::of(token())).prop_map(
            |(reason, at, engine, token)| {
                let at = Died::from_raw(at);
                Stage::Dead { reason, at: engine.map_or(at, |engine| at.since(EngineMs(engine))), token }
            }
        ),
    ]
    .boxed()
}

fn past() -> BoxedStrategy<PastAttempt> {
    let how = prop_oneof![
        Just(Ended::Nacked),
        Just(Ended::LeaseExpired),
        Just(Ended::Released),
        Just(Ended::Buried)
    ];
    (any::<u32>(), number(), number(), how, text())
        .prop_map(|(attempt, granted, ended, how, note)| PastAttempt {
            attempt,
            granted_at: WallMs(granted),
            ended_at: WallMs(ended),
            how,
            note,
        })
        .boxed()
}

fn asked() -> impl Strategy<Value = Due> {
    (any::<bool>(), number()).prop_map(
        |(at, n)| {
            if at { Due::At(WallMs(n)) } else { Due::After(EngineMs(n)) }
        },
    )
}

fn marks() -> impl Strategy<Value = Marks> {
    let times = (proptest::option::of(number()), proptest::option::of(asked()));
    let limit = proptest::option::of((1..=u32::MAX).prop_filter_map("none", MaxAttempts::new));
    let superseded_by = proptest::option::of(number().prop_map(MessageId));
    let rest = (limit, superseded_by);
    let some =
        (any::<[u32; 5]>(), times, rest).prop_map(|(n, (delay_ms, asked), (limit, superseded_by))| Marks {
            timeouts: n[0],
            releases: n[1],
            burials: n[2],
            fires: n[3],
            losses: n[4],
            delay_ms,
            asked,
            limit,
            superseded_by,
        });
    prop_oneof![Just(Marks::default()), some]
}

fn life() -> BoxedStrategy<Life> {
    let due = (any::<bool>(), number())
        .prop_map(|(at, raw)| Due::from_raw(if at { Class::At } else { Class::After }, raw));
    (
        (due, any::<u32>(), any::<u32>(), any::<u32>()),
        (proptest::option::of(any::<u32>()), stage(), marks(), proptest::collection::vec(past(), 0..4)),
        proptest::option::of(proptest::collection::vec(any::<u8>(), 0..200)),
    )
        .prop_map(|((due, generation, attempt, forgiven), (priority, stage, marks, history), detail)| Life {
            due,
            generation,
            attempt,
            forgiven,
            priority,
            stage,
            marks,
            history,
            detail: detail.map(Arc::from),
        })
        .boxed()
}

fn message() -> BoxedStrategy<MessageContent> {
    let expiry = prop_oneof![number().prop_map(Expiry::In), number().prop_map(|at| Expiry::At(WallMs(at)))];
    let ahead = (proptest::option::of(number()), proptest::option::of(expiry));
    let options = (proptest::option::of(number()), attempts(), backoff(), ahead).prop_map(
        |(lease_ms, max_attempts, backoff, (spread_ms, expiry))| Options {
            lease_ms,
            max_attempts,
            queue_limit: if lease_ms > spread_ms { QueueLimit::Wins } else { QueueLimit::Yields },
            backoff,
            spread_ms,
            expiry,
        },
    );
    let headers = proptest::collection::vec((text(), text()), 0..4);
    let body = proptest::collection::vec(any::<u8>(), 0..300);
    (number(), queue(), key(), body, headers, options, proptest::option::of(text()), number())
        .prop_map(|(id, queue, key, body, headers, options, dedupe_id, enqueued_at)| MessageContent {
            dedupe_id,
            id: MessageId(id),
            queue,
            key,
            body: body.into(),
            headers,
            options,
            enqueued_at: WallMs(enqueued_at),
        })
        .boxed()
}

fn settings() -> BoxedStrategy<QueueSettings> {
    let order = proptest::option::of(prop_oneof![Just(ReadyOrder::Due), Just(ReadyOrder::Arrival)]);
    let number = || proptest::option::of(number());
    let lasting = prop_oneof![Just(Lasting::Always), Just(Lasting::WhileUsed)];
    let n = || proptest::option::of(any::<u32>());
    let hourly = || proptest::option::of(any::<u32>().prop_map(|n| u64::from(n) * 1_200));
    let limits =
        (hourly(), n(), hourly(), n()).prop_map(|(per_hour, burst, catchup_per_hour, concurrency)| {
            let rate = per_hour.map(|per_hour| GrantRate { per_hour, burst });
            GrantLimits { rate, catchup_per_hour, concurrency }
        });
    let on_expiry = proptest::sample::select(vec![
        None,
        Some(OnExpiry::DeliverLate),
        Some(OnExpiry::Dead),
        Some(OnExpiry::Drop),
    ]);
    let trace = proptest::sample::select(vec![None, Some(TraceMode::Link), Some(TraceMode::Child)]);
    let order = (order, lasting, limits, number(), (on_expiry, number(), trace));
    (number(), attempts(), proptest::option::of(any::<u32>()), backoff(), number(), number(), order)
        .prop_map(|(lease_ms, max_attempts, priority, backoff, dedupe_window_ms, dead_ttl_ms, order)| {
            let (order, lasting, limits, expires_in_ms, (on_expiry, keep_done_ms, trace)) = order;
            QueueSettings {
                lease_ms,
                max_attempts,
                priority,
                backoff,
                dedupe_window_ms,
                dead_ttl_ms,
                order,
                lasting,
                limits,
                expires_in_ms,
                on_expiry,
                keep_done_ms,
                trace,
            }
        })
        .boxed()
}

fn pause() -> impl Strategy<Value = Pause> {
    let until =
        (number(), number()).prop_map(|(end, length_ms)| Pause::Until { end: EngineMs(end), length_ms });
    prop_oneof![Just(Pause::Running), Just(Pause::Paused), until]
}

fn dedupe() -> BoxedStrategy<DedupeRow> {
    let created = prop_oneof![
        Just(Created::New),
        Just(Created::Kept),
        number().prop_map(|id| Created::Replacing(MessageId(id))),
        number().prop_map(|id| Created::Superseding(MessageId(id)))
    ];
    let position = proptest::option::of(
        (number(), number()).prop_map(|(nth, at)| AnswerPosition { nth: Lsn(nth), at: EngineMs(at) }),
    );
    let kept = proptest::option::of(proptest::sample::select(&State::ALL[..]));
    let of_message = (number(), key(), number(), any::<u32>(), created, kept);
    ((queue(), text(), any::<u128>(), number()), of_message, position, proptest::option::of(defaults()))
        .prop_map(
            |(
                (queue, dedupe_id, content, until),
                (id, key, due_at, generation, created, kept),
                position,
                defaults,
            )| {
                DedupeRow {
                    defaults,
                    queue,
                    dedupe_id,
                    content,
                    until: EngineMs(until),
                    id: MessageId(id),
                    key,
                    due_at: WallMs(due_at),
                    generation,
                    created,
                    kept,
                    position,
                }
            },
        )
        .boxed()
}

fn defaults() -> impl Strategy<Value = EnqueueDefaults> {
    let attempts = (1..=u32::MAX).prop_filter_map("none", MaxAttempts::new);
    (any::<u32>(), number(), attempts, any::<[u64; 2]>(), proptest::option::of(1..u64::MAX)).prop_map(
        |(priority, lease_ms, max_attempts, [min_ms, max_ms], expires_in_ms)| EnqueueDefaults {
            priority,
            lease_ms,
            max_attempts,
            backoff: Backoff { min_ms, max_ms },
            expires_in_ms,
        },
    )
}

fn was() -> BoxedStrategy<Was> {
    let kind = prop_oneof![Just(Kind::Waiting), Just(Kind::Leased), Just(Kind::Dead)];
    (queue(), kind, any::<bool>(), number(), number())
        .prop_map(|(queue, kind, at, raw, weight)| {
            let due = Due::from_raw(if at { Class::At } else { Class::After }, raw);
            Was { queue, kind, due, weight, detail: 0, past: 0, unweighed: 0 }
        })
        .boxed()
}

fn record() -> impl Strategy<Value = Record> {
    let id = || number().prop_map(MessageId);
    let why = proptest::sample::select(vec![
        Gone::Acked,
        Gone::Cancelled,
        Gone::Replaced,
        Gone::Expired,
        Gone::Superseded,
    ]);
    prop_oneof![
        (message(), life(), proptest::option::of(was())).prop_map(|(message, life, was)| Record::Put {
            message: Arc::new(message),
            life,
            was
        }),
        (id(), life(), was()).prop_map(|(id, life, was)| Record::Changed { id, life, was }),
        (id(), any::<u32>(), lease(), was()).prop_map(|(id, attempt, lease, was)| Record::Granted {
            id,
            attempt,
            lease,
            was
        }),
        (id(), why, was()).prop_map(|(id, why, was)| Record::Removed { id, why, was }),
        (queue(), settings(), pause()).prop_map(|(name, settings, pause)| Record::Queue {
            name,
            settings,
            pause
        }),
        (queue(), kept(), id(), number()).prop_map(|(queue, keep, before, purged)| Record::Purged {
            queue,
            keep,
            before,
            purged
        }),
        dedupe().prop_map(Record::Deduped),
        (queue(), number()).prop_map(|(queue, upto)| Record::AnswersForgotten { queue, upto: Lsn(upto) }),
    ]
}

/// Story: new fields made the longest record longer than the bound, and random numbers are seldom all large at once.
#[test]
fn extreme_record_stays_within_weight() {
    let (lease_ms, n) = (Some(u64::MAX), u32::MAX);
    let backoff = Some(Backoff { min_ms: u64::MAX, max_ms: u64::MAX });
    let due = Due::After(EngineMs(u64::MAX));
    let token = LeaseToken { epoch: Epoch(n), counter: u64::MAX };
    let (until, granted_at) = (EngineMs(u64::MAX), WallMs(u64::MAX));
    let lease = Lease { token, until, session: SessionId(u64::MAX), granted_at };
    let delay_ms = Some(u64::MAX);
    let limit = MaxAttempts::new(n);
    let marks = Marks {
        timeouts: n,
        releases: n,
        burials: n,
        fires: n,
        losses: n,
        delay_ms,
        asked: Some(due),
        limit,
        superseded_by: Some(MessageId(u64::MAX)),
    };
    let life = Life {
        due,
        generation: n,
        attempt: n,
        forgiven: n,
        priority: Some(n),
        stage: Stage::Leased(lease),
        marks,
        history: Vec::new(),
        detail: Some(vec![7; 24 << 10].into()),
    };
    let max_attempts = Some(MaxAttempts::UNLIMITED);
    let (spread_ms, expiry) = (Some(u64::MAX), Some(Expiry::In(u64::MAX)));
    let message = Arc::new(MessageContent {
        dedupe_id: Some("d".repeat(256).into()),
        id: MessageId(u64::MAX),
        queue: QueueName::new(&"q".repeat(200)).unwrap(),
        key: Some(Key::new(&"k".repeat(512)).unwrap()),
        body: vec![b'.'; 100_000].into(),
        headers: Vec::new(),
        options: Options {
            lease_ms,
            max_attempts,
            queue_limit: QueueLimit::Wins,
            backoff,
            spread_ms,
            expiry,
        },
        enqueued_at: WallMs(u64::MAX),
    });
    let name = message.queue.clone();
    let was = Was {
        queue: name.clone(),
        kind: Kind::Leased,
        due,
        weight: u64::MAX,
        detail: 0,
        past: 0,
        unweighed: 0,
    };
    let hourly = GrantRate::per_second(n).per_hour + 3_599;
    let limits = GrantLimits {
        rate: Some(GrantRate { per_hour: hourly, burst: Some(n) }),
        catchup_per_hour: Some(hourly),
        concurrency: Some(n),
    };
    let settings = QueueSettings {
        lease_ms,
        max_attempts,
        priority: Some(n),
        backoff,
        dedupe_window_ms: lease_ms,
        dead_ttl_ms: lease_ms,
        order: Some(ReadyOrder::Arrival),
        lasting: Lasting::WhileUsed,
        limits,
        expires_in_ms: lease_ms,
        on_expiry: Some(OnExpiry::Drop),
        keep_done_ms: lease_ms,
        trace: Some(TraceMode::Child),
    };
    let pause = Pause::Until { end: until, length_ms: u64::MAX };
    for record in [
        Record::Put { message: message.clone(), life: life.clone(), was: None },
        Record::Put { message, life: life.clone(), was: Some(was.clone()) },
        Record::Changed { id: MessageId(u64::MAX), life, was },
        Record::Queue { name, settings, pause },
    ] {
        let mut writer = Writer::default();
        writer.record(&record);
        assert!(writer.bytes.len() <= record.weight(), "{} > {}", writer.bytes.len(), record.weight());
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2_000))]

    /// Groups are bounded by it, and a store agrees to encoded bytes.
    #[test]
    fn record_length_never_exceeds_weight(record in record()) {
        let mut writer = Writer::default();
        writer.record(&record);
        prop_assert!(writer.bytes.len() <= record.weight(), "{} > {}", writer.bytes.len(), record.weight());
    }

    #[test]
    fn records_come_back(records in proptest::collection::vec(record(), 1..4)) {
        let mut writer = Writer::default();
        for record in &records {
            writer.record(record);
        }
        let bytes = Bytes::from(writer.bytes);
        let mut reader = Reader::new(bytes.clone());
        for record in &records {
            prop_assert_eq!(&reader.record().unwrap(), record);
        }
        prop_assert!(reader.is_empty());
        prop_assert_eq!(reader.record(), Err(DecodeError::Short));
        // Whatever is cut off, the reader runs short or meets something unknown; it never makes a record up from
        // nothing.
        for cut in 0..bytes.len().min(200) {
            let mut reader = Reader::new(bytes.slice(..cut));
            let whole = records.iter().take_while(|r| reader.record().as_ref() == Ok(*r)).count();
            prop_assert!(whole < records.len());
        }
    }

    #[test]
    fn rows_totals_and_clocks_come_back(
        message in message(),
        life in life(),
        totals in proptest::array::uniform10(number()),
        clock in (number(), number()),
    ) {
        let [enqueued, granted, acked, cancelled, replaced, purged, died, expired, paused, superseded] = totals;
        let totals =
            Totals { enqueued, granted, acked, cancelled, replaced, purged, died, expired, paused, superseded };
        let clock = ClockPair { engine: EngineMs(clock.0), wall: WallMs(clock.1) };
        let row = Row { message: Arc::new(message), life };
        let mut writer = Writer::default();
        writer.row(&row);
        writer.totals(&totals);
        writer.clock(&clock);
        let mut reader = Reader::new(writer.bytes.into());
        prop_assert_eq!(reader.row(), Ok(row));
        prop_assert_eq!(reader.totals(), Ok(totals));
        prop_assert_eq!(reader.clock(), Ok(clock));
        prop_assert!(reader.is_empty());
    }

    #[test]
    fn stored_row_and_head_round_trip(message in message(), life in life()) {
        let row = Row { message: Arc::new(message), life };
        let mut writer = Writer::default();
        writer.stored(&row);
        let head = RowHead::read(&writer.bytes).expect("it has just been written");
        prop_assert_eq!((head.id, head.due), (row.message.id, row.life.due));
        prop_assert_eq!(head.weight, row.weight() as u64);
        prop_assert_eq!(head.key, row.message.key.as_ref().map_or(&[][..], |key| key.as_str().as_bytes()));
        prop_assert_eq!(head.stands, match &row.life.stage {
            Stage::Waiting { .. } => StageKind::Waiting,
            Stage::Leased(lease) => StageKind::Leased { until: lease.until },
            Stage::Dead { at, .. } => StageKind::Dead { at: Died::from_raw(at.raw()) },
        });
        let mut reader = Reader::new(writer.bytes.into());
        prop_assert_eq!(reader.stored(row.message.queue.clone()), Ok(row));
        prop_assert!(reader.is_empty());
    }

    #[test]
    fn new_put_reader_matches_record(message in message(), life in life(), plain in any::<bool>()) {
        let life = if plain { Life::new(life.due, life.priority) } else { life };
        let fresh = life.stage == Stage::Waiting { token: None };
        let message = Arc::new(message);
        let record = Record::Put { message: Arc::clone(&message), life: life.clone(), was: None };
        let mut writer = Writer::default();
        writer.record(&record);
        let (_, stands) = record.moves();
        let wanted = stands.map(|stands| (message.id, message.queue.as_str(), stands)).filter(|_| fresh);
        let put = NewPut::read(&writer.bytes);
        prop_assert_eq!(put.map(|put| (put.id, put.queue, put.state())), wanted);
        for cut in 0..writer.bytes.len() {
            prop_assert_eq!(NewPut::read(&writer.bytes[..cut]), None);
        }
        if let Some(put) = put {
            prop_assert_eq!(put.key, message.key.as_ref().map_or(&[][..], |key| key.as_str().as_bytes()));
            let (mut of_record, mut of_row) = (Writer::default(), Writer::default());
            of_record.stored_put(&put);
            of_row.stored(&Row { message, life });
            prop_assert_eq!(of_record.bytes, of_row.bytes);
        }
    }

    #[test]
    fn a_flipped_bit_never_panics(record in record(), at in any::<prop::sample::Index>(), bit in 0u8..8) {
        let mut writer = Writer::default();
        writer.record(&record);
        let at = at.index(writer.bytes.len());
        writer.bytes[at] ^= 1 << bit;
        let _ = Reader::new(writer.bytes.into()).record();
    }

    #[test]
    fn any_bytes_never_panic(bytes in proptest::collection::vec(any::<u8>(), 0..400), kind in 0u8..9) {
        let _ = Reader::new(bytes.clone().into()).record();
        let _ = Reader::new(bytes.clone().into()).row();
        let _ = Reader::new(bytes.clone().into()).dedupe();
        let _ = Reader::new(bytes.clone().into()).stored(QueueName::new("q").expect("a good name"));
        let _ = RowHead::read(&bytes);
        let _ = Reader::new(bytes.clone().into()).settings();
        let mut of_kind = vec![kind];
        of_kind.extend(bytes);
        let _ = Reader::new(of_kind.into()).record();
    }
}

/// Story: a count of 2^60 headers made the decoder reserve memory for them before it met the end of the input.
#[test]
fn a_huge_count_allocates_nothing() {
    let mut writer = Writer::default();
    writer.byte(6);
    writer.blob(b"queue");
    writer.varint(1);
    writer.varint(1);
    writer.varint(1 << 60);
    assert_eq!(Reader::new(writer.bytes.into()).record(), Err(DecodeError::Short));
}

#[test]
fn varint_is_limited_to_64_bits() {
    let read = |bytes: &[u8]| Reader::new(Bytes::copy_from_slice(bytes)).varint();
    let mut largest = [0xff; 10];
    largest[9] = 1;
    assert_eq!(read(&largest), Ok(u64::MAX));
    largest[9] = 2;
    assert_eq!(read(&largest), Err(DecodeError::Unknown("varint")));
    assert_eq!(read(&[0x80; 11]), Err(DecodeError::Unknown("varint")));
    assert_eq!(read(&[0x80]), Err(DecodeError::Short));
}

/// Story: the record of a purge named each lease that stayed with up to ten bytes. With half a million leases the step
/// wrote 5 MB, and every caller of the shard waited for it.
#[test]
fn purge_with_maximum_leases_fits_step() {
    let policy = Policy::default();
    for between in [1, 7, 100, 1_000, 10_000] {
        let keep: IdSet = (1..=policy.max_leased as u64)
            .map(|n| MessageId(n * between + (n.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 40) % between))
            .collect();
        assert_eq!(keep.len(), policy.max_leased);
        let queue = QueueName::new("q").unwrap();
        let record = Record::Purged { queue, keep, before: MessageId(1 << 40), purged: 1 };
        let mut writer = Writer::default();
        writer.record(&record);
        let (length, weight) = (writer.bytes.len(), record.weight());
        assert!(length <= policy.max_step_bytes, "{length} bytes, one lease of {between}");
        assert!((length..=2 * length).contains(&weight), "{weight} for {length} bytes");
        assert_eq!(Reader::new(writer.bytes.into()).record(), Ok(record));
    }
}

/// Differences that add up to more than an id can be are refused.
#[test]
fn overflowing_kept_ids_are_refused() {
    let mut writer = Writer::default();
    writer.byte(6);
    writer.blob(b"q");
    for n in [9, 1, 2, u64::MAX, 1] {
        writer.varint(n);
    }
    assert_eq!(Reader::new(writer.bytes.into()).record(), Err(DecodeError::Unknown("kept id")));
}

/// The fields that a later version might add: a number or bytes, which a reader may skip or not.
const LATER: u8 = 30;
const OPTIONAL: [&[u8]; 2] = [&[1, LATER << 2, 5], &[1, LATER << 2 | 1, 2, 7, 7]];
const REQUIRED: [&[u8]; 2] = [&[1, LATER << 2 | 2, 5], &[1, LATER << 2 | 3, 2, 7, 7]];

/// One record of each kind without fields, its sections of fields by their distance from the end, and what each is of.
fn without_fields() -> Vec<(Record, Vec<(usize, &'static str)>)> {
    let queue = QueueName::new("q").expect("a good name");
    let due = Due::After(EngineMs(5));
    let was =
        Was { queue: queue.clone(), kind: Kind::Waiting, due, weight: 1, detail: 0, past: 0, unweighed: 0 };
    let life = Life::new(due, None);
    let (id, token) = (MessageId(7), LeaseToken { epoch: Epoch(1), counter: 1 });
    let lease = Lease { token, until: EngineMs(9), session: SessionId(1), granted_at: WallMs(2) };
    let message = Arc::new(MessageContent {
        dedupe_id: None,
        id,
        queue: queue.clone(),
        key: None,
        body: Bytes::from_static(b"b"),
        headers: Vec::new(),
        options: Options::default(),
        enqueued_at: WallMs(1),
    });
    let row = DedupeRow {
        defaults: None,
        queue: queue.clone(),
        dedupe_id: "d".into(),
        content: 1,
        until: EngineMs(9),
        id,
        key: None,
        due_at: WallMs(3),
        generation: 1,
        created: Created::New,
        kept: None,
        position: None,
    };
    let (settings, pause, keep) = (QueueSettings::default(), Pause::Running, IdSet::default());
    vec![
        // Behind the options: no headers, a body of one byte, a life of six bytes with its section, nothing before.
        (Record::Put { message, life: life.clone(), was: None }, vec![(11, "message"), (2, "message")]),
        (Record::Changed { id, life, was: was.clone() }, vec![(1, "message")]),
        (Record::Granted { id, attempt: 1, lease, was: was.clone() }, vec![(1, "message")]),
        (Record::Removed { id, why: Gone::Acked, was }, vec![(1, "message")]),
        (Record::Queue { name: queue.clone(), settings, pause }, vec![(3, "queue"), (1, "queue")]),
        (Record::Purged { queue: queue.clone(), keep, before: id, purged: 1 }, vec![(1, "purge")]),
        (Record::Deduped(row), vec![(1, "answer")]),
        (Record::AnswersForgotten { queue, upto: Lsn(9) }, vec![(1, "forgotten answers")]),
    ]
}

/// The bytes of a record with this section in place of an empty one.
fn with_section(record: &Record, from_end: usize, section: &[u8]) -> Bytes {
    let mut writer = Writer::default();
    writer.record(record);
    let at = writer.bytes.len() - from_end;
    assert_eq!(writer.bytes[at], 0, "an empty section of {record:?}");
    writer.bytes.splice(at..=at, section.iter().copied());
    writer.bytes.into()
}

#[test]
fn unknown_optional_fields_are_skipped() {
    for (record, sections) in without_fields() {
        for (from_end, _) in sections {
            for section in OPTIONAL {
                let bytes = with_section(&record, from_end, section);
                let mut reader = Reader::new(bytes.clone());
                assert_eq!(reader.record().as_ref(), Ok(&record));
                assert!(reader.is_empty());
                // A flush makes a row of the bytes themselves.
                let (Some(put), Record::Put { message, life, .. }) = (NewPut::read(&bytes), &record) else {
                    continue;
                };
                let mut row = Writer::default();
                row.stored_put(&put);
                let kept = row.bytes.windows(section.len()).any(|part| part == section);
                assert!(kept, "the field is still there for the version that knows it");
                let row = Reader::new(row.bytes.into()).stored(message.queue.clone());
                assert_eq!(row, Ok(Row { message: Arc::clone(message), life: life.clone() }));
            }
        }
    }
}

#[test]
fn unknown_required_fields_are_refused() {
    for (record, sections) in without_fields() {
        for (from_end, what) in sections {
            for section in REQUIRED {
                let bytes = with_section(&record, from_end, section);
                assert_eq!(Reader::new(bytes.clone()).record(), Err(DecodeError::Newer(what)));
                assert_eq!(NewPut::read(&bytes), None);
            }
        }
    }
}

#[test]
fn fields_are_in_order() {
    let twice = [&[2][..], &OPTIONAL[0][1..], &OPTIONAL[0][1..]].concat();
    let options = Reader::new(twice.into()).options();
    assert_eq!(options, Err(DecodeError::Unknown("order of fields")));
}
