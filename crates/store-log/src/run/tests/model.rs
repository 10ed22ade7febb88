//! The expected content of a run, and random rows.

use super::*;

/// Rows and answers.
#[derive(Clone, Debug, Default)]
pub(crate) struct Model {
    pub(crate) rows: BTreeMap<MessageId, Row>,
    pub(crate) answers: Vec<DedupeRow>,
}

/// How a run is written.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Shape {
    pub(crate) span: usize,
    pub(crate) piece: usize,
}

impl Default for Shape {
    fn default() -> Self {
        Shape { span: SPAN, piece: 1 << 20 }
    }
}

impl Model {
    pub(crate) fn by_due(&self) -> Vec<&Row> {
        let mut rows: Vec<&Row> = self.rows.values().collect();
        rows.sort_by_key(|row| (row.life.due.class(), row.life.due.raw(), row.message.id));
        rows
    }

    /// The position of a row in a sequence.
    pub(crate) fn place(sequence: Sequence, row: &Row) -> Cursor {
        let time = match (&row.life.stage, sequence) {
            (Stage::Leased(lease), Sequence::Leased) => lease.until.0,
            (Stage::Dead { at, .. }, Sequence::Dead) => at.raw(),
            (_, _) => row.life.due.raw(),
        };
        (time, row.message.id)
    }

    pub(crate) fn sequence(
        &self,
        sequence: Sequence,
        which: &Which,
        live: &BTreeSet<MessageId>,
    ) -> Vec<(Cursor, Row)> {
        let mut rows: Vec<(Cursor, Row)> = self
            .rows
            .values()
            .filter(|row| live.contains(&row.message.id))
            .filter(|row| match which {
                Which::All => true,
                Which::One(queue) => row.message.queue == *queue,
                Which::AllBut(queues) => !queues.contains(&row.message.queue),
            })
            .filter(|row| {
                let waiting = matches!(row.life.stage, Stage::Waiting { .. });
                match sequence {
                    Sequence::At => waiting && row.life.due.class() == Class::At,
                    Sequence::After => waiting && row.life.due.class() == Class::After,
                    Sequence::Leased => matches!(row.life.stage, Stage::Leased(_)),
                    Sequence::Dead => matches!(row.life.stage, Stage::Dead { .. }),
                    Sequence::AllAt => row.life.due.class() == Class::At,
                    Sequence::AllAfter => row.life.due.class() == Class::After,
                }
            })
            .map(|row| (Model::place(sequence, row), row.clone()))
            .collect();
        rows.sort_by_key(|(place, _)| *place);
        rows
    }

    pub(crate) fn whiches(&self) -> Vec<Which> {
        let mut whiches = vec![Which::All, Which::AllBut([].into())];
        for i in 0..4 {
            whiches.push(Which::One(queue(i)));
            whiches.push(Which::AllBut([queue(i)].into()));
        }
        whiches.push(Which::AllBut([queue(0), queue(2)].into()));
        whiches
    }
}

pub(crate) fn no_messages(run: &Arc<Run>) -> bool {
    let live = Arc::new(Live::all(run));
    ALL.iter().all(|sequence| {
        run.scan(&live, *sequence, &Which::All, None, u64::MAX).unwrap().next().unwrap().is_none()
    })
}

pub(crate) fn queue(n: u64) -> QueueName {
    QueueName::new(&format!("queue-{n}")).unwrap()
}

/// A plain row.
pub(crate) fn row(id: u64, of: u64, due: Due, stage: Stage, key: Option<&str>, body: usize) -> Row {
    let message = MessageContent {
        dedupe_id: None,
        id: MessageId(id),
        queue: queue(of),
        key: key.map(|key| Key::new(key).unwrap()),
        body: Bytes::from(
            (0..body).map(|i| (i as u64 * 31).wrapping_add(id).to_le_bytes()[0]).collect::<Vec<u8>>(),
        ),
        headers: if id.is_multiple_of(3) { vec![("trace".into(), "x".into())] } else { Vec::new() },
        options: Options { lease_ms: id.is_multiple_of(4).then_some(30_000), ..Options::default() },
        enqueued_at: WallMs(id.wrapping_mul(10)),
    };
    let mut life = Life::new(due, id.is_multiple_of(5).then_some(7));
    life.stage = stage;
    if id.is_multiple_of(2) {
        life.attempt = 1;
        life.history.push(PastAttempt {
            attempt: 1,
            granted_at: WallMs(5),
            ended_at: WallMs(6),
            how: Ended::Nacked,
            note: "no".into(),
        });
    }
    Row { message: Arc::new(message), life }
}

pub(crate) fn answer(of: u64, dedupe_id: &str, until: u64) -> DedupeRow {
    DedupeRow {
        defaults: None,
        queue: queue(of),
        dedupe_id: dedupe_id.into(),
        content: 1 << 100,
        until: EngineMs(until),
        id: MessageId(until),
        key: None,
        due_at: WallMs(9),
        generation: 1,
        created: Created::New,
        kept: None,
        position: None,
    }
}

fn token(n: u64) -> LeaseToken {
    LeaseToken { epoch: Epoch(3), counter: n }
}

fn stage() -> impl Strategy<Value = Stage> {
    prop_oneof![
        6 => Just(Stage::Waiting { token: None }),
        1 => (0..9u64).prop_map(|n| Stage::Waiting { token: Some(token(n)) }),
        1 => (0..40u64).prop_map(|n| Stage::Leased(Lease {
            token: token(n),
            until: EngineMs(n),
            session: SessionId(n),
            granted_at: WallMs(n),
        })),
        2 => (0..40u64).prop_map(|n| Stage::Dead { reason: DeadReason::Buried, at: Died::from_raw(n), token: None }),
    ]
}

fn due() -> impl Strategy<Value = Due> {
    let time = prop_oneof![5 => 0..200u64, 1 => any::<u64>()];
    (any::<bool>(), time).prop_map(
        |(at, time)| {
            if at { Due::At(WallMs(time)) } else { Due::After(EngineMs(time)) }
        },
    )
}

/// Random rows: dense ids with gaps, and strays.
pub(crate) fn strategy(most: usize) -> impl Strategy<Value = Model> {
    let body = prop_oneof![20 => 0..200usize, 2 => 900..4_200usize, 1 => 4_200..50_000usize];
    let id = prop_oneof![10 => 1..300u64, 1 => any::<u64>().prop_map(|id| id / 2)];
    let one = (id, 0..3u64, due(), stage(), proptest::option::of(0..12u32), body);
    let rows = proptest::collection::vec(one, 0..most);
    let answers = proptest::collection::vec((0..3u64, 0..1_000u64, 0..1_000u64), 0..most / 2);
    (rows, answers).prop_map(|(rows, answers)| {
        let mut model = Model::default();
        for (id, of, due, stage, key, body) in rows {
            let key = key.map(|key| format!("key-{key}"));
            model.rows.insert(MessageId(id), row(id, of, due, stage, key.as_deref(), body));
        }
        let mut known = BTreeSet::new();
        for (of, name, until) in answers {
            if known.insert((of, name)) {
                model.answers.push(answer(of, &format!("dedupe-{name}"), until));
            }
        }
        model
    })
}

pub(crate) fn shapes() -> impl Strategy<Value = Shape> {
    let span = prop_oneof![Just(1), Just(3_000), Just(100_000), Just(SPAN)];
    (span, prop_oneof![Just(64), Just(1 << 20)]).prop_map(|(span, piece)| Shape { span, piece })
}
