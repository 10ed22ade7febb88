//! Checks every valid byte of a data folder, and writes nothing.

use std::collections::{BTreeMap, HashMap};
use std::path::Path;
use std::sync::Arc;

use duewheel_core::store::{ErrorKind, Sequence, StoreError};
use duewheel_core::{Lsn, MessageId, QueueName};

use crate::disk::{Disk, RealDisk};
use crate::fault::{Damage, ReadFault};
use crate::find::Finder;
use crate::folder::lock_if_any;
use crate::folder::{JOURNAL, MANIFEST, RUNS, STATE};
use crate::journal::reign::{self, Kept};
use crate::journal::replay::{self, Replayed, Walk};
use crate::journal::segment::{Header, SegmentReader};
use crate::load;
use crate::manifest::Manifest;
use crate::names::Interner;
use crate::readers::{ReadPriority, Readers};
use crate::run::{self, Blocking};
use crate::shards;
use crate::state;
use crate::view::StoreView;

/// Number of messages that are looked up at a time.
const TOGETHER: usize = 1_000;

/// The result of a check.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct VerifyReport {
    /// Number of files that the manifest lists, including the manifest.
    pub files: u64,
    /// Bytes in them.
    pub bytes: u64,
    /// Number of records in the journal.
    pub records: u64,
    /// Number of messages, those included that have ended and are kept, and the server's own; only if there is no
    /// problem.
    pub messages: u64,
    /// Number of pending messages: those of these that have not ended, in queues of users.
    pub pending: u64,
    /// Number of groups at the end of the journal that may not be on the disk after a crash. The next owner writes them
    /// again.
    pub unproven_groups: u64,
    /// Damage. Empty: the folder opens, and nothing that was durable is missing.
    pub problems: Vec<Damage>,
}

/// Checks a data folder.
///
/// No process may have the folder open, because a server's files change during the check. Several processes may verify
/// at the same time. A folder without a `LOCK` (a copy) is checked without a lock.
///
/// # Errors
/// [`Fenced`](duewheel_core::store::ErrorKind::Fenced) if a server has the folder open,
/// [`Unavailable`](duewheel_core::store::ErrorKind::Unavailable) if it cannot be read at all. Damage is not an error:
/// [`VerifyReport::problems`] lists it. A folder of another format is one, of the kind
/// [`Corrupt`](duewheel_core::store::ErrorKind::Corrupt), because nothing is known of its bytes.
pub fn verify(dir: impl AsRef<Path>) -> Result<VerifyReport, StoreError> {
    let disk = RealDisk::new(dir.as_ref());
    let count = match shards::count(&disk) {
        Ok(None) => return verify_on(&disk),
        Ok(Some(count)) => count,
        Err(error) if error.kind() == ErrorKind::Corrupt && !shards::is_of_other_format(&disk)? => {
            let problems = vec![Damage::new(shards::SHARDS, 0, error.to_string())];
            return Ok(VerifyReport { problems, ..VerifyReport::default() });
        }
        Err(error) => return Err(error),
    };
    let _lock = lock_if_any(&disk)?;
    let mut report = VerifyReport { files: count.files(), ..VerifyReport::default() };
    if !count.is_complete {
        report.problems.push(Damage::new(shards::SHARDS, 0, "it is missing: the folder is not complete"));
    }
    let strangers = shards::strangers(&disk, &count).into_iter();
    report.problems.extend(strangers.map(|stranger| Damage::new(stranger.file, 0, stranger.what)));
    for (name, disk) in shards::disks(dir.as_ref(), count.shards) {
        match verify_on(&*disk) {
            Ok(of_shard) => report.add(&name, of_shard),
            Err(error) => return Err(ReadFault::from(error).inside(&name).into()),
        }
    }
    Ok(report)
}

impl VerifyReport {
    /// Adds what was found in a folder of this name.
    pub(crate) fn add(&mut self, folder: &str, other: VerifyReport) {
        let VerifyReport { files, bytes, records, messages, pending, unproven_groups, problems } = other;
        self.files += files;
        self.bytes = self.bytes.saturating_add(bytes);
        self.records += records;
        self.messages += messages;
        self.pending += pending;
        self.unproven_groups += unproven_groups;
        self.problems.extend(problems.into_iter().map(|problem| problem.inside(folder)));
    }
}

/// Checks a data folder on a disk of the caller's own.
///
/// # Errors
/// See [`verify`].
pub fn verify_on(disk: &dyn Disk) -> Result<VerifyReport, StoreError> {
    let _lock = lock_if_any(disk)?;
    Manifest::known_format(disk)?;
    let mut report = VerifyReport::default();
    let manifest = match Manifest::read(disk) {
        Ok(Some(manifest)) => manifest,
        Ok(None) => {
            report.problems.extend(missing_manifest(disk));
            return Ok(report);
        }
        Err(ReadFault::Damaged(problem)) => {
            report.problems.push(problem);
            return Ok(report);
        }
        Err(error @ (ReadFault::Failed(_) | ReadFault::TooMuch | ReadFault::NotAtHand)) => {
            return Err(error.into());
        }
    };
    report.files = 1 + manifest.files().count() as u64;
    // A nonsensical manifest may list sizes that no files have.
    let sizes = manifest.segments.iter().map(|segment| segment.bytes);
    let sizes = sizes.chain(manifest.runs.iter().map(|run| run.bytes)).chain([manifest.state_bytes()]);
    report.bytes = sizes.fold(manifest.encode().len() as u64, u64::saturating_add);
    for entry in &manifest.runs {
        keep_problem(run::verify(disk, entry, manifest.hasher()).map(drop), &mut report)?;
    }
    for (i, entry) in manifest.states.iter().enumerate() {
        let before = i.checked_sub(1).map(|before| &manifest.states[before]);
        keep_problem(state::verify_file(disk, entry, before), &mut report)?;
    }
    check_segments(disk, &manifest, &mut report)?;
    // The steps of an owner's start have the last word: records that cannot be read, gaps between files, counts.
    let names = Interner::default();
    let whole = reign::keep(disk, &manifest, &names, 1)
        .and_then(|kept| Ok((replay::replay(disk, &manifest, &kept.books, 1)?, kept)));
    match whole {
        Ok((replayed, kept)) => {
            note(&replayed, &mut report);
            report.problems.extend(reign::next_epoch(replayed.epoch).err());
            if report.problems.is_empty() {
                let counted = count(replayed, kept);
                keep_problem(counted, &mut report)?;
            }
        }
        Err(ReadFault::Damaged(problem)) => {
            if !report.problems.iter().any(|p| p.file == problem.file && p.offset == problem.offset) {
                report.problems.push(problem);
            }
        }
        Err(error @ (ReadFault::Failed(_) | ReadFault::TooMuch | ReadFault::NotAtHand)) => {
            return Err(error.into());
        }
    }
    Ok(report)
}

fn missing_manifest(disk: &dyn Disk) -> Option<Damage> {
    let data = [(JOURNAL, ".log"), (RUNS, ".run"), (STATE, ".state")].into_iter().any(|(dir, ending)| {
        disk.list(dir).is_ok_and(|names| names.iter().any(|name| name.ends_with(ending)))
    });
    let what = if data { "the manifest is missing" } else { "this is not a data folder of duewheel" };
    Some(Damage::new(MANIFEST, 0, what))
}

fn note(replayed: &Replayed, report: &mut VerifyReport) {
    report.messages = replayed.ledger.messages();
    let of_users = replayed.ledger.rows().filter(|row| !row.name.is_system());
    report.pending = of_users.map(|row| row.tally.count()).sum();
    report.unproven_groups = replayed.unproven.len() as u64;
    let unproven: u64 = replayed.unproven.iter().map(|group| u64::from(group.head.records)).sum();
    report.records = replayed.used.iter().map(|s| s.records()).sum::<u64>() + unproven;
}

/// Checks that the messages of each queue are as many as the books count.
fn count(replayed: Replayed, kept: Kept) -> Result<(), ReadFault> {
    let mut left: BTreeMap<QueueName, i128> = BTreeMap::new();
    for row in replayed.ledger.rows() {
        left.insert(row.name, i128::from(row.tally.count()));
    }
    let mut mem = replayed.mem;
    mem.settle();
    let view = StoreView { hasher: mem.hasher(), frozen: vec![Arc::new(mem)], parts: kept.parts };
    found(&view)?;
    for sequence in [Sequence::AllAt, Sequence::AllAfter] {
        load::for_each(&view, sequence, |queue| *left.entry(queue.clone()).or_default() -= 1)?;
    }
    match left.into_iter().find(|(_, left)| *left != 0) {
        None => Ok(()),
        Some((queue, left)) => {
            let what = format!(
                "the state counts {left} messages of queue {queue} more than the runs and the journal have"
            );
            Err(Damage::new(MANIFEST, 0, what).into())
        }
    }
}

/// Checks that the messages which the journal changes exist.
fn found(view: &StoreView) -> Result<(), ReadFault> {
    let ids: Vec<MessageId> = view.frozen.iter().flat_map(|mem| mem.ids()).map(MessageId).collect();
    let readers = Arc::new(Readers::default());
    let finder = Finder {
        view,
        active: None,
        readers: &readers,
        whom: ReadPriority::Background,
        blocking: Blocking::Allowed,
    };
    ids.chunks(TOGETHER).try_for_each(|some| finder.rows(some, HashMap::new()).map(drop))
}

/// Checks every segment by itself, also behind a damaged one, so that the report names every damaged segment.
fn check_segments(disk: &dyn Disk, manifest: &Manifest, report: &mut VerifyReport) -> Result<(), StoreError> {
    let mut headers: Vec<Option<Header>> = Vec::new();
    for entry in &manifest.segments {
        match SegmentReader::open(disk, entry).and_then(|segment| segment.header()) {
            Ok(header) => headers.push(header),
            Err(trouble) => {
                headers.push(None);
                keep_problem(Err(trouble), report)?;
            }
        }
    }
    for (i, entry) in manifest.segments.iter().enumerate() {
        let Some(end) = headers[i + 1..].iter().find_map(|h| h.map(|h| h.first)) else { break };
        let Some(header) = headers[i] else { continue };
        let checked = SegmentReader::open(disk, entry);
        let checked = checked.and_then(|segment| check_frames(segment, &header, end, &mut report.problems));
        keep_problem(checked, report)?;
    }
    Ok(())
}

/// Checks every frame of a segment that is followed by another; behind damage it continues with the next whole frame.
fn check_frames(
    segment: SegmentReader,
    header: &Header,
    end: Lsn,
    problems: &mut Vec<Damage>,
) -> Result<(), ReadFault> {
    let entry = segment.entry;
    let mut walk = Walk::new(segment, header.first);
    while walk.next < end {
        match walk.frame()? {
            Ok(frame) => match replay::records(&entry, &frame, |_, _, _| Ok(())) {
                Err(ReadFault::Damaged(problem)) => problems.push(problem),
                other => other?,
            },
            Err(what) => {
                problems.push(walk.segment.problem(walk.at, what));
                let mut from = walk.at + 8;
                let further = loop {
                    match walk.segment.find_frame(from)? {
                        Some(frame) if frame.head.first < walk.next => from = frame.end,
                        other => break other,
                    }
                };
                let Some(frame) = further else { break };
                (walk.at, walk.next) = (frame.at, frame.head.first);
            }
        }
    }
    Ok(())
}

fn keep_problem(checked: Result<(), ReadFault>, report: &mut VerifyReport) -> Result<(), StoreError> {
    match checked {
        Ok(()) => Ok(()),
        Err(ReadFault::Damaged(problem)) => {
            report.problems.push(problem);
            Ok(())
        }
        Err(error @ (ReadFault::Failed(_) | ReadFault::TooMuch | ReadFault::NotAtHand)) => Err(error.into()),
    }
}
