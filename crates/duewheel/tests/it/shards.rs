//! Several shards in one data folder.

use std::collections::BTreeSet;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use duewheel::core::State;
use duewheel::core::engine::{Op, Reserved};
use duewheel::core::name::QueueName;
use duewheel::core::store::ErrorKind;
use duewheel::store_log::{Options as LogOptions, shards_in, verify};
use duewheel::{Duewheel, HOUR, LeaseToken, MessageId, OpenError, SECOND, VirtualClock, restore, salvage};
use duewheel_shard::client::Reserve;

const SHARDS: u32 = 3;

async fn open(dir: &Path, shards: u32, clock: &VirtualClock) -> Result<Duewheel, OpenError> {
    let log = LogOptions { segment_bytes: 1 << 20, max_group_bytes: 1 << 18, ..LogOptions::default() };
    let builder = Duewheel::builder().data(dir).shards(shards).log_options(log);
    builder.clock(clock.clone()).seed(1).open().await
}

fn name(n: u64) -> String {
    format!("order-{n}")
}

async fn fill(wheel: &Duewheel, n: u64) -> BTreeSet<MessageId> {
    let mut ids = BTreeSet::new();
    for n in 0..n {
        ids.insert(wheel.queue("q").body(name(n)).key(&name(n)).delay(HOUR).enqueue().await.unwrap().id);
    }
    ids
}

/// The shards that have messages, as their ids say.
async fn used(wheel: &Duewheel, n: u64) -> Vec<u64> {
    let mut shards = Vec::new();
    for n in 0..n {
        let view = wheel.queue("q").get_key(&name(n)).await.unwrap().unwrap();
        assert_eq!(view.message.body, name(n));
        shards.push((view.message.id.0 - 1) % u64::from(SHARDS));
    }
    shards.sort_unstable();
    shards.dedup();
    shards
}

#[tokio::test(flavor = "multi_thread")]
async fn shard_count_is_fixed_over_restarts() {
    let dir = tempfile::tempdir().unwrap();
    let (data, clock) = (dir.path().join("data"), VirtualClock::at_2026());
    let wheel = open(&data, SHARDS, &clock).await.unwrap();
    fill(&wheel, 60).await;
    assert_eq!(used(&wheel, 60).await, [0, 1, 2]);
    let twice = open(&data, SHARDS, &clock).await.unwrap_err();
    assert!(matches!(&twice, OpenError::Store(error) if error.kind() == ErrorKind::Fenced), "{twice}");
    wheel.shutdown(SECOND).await.unwrap();
    for asked in [1, 2, 4] {
        let refused = open(&data, asked, &clock).await.unwrap_err();
        assert!(
            matches!(refused, OpenError::Shards { has: SHARDS, asked: a, .. } if a == asked),
            "{refused}"
        );
    }
    assert!(matches!(open(&data, 0, &clock).await, Err(OpenError::NumberOfShards(0))));
    // Without a number it is opened as it is.
    let wheel = Duewheel::builder().data(&data).clock(clock.clone()).open().await.unwrap();
    assert_eq!(wheel.client().shards(), SHARDS);
    assert_eq!(used(&wheel, 60).await, [0, 1, 2]);
    assert_eq!(wheel.stats().await.unwrap().counts.scheduled, 60);
    clock.advance(HOUR);
    let mut left = 60;
    while left > 0 {
        for message in wheel.queue("q").reserve(left, SECOND).await.unwrap() {
            wheel.queue("q").ack(&message).await.unwrap();
            left -= 1;
        }
    }
    wheel.shutdown(SECOND).await.unwrap();
    let report = verify(&data).unwrap();
    assert_eq!((report.messages, report.problems.as_slice()), (0, &[][..]));
}

#[tokio::test(flavor = "multi_thread")]
async fn single_shard_folder_stays_single() {
    let dir = tempfile::tempdir().unwrap();
    let (data, clock) = (dir.path().join("data"), VirtualClock::at_2026());
    open(&data, 1, &clock).await.unwrap().shutdown(SECOND).await.unwrap();
    assert_eq!(shards_in(&data).unwrap(), Some(1));
    let refused = open(&data, 2, &clock).await.unwrap_err().to_string();
    assert!(refused.ends_with("has 1 shard, which cannot be changed, and 2 were asked for"), "{refused}");
    assert!(!data.join("SHARDS").exists() && !data.join("0-of-2").exists());
}

/// Leases of connections end with the process that had the connections; other leases go on.
#[tokio::test(flavor = "multi_thread")]
async fn start_releases_leases_of_connections() {
    let dir = tempfile::tempdir().unwrap();
    let clock = VirtualClock::at_2026();
    let wheel = open(dir.path(), SHARDS, &clock).await.unwrap();
    fill(&wheel, 30).await;
    clock.advance(HOUR);
    let client = wheel.client();
    for (max, session) in [(20, client.new_session()), (10, duewheel::core::SessionId::NONE)] {
        let mut granted = 0;
        while granted < max {
            let queue = QueueName::new("q").unwrap();
            let demand = Reserve {
                max: max - granted,
                wait_ms: 1_000,
                session,
                lease_ms: Some(600_000),
                ..Reserve::new(queue)
            };
            let Reserved::Grants(grants) = client.reserve(demand).await.unwrap() else { panic!("none") };
            granted += grants.len();
        }
    }
    wheel.shutdown(SECOND).await.unwrap();
    let wheel = open(dir.path(), SHARDS, &clock).await.unwrap();
    let counts = wheel.client().ask(Op::stats()).await.unwrap().counts;
    assert_eq!((counts.ready, counts.leased), (20, 10));
    wheel.shutdown(SECOND).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn damaged_shard_is_named_and_salvaged() {
    let dir = tempfile::tempdir().unwrap();
    let (data, clock) = (dir.path().join("data"), VirtualClock::at_2026());
    let wheel = open(&data, SHARDS, &clock).await.unwrap();
    let ids = fill(&wheel, 60).await;
    wheel.shutdown(SECOND).await.unwrap();
    let mut journal: Vec<_> = std::fs::read_dir(data.join("1-of-3/journal")).unwrap().collect();
    journal.sort_by_key(|entry| entry.as_ref().unwrap().file_name());
    let segment = journal[0].as_ref().unwrap().path();
    let mut bytes = std::fs::read(&segment).unwrap();
    bytes[5_000] ^= 0xff;
    std::fs::write(&segment, &bytes).unwrap();
    let refused = open(&data, SHARDS, &clock).await.unwrap_err();
    assert!(matches!(&refused, OpenError::Store(error) if error.kind() == ErrorKind::Corrupt), "{refused}");
    assert!(refused.to_string().contains("1-of-3"), "{refused}");
    let report = verify(&data).unwrap();
    assert!(!report.problems.is_empty());
    assert!(report.problems.iter().all(|problem| problem.file.starts_with("1-of-3/journal/")), "{report:?}");
    let salvaged = salvage(&data, dir.path().join("new")).unwrap().report;
    assert!(salvaged.messages >= 30, "two shards are whole: {salvaged:?}");
    assert!(salvaged.losses.iter().all(|loss| loss.to_string().starts_with("1-of-3: ")), "{salvaged:?}");
    assert!(!salvaged.losses.is_empty());
    let wheel = open(&dir.path().join("new"), SHARDS, &clock).await.unwrap();
    assert_eq!(wheel.stats().await.unwrap().counts.scheduled, salvaged.messages);
    // The id of a lost message is not given again.
    for _ in 0..60 {
        let receipt = wheel.queue("q").body("new").enqueue().await.unwrap();
        assert!(!ids.contains(&receipt.id), "{receipt:?}");
    }
    wheel.shutdown(SECOND).await.unwrap();
}

/// Story: a copy that was interrupted behind its first shard was served, with two empty shards in place of the others.
#[tokio::test(flavor = "multi_thread")]
async fn part_of_backup_is_not_served() {
    let dir = tempfile::tempdir().unwrap();
    let (part, clock) = (dir.path().join("part"), VirtualClock::at_2026());
    let wheel = open(&dir.path().join("data"), SHARDS, &clock).await.unwrap();
    wheel.backup(dir.path().join("copy")).await.unwrap();
    wheel.shutdown(SECOND).await.unwrap();
    std::fs::create_dir(&part).unwrap();
    std::fs::rename(dir.path().join("copy/0-of-3"), part.join("0-of-3")).unwrap();
    let is_refused = |refused: OpenError| {
        assert!(
            matches!(&refused, OpenError::Store(error) if error.kind() == ErrorKind::Corrupt),
            "{refused}"
        );
    };
    is_refused(open(&part, SHARDS, &clock).await.unwrap_err());
    // As a backup that is interrupted leaves it.
    std::fs::remove_file(part.join("0-of-3/SHARD")).unwrap();
    is_refused(open(&part, SHARDS, &clock).await.unwrap_err());
    assert!(!part.join("1-of-3").exists());
}

/// New messages, of which each shard has some, and the leases of all that are due.
async fn numbers(wheel: &Duewheel) -> (BTreeSet<MessageId>, BTreeSet<(MessageId, LeaseToken)>) {
    let mut ids = BTreeSet::new();
    for _ in 0..30 {
        ids.insert(wheel.queue("new").body("new").delay(HOUR).enqueue().await.unwrap().id);
    }
    let mut leases = BTreeSet::new();
    while leases.len() < 30 {
        let granted = wheel.queue("q").reserve(30, SECOND).await.unwrap();
        leases.extend(granted.iter().map(|message| (message.id(), message.lease_token())));
    }
    (ids, leases)
}

/// Story: a restored store gave ids that the original had given since the backup: whoever cancelled "its" message by id
/// cancelled another one's. Two restores of one backup gave the same ids and the same lease tokens.
#[tokio::test(flavor = "multi_thread")]
async fn restores_repeat_no_id_or_token() {
    for shards in [1, SHARDS] {
        let dir = tempfile::tempdir().unwrap();
        let (dir, clock) = (dir.path(), VirtualClock::at_2026());
        let wheel = open(&dir.join("data"), shards, &clock).await.unwrap();
        fill(&wheel, 30).await;
        clock.advance(HOUR);
        wheel.backup(dir.join("copy")).await.unwrap();
        let (mut ids, mut leases) = numbers(&wheel).await;
        wheel.shutdown(SECOND).await.unwrap();
        for again in ["first", "second"] {
            restore(dir.join("copy"), dir.join(again)).unwrap();
            let wheel = open(&dir.join(again), shards, &clock).await.unwrap();
            let (new, granted) = numbers(&wheel).await;
            assert!(ids.is_disjoint(&new) && leases.is_disjoint(&granted), "{again}: {new:?} {granted:?}");
            let last = leases.iter().map(|(_, token)| token).max();
            assert!(granted.iter().all(|(_, token)| Some(token) > last), "later leases have greater tokens");
            ids.extend(new);
            leases.extend(granted);
            wheel.shutdown(SECOND).await.unwrap();
            // The books are whole: what sets the ids apart is no message.
            let report = verify(dir.join(again)).unwrap();
            assert_eq!((report.messages, report.problems.as_slice()), (60, &[][..]));
        }
    }
}

/// Story: a salvage made an empty shard of one that had lost all its files, which gave its ids again from the first one on.
#[tokio::test(flavor = "multi_thread")]
async fn lost_shard_gives_no_id_again() {
    let dir = tempfile::tempdir().unwrap();
    let (data, clock) = (dir.path().join("data"), VirtualClock::at_2026());
    let wheel = open(&data, SHARDS, &clock).await.unwrap();
    let mut ids = fill(&wheel, 60).await;
    wheel.shutdown(SECOND).await.unwrap();
    std::fs::remove_dir_all(data.join("1-of-3")).unwrap();
    std::fs::create_dir(data.join("1-of-3")).unwrap();
    for again in ["first", "second"] {
        let salvaged = salvage(&data, dir.path().join(again)).unwrap().report;
        assert!(salvaged.losses.iter().any(|loss| loss.to_string().starts_with("1-of-3: ")), "{salvaged:?}");
        let wheel = open(&dir.path().join(again), SHARDS, &clock).await.unwrap();
        let mut new = BTreeSet::new();
        while new.len() < 30 || !new.iter().any(|id: &MessageId| (id.0 - 1) % u64::from(SHARDS) == 1) {
            new.insert(wheel.queue("new").body("new").enqueue().await.unwrap().id);
        }
        assert!(ids.is_disjoint(&new), "{again}: {new:?}");
        ids.extend(new);
        wheel.shutdown(SECOND).await.unwrap();
    }
}

/// Things that are moved: each is put under its next key, durably, and then removed under its last one. Keys are in all
/// shards, so at every moment each thing is somewhere, and that must be true for the moment of the copy, too.
#[tokio::test(flavor = "multi_thread")]
async fn copy_is_consistent_over_shards() {
    const THINGS: u64 = 8;
    let dir = tempfile::tempdir().unwrap();
    let clock = VirtualClock::at_2026();
    let wheel = open(&dir.path().join("data"), SHARDS, &clock).await.unwrap();
    let stop = Arc::new(AtomicBool::new(false));
    let moves = Arc::new(AtomicU64::new(0));
    let key = |thing: u64, step: u64| format!("{thing}/{step}");
    for thing in 0..THINGS {
        wheel.queue("q").body("").key(&key(thing, 0)).delay(HOUR).enqueue().await.unwrap();
    }
    let movers: Vec<_> = (0..THINGS)
        .map(|thing| {
            let (wheel, stop, moves) = (wheel.clone(), stop.clone(), moves.clone());
            tokio::spawn(async move {
                for step in 0.. {
                    if stop.load(Ordering::Relaxed) {
                        return;
                    }
                    wheel.queue("q").body("").key(&key(thing, step + 1)).delay(HOUR).enqueue().await.unwrap();
                    let _ = wheel.queue("q").cancel_key(&key(thing, step)).await.unwrap();
                    moves.fetch_add(1, Ordering::Relaxed);
                }
            })
        })
        .collect();
    for n in 0..6 {
        let before = moves.load(Ordering::Relaxed);
        while moves.load(Ordering::Relaxed) < before + 20 {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        let (copy, restored) = (dir.path().join(format!("copy-{n}")), dir.path().join(format!("new-{n}")));
        wheel.backup(&copy).await.unwrap();
        assert_eq!(verify(&copy).unwrap().problems, []);
        restore(&copy, &restored).unwrap();
        let other = open(&restored, SHARDS, &clock).await.unwrap();
        let mut found = [0; THINGS as usize];
        let (queue, state) = (QueueName::new("q").unwrap(), Some(State::Scheduled));
        for message in other.client().list(queue, state, None, 1_000).await.unwrap().views {
            let thing = message.message.key.as_ref().unwrap().as_str().split('/').next().unwrap().to_owned();
            found[thing.parse::<usize>().unwrap()] += 1;
        }
        assert!(found.iter().all(|copies| (1..=2).contains(copies)), "copy {n}: {found:?}");
        other.shutdown(SECOND).await.unwrap();
    }
    stop.store(true, Ordering::Relaxed);
    for mover in movers {
        mover.await.unwrap();
    }
    wheel.shutdown(SECOND).await.unwrap();
}
