//! The suite that every medium must pass: implement [`MediumFixture`] for it, and call [`run`] in a test.

use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use duewheel_core::store::{ErrorKind, StoreError};
use duewheel_store_log::disk::{Disk, FileAccess};
use duewheel_store_log::{LogStore, Options, WorkMode};

use crate::disk::{MAX_PIECE, MediumDisk};
use crate::medium::{FileId, FileKind, Medium, NamedFile, Piece};
use crate::store::Acquired;

/// How long a case waits so that a time shows, and the most by which two clocks differ about such a time.
const PAUSE: Duration = Duration::from_millis(100);
const TOLERANCE: Duration = Duration::from_millis(50);

/// Whether a fixture can do something.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Able {
    /// The fixture has done it.
    Yes,
    /// The fixture has no such thing; the obligation is not checked.
    No,
}

/// A medium under test, with one shard.
pub trait MediumFixture {
    /// Begins with a shard that never had an owner.
    fn clear(&mut self);

    /// Acquires the shard for another owner. The leases of earlier ones are over by the medium's clock, although they do
    /// not know it.
    ///
    /// # Errors
    /// The shard cannot be acquired; the test fails.
    fn acquire(&mut self) -> Result<(Arc<dyn Medium>, Acquired), StoreError>;

    /// Takes the power from the medium, and gives it back. What was acknowledged must stay.
    fn lose_power(&mut self) -> Able;
}

/// Runs the suite.
///
/// # Panics
/// An obligation is broken.
pub fn run(fixture: &mut impl MediumFixture) {
    type Case<Fixture> = (&'static str, fn(&mut Fixture));
    let cases: [Case<_>; 12] = [
        ("what is written is read, and the rest is zero", written_is_read),
        ("a name replaces a name in one step", names_replace),
        ("names are listed by what they begin with", names_are_listed),
        ("what is removed is gone", removed_is_gone),
        ("a journal grows behind its name", journal_grows),
        ("the next owner finds what was named, and nothing else", next_owner_finds),
        ("an owner that was replaced changes nothing", replaced_changes_nothing),
        ("what was acknowledged survives a loss of power", power_loss),
        ("threads write side by side", side_by_side),
        ("the disk of a store over it conforms", disk_conforms),
        ("the seed of a store outlasts its owner", seed_outlasts_owner),
        ("a takeover keeps the age of the clocks", takeover_keeps_age),
    ];
    for (what, case) in cases {
        println!("{what}");
        fixture.clear();
        case(fixture);
    }
}

fn owner(fixture: &mut impl MediumFixture) -> Arc<dyn Medium> {
    fixture.acquire().expect("the shard is acquired").0
}

/// The number of a file of this owner.
fn file(medium: &dyn Medium, no: u64) -> FileId {
    FileId((u64::from(medium.epoch().0) << 31) + no)
}

fn piece(at: u64, bytes: impl Into<Vec<u8>>) -> Vec<Piece> {
    vec![Piece { at, bytes: bytes.into() }]
}

/// Bytes that show when a part of them is at another offset.
fn pattern(seed: u64, length: usize) -> Vec<u8> {
    (0..length as u64).map(|i| (i.wrapping_mul(31).wrapping_add(seed) >> 3).to_le_bytes()[0]).collect()
}

fn write(medium: &dyn Medium, id: FileId, kind: FileKind, pieces: Vec<Piece>) {
    medium.write(id, kind, pieces).expect("a write");
}

fn read(medium: &dyn Medium, id: FileId, at: u64, length: usize) -> Vec<u8> {
    medium.read(id, at, length).expect("a read")
}

/// A blob with a name.
fn blob(medium: &dyn Medium, name: &str, id: FileId, bytes: &[u8]) {
    let mut at = 0;
    for part in bytes.chunks(MAX_PIECE) {
        write(medium, id, FileKind::Blob, piece(at, part));
        at += part.len() as u64;
    }
    medium.give_name(name, id, FileKind::Blob, at).expect("a name");
}

fn found(medium: &dyn Medium, name: &str) -> Option<NamedFile> {
    medium.find(name).expect("a look for a name")
}

fn written_is_read(fixture: &mut impl MediumFixture) {
    let medium = owner(fixture);
    let medium = &*medium;
    let (id, long) = (file(medium, 1), pattern(1, 3 * MAX_PIECE + 77));
    blob(medium, "runs/1", id, &long);
    assert_eq!(found(medium, "runs/1"), Some(NamedFile { id, bytes: long.len() as u64 }));
    for (at, length) in
        [(0, long.len()), (0, 1), (MAX_PIECE - 5, 10), (2 * MAX_PIECE - 1, 2), (long.len() - 1, 1)]
    {
        assert_eq!(read(medium, id, at as u64, length), long[at..at + length], "{length} bytes at {at}");
    }
    // Its first bytes are written last, as those of a run are; what lies between was never written.
    let id = file(medium, 2);
    write(medium, id, FileKind::Blob, piece(5_000, [7; 10]));
    write(medium, id, FileKind::Blob, piece(0, [8; 10]));
    write(medium, id, FileKind::Blob, [piece(100, [1; 3]), piece(200, [2; 3])].concat());
    medium.give_name("runs/2", id, FileKind::Blob, 6_000).expect("a name");
    let mut expected = vec![0; 6_000];
    expected[..10].fill(8);
    expected[100..103].fill(1);
    expected[200..203].fill(2);
    expected[5_000..5_010].fill(7);
    assert_eq!(read(medium, id, 0, 6_000), expected);
    assert!(medium.free_bytes() > 0);
}

fn names_replace(fixture: &mut impl MediumFixture) {
    let medium = owner(fixture);
    let medium = &*medium;
    for no in 1..=5 {
        let bytes = pattern(no, 100 * usize::try_from(no).expect("small"));
        blob(medium, "MANIFEST", file(medium, no), &bytes);
        let now = found(medium, "MANIFEST").expect("it has a name");
        assert_eq!(read(medium, now.id, 0, bytes.len()), bytes);
        assert_eq!(now.bytes, bytes.len() as u64);
    }
    assert_eq!(medium.list("").expect("a list"), ["MANIFEST"]);
}

fn names_are_listed(fixture: &mut impl MediumFixture) {
    let medium = owner(fixture);
    let medium = &*medium;
    let names = ["MANIFEST", "journal/1", "journal/10", "runs/1", "runs/2"];
    for (no, name) in (1..).zip(names) {
        blob(medium, name, file(medium, no), b"bytes");
    }
    let list = |prefix: &str| {
        let mut names = medium.list(prefix).expect("a list");
        names.sort();
        names
    };
    assert_eq!(list(""), names);
    assert_eq!(list("journal/"), ["journal/1", "journal/10"]);
    assert_eq!(list("runs/"), ["runs/1", "runs/2"]);
    assert_eq!(list("state/"), Vec::<String>::new());
    assert_eq!(found(medium, "runs"), None, "a name is a whole name");
}

fn removed_is_gone(fixture: &mut impl MediumFixture) {
    let medium = owner(fixture);
    let medium = &*medium;
    let bytes = pattern(4, 2 * MAX_PIECE);
    blob(medium, "runs/1", file(medium, 1), &bytes);
    blob(medium, "runs/2", file(medium, 2), &bytes);
    assert!(medium.remove("runs/1").expect("a removal"));
    assert!(!medium.remove("runs/1").expect("a removal"), "it is gone already");
    assert_eq!(found(medium, "runs/1"), None);
    assert_eq!(read(medium, file(medium, 2), 0, bytes.len()), bytes, "the other one stays");
    write(medium, file(medium, 3), FileKind::Blob, piece(0, bytes[..MAX_PIECE].to_vec()));
    medium.discard(file(medium, 3)).expect("a file without a name is discarded");
    medium.discard(file(medium, 4)).expect("so is one without bytes");
    assert_eq!(medium.list("").expect("a list"), ["runs/2"]);
}

fn journal_grows(fixture: &mut impl MediumFixture) {
    let medium = owner(fixture);
    let medium = &*medium;
    const BYTES: usize = 3 * MAX_PIECE;
    let mut all = vec![0; BYTES];
    let (first, second) = (file(medium, 1), file(medium, 2));
    for (name, id) in [("journal/1", first), ("journal/2", second)] {
        write(medium, id, FileKind::Journal, piece(0, [9; 16]));
        medium.give_name(name, id, FileKind::Journal, BYTES as u64).expect("a name");
    }
    all[..16].fill(9);
    let mut at = 16;
    for (seed, length) in (1..).zip([1, 100, MAX_PIECE, 17, MAX_PIECE - 1, 4_096]) {
        let bytes = pattern(seed, length);
        all[at..at + length].copy_from_slice(&bytes);
        write(medium, first, FileKind::Journal, piece(at as u64, bytes));
        at += length;
        assert_eq!(read(medium, first, 0, BYTES), all, "after {length} bytes");
    }
    // The first one goes after the second one has begun, and before.
    write(medium, second, FileKind::Journal, piece(16, [3; 100]));
    assert!(medium.remove("journal/1").expect("a removal"));
    write(medium, second, FileKind::Journal, piece(116, [4; 100]));
    assert_eq!(read(medium, second, 16, 200), [[3; 100], [4; 100]].concat());
    assert!(medium.remove("journal/2").expect("a removal"));
    let third = file(medium, 3);
    medium.give_name("journal/3", third, FileKind::Journal, BYTES as u64).expect("a name");
    write(medium, third, FileKind::Journal, piece(0, [5; 10]));
    assert_eq!(read(medium, third, 0, 12), [5, 5, 5, 5, 5, 5, 5, 5, 5, 5, 0, 0]);
}

fn next_owner_finds(fixture: &mut impl MediumFixture) {
    let old = owner(fixture);
    let bytes = pattern(5, MAX_PIECE + 9);
    blob(&*old, "runs/1", file(&*old, 1), &bytes);
    write(&*old, file(&*old, 2), FileKind::Journal, piece(0, [1; 50]));
    old.give_name("journal/1", file(&*old, 2), FileKind::Journal, 10_000).expect("a name");
    write(&*old, file(&*old, 2), FileKind::Journal, piece(50, [2; 50]));
    write(&*old, file(&*old, 3), FileKind::Blob, piece(0, [1; 50])); // it gets no name
    let new = owner(fixture);
    assert!(new.epoch() > old.epoch(), "{:?} after {:?}", new.epoch(), old.epoch());
    let mut names = new.list("").expect("a list");
    names.sort();
    assert_eq!(names, ["journal/1", "runs/1"]);
    let run = found(&*new, "runs/1").expect("it has a name");
    assert_eq!(read(&*new, run.id, 0, bytes.len()), bytes);
    let journal = found(&*new, "journal/1").expect("it has a name");
    assert_eq!(journal.bytes, 10_000);
    assert_eq!(read(&*new, journal.id, 0, 200), [vec![1; 50], vec![2; 50], vec![0; 100]].concat());
    // The new owner continues in the same file.
    write(&*new, journal.id, FileKind::Journal, piece(100, [3; 50]));
    assert_eq!(read(&*new, journal.id, 100, 100), [[3; 50], [0; 50]].concat());
    // After an orderly end nobody is waited for.
    new.give_back(None).expect("it is given back");
    new.ended(StoreError::new(ErrorKind::Closed, "it has ended"));
    assert_eq!(new.check().map_err(|error| error.kind()), Err(ErrorKind::Closed));
    assert!(owner(fixture).epoch() > new.epoch());
}

/// Each act is that of another owner: the first one that is refused may end it.
fn replaced_changes_nothing(fixture: &mut impl MediumFixture) {
    type Act = fn(&dyn Medium) -> Result<(), StoreError>;
    let acts: [(&str, Act); 4] = [
        ("a write to the journal", |old| {
            let journal = found(old, "journal/1").expect("it has a name");
            old.write(journal.id, FileKind::Journal, piece(50, [2; 50])).map(drop)
        }),
        ("a name", |old| old.give_name("MANIFEST", file(old, 3), FileKind::Blob, 50)),
        ("a new name", |old| old.give_name("runs/9", file(old, 3), FileKind::Blob, 50)),
        ("a removal", |old| old.remove("journal/1").map(drop)),
    ];
    let first = owner(fixture);
    write(&*first, file(&*first, 1), FileKind::Journal, piece(0, [1; 50]));
    first.give_name("journal/1", file(&*first, 1), FileKind::Journal, 10_000).expect("a name");
    blob(&*first, "MANIFEST", file(&*first, 2), b"of the first one");
    for (what, act) in acts {
        let old = owner(fixture);
        write(&*old, file(&*old, 3), FileKind::Blob, piece(0, [1; 50]));
        let new = owner(fixture);
        let kind = act(&*old).map_err(|error| error.kind());
        assert_eq!(kind, Err(ErrorKind::Fenced), "{what} by an owner that was replaced");
        let _ = old.write(file(&*old, 4), FileKind::Blob, piece(0, [1; 50])); // it has no name, so nobody reads it
        let _ = old.give_back(None);
        assert!(new.check().is_ok(), "after {what} by an earlier owner");
        let manifest = found(&*new, "MANIFEST").expect("it has a name");
        assert_eq!(read(&*new, manifest.id, 0, 16), b"of the first one", "after {what}");
        let journal = found(&*new, "journal/1").expect("it has a name");
        assert_eq!(read(&*new, journal.id, 0, 100), [[1; 50], [0; 50]].concat(), "after {what}");
        assert_eq!(found(&*new, "runs/9"), None, "after {what}");
    }
    let last = owner(fixture);
    let journal = found(&*last, "journal/1").expect("it has a name");
    write(&*last, journal.id, FileKind::Journal, piece(50, [3; 50]));
    assert_eq!(read(&*last, journal.id, 50, 50), [3; 50]);
}

fn power_loss(fixture: &mut impl MediumFixture) {
    let old = owner(fixture);
    let bytes = pattern(6, MAX_PIECE + 9);
    blob(&*old, "runs/1", file(&*old, 1), &bytes);
    write(&*old, file(&*old, 2), FileKind::Journal, piece(0, [1; 50]));
    old.give_name("journal/1", file(&*old, 2), FileKind::Journal, 10_000).expect("a name");
    for n in 1..20 {
        write(&*old, file(&*old, 2), FileKind::Journal, piece(50 * n, [2; 50]));
    }
    blob(&*old, "runs/2", file(&*old, 3), b"gone");
    assert!(old.remove("runs/2").expect("a removal"));
    if fixture.lose_power() == Able::No {
        return;
    }
    let new = owner(fixture);
    let run = found(&*new, "runs/1").expect("it has a name");
    assert_eq!(read(&*new, run.id, 0, bytes.len()), bytes);
    let journal = found(&*new, "journal/1").expect("it has a name");
    assert_eq!(read(&*new, journal.id, 0, 1_050), [vec![1; 50], vec![2; 950], vec![0; 50]].concat());
    assert_eq!(found(&*new, "runs/2"), None);
}

fn side_by_side(fixture: &mut impl MediumFixture) {
    let medium = owner(fixture);
    let medium = &*medium;
    let journal = file(medium, 1);
    medium.give_name("journal/1", journal, FileKind::Journal, 1 << 20).expect("a name");
    std::thread::scope(|scope| {
        for no in 2..6 {
            scope.spawn(move || blob(medium, &format!("runs/{no}"), file(medium, no), &pattern(no, 500_000)));
        }
        for n in 0..100 {
            write(medium, journal, FileKind::Journal, piece(n * 10, [7; 10]));
        }
    });
    assert_eq!(read(medium, journal, 0, 1_001), [vec![7; 1_000], vec![0]].concat());
    for no in 2..6 {
        assert_eq!(read(medium, file(medium, no), 0, 500_000), pattern(no, 500_000));
    }
}

/// The secret seed of the hashes of keys, as the manifest has it.
fn seed_outlasts_owner(fixture: &mut impl MediumFixture) {
    let mut open = || {
        let disk = Arc::new(MediumDisk::new(owner(fixture), Arc::default(), 0));
        let options = Options { workers: WorkMode::ByHand, ..Options::default() };
        drop(LogStore::open_on(disk.clone(), options, Arc::new(|| {})).expect("a store"));
        let mut seed = [0; 16];
        let manifest = disk.open("MANIFEST", FileAccess::Read).expect("a manifest");
        manifest.read_at(&mut seed, 48).expect("its seed");
        seed
    };
    let seed = open();
    assert_eq!(open(), seed, "the next owner reads what is hashed with it");
    let disk = MediumDisk::new(owner(fixture), Arc::default(), 0);
    let secret = || disk.secret().expect("two numbers");
    assert_ne!(secret(), secret(), "each folder has its own");
}

/// Story: an owner died in its takeover, which had written clocks of the owner before again. The next one counted the
/// time without an owner from that write, and all delays were late by hours.
fn takeover_keeps_age(fixture: &mut impl MediumFixture) {
    let mut acquire = || {
        let (medium, acquired) = fixture.acquire().expect("the shard is acquired");
        (medium, acquired.noted_ago)
    };
    let journal = |medium: &dyn Medium, no: u64| {
        let (name, id) = (format!("journal/{no}"), file(medium, no));
        medium.give_name(&name, id, FileKind::Journal, 10_000).expect("a name");
        write(medium, id, FileKind::Journal, piece(0, [1; 50]));
    };
    let (first, never) = acquire();
    assert_eq!(never, None, "the journal was never written");
    first.note_clocks();
    journal(&*first, 1);
    let noted = Instant::now();
    let (second, age) = acquire();
    thread::sleep(PAUSE);
    // The former journal may be covered by runs.
    journal(&*second, 2);
    assert!(second.remove("journal/1").expect("a removal"));
    let passed = noted.elapsed();
    let (third, later) = acquire();
    let is_older = later > age && later.is_some_and(|later| later + TOLERANCE >= passed);
    assert!(
        is_older,
        "{age:?} at a takeover, {later:?} at the next one, {passed:?} after the clocks were noted"
    );
    let noted = Instant::now();
    third.note_clocks();
    journal(&*third, 3);
    let (_, age) = acquire();
    let begins_anew = age < later || age.is_some_and(|age| age <= noted.elapsed() + TOLERANCE);
    assert!(
        begins_anew && age.is_some(),
        "{later:?} at a takeover, {age:?} after the clocks were noted since"
    );
}

fn disk_conforms(fixture: &mut impl MediumFixture) {
    duewheel_store_log::disk::conformance::run(&MediumDisk::new(owner(fixture), Arc::default(), 0));
}
