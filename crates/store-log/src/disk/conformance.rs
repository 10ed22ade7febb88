//! The conformance suite of disks: what the store relies on, as far as a program can check it without losing power.
//!
//! ```
//! use duewheel_store_log::disk::{RealDisk, conformance};
//!
//! let folder = tempfile::tempdir()?;
//! conformance::run(&RealDisk::new(folder.path()));
//! # Ok::<(), std::io::Error>(())
//! ```

use std::io;
use std::sync::Arc;

use super::{Disk, DiskFile, FileAccess};

const FOLDER: &str = "runs";

/// Runs all cases on an empty folder.
///
/// # Panics
/// A property is broken; the message names it.
pub fn run(disk: &dyn Disk) {
    disk.make_dirs(&["journal", FOLDER]).expect("folders are made");
    disk.make_dir(FOLDER).expect("a folder may exist already");
    bytes_are_read_as_they_were_written(disk);
    a_rename_replaces_its_target(disk);
    an_open_file_outlives_its_name(disk);
    what_was_allocated_reads_as_zeros(disk);
    what_is_not_there_is_said_so(disk);
    numbers_are_given_once(disk);
}

/// Makes a file as the store makes one that never changes: under another name first.
fn make(disk: &dyn Disk, name: &str, bytes: &[u8]) {
    let temp = format!("{name}.tmp");
    let file = disk.create(&temp).expect("a file is created");
    file.write_at(bytes, 0).expect("bytes are written");
    file.sync_data().expect("bytes are synced");
    disk.rename(&temp, name).expect("a file is renamed");
    disk.sync_dir(FOLDER).expect("names are synced");
}

fn open(disk: &dyn Disk, name: &str) -> Arc<dyn DiskFile> {
    disk.open(name, FileAccess::Read).expect("a file is opened")
}

fn read(file: &dyn DiskFile, at: u64, length: usize) -> Vec<u8> {
    let mut bytes = vec![7; length];
    file.read_at(&mut bytes, at).expect("bytes are read");
    bytes
}

fn bytes_are_read_as_they_were_written(disk: &dyn Disk) {
    let bytes: Vec<u8> = (0..200_000u32).map(|n| (n / 7).to_le_bytes()[0]).collect();
    make(disk, "runs/1", &bytes);
    let file = open(disk, "runs/1");
    assert_eq!(file.size().expect("a size"), bytes.len() as u64);
    for (at, length) in [(0, 1), (65_535, 2), (100_000, 100_000), (199_999, 1), (0, 200_000)] {
        assert_eq!(read(&*file, at as u64, length), bytes[at..at + length], "{length} bytes at {at}");
    }
    let beyond = file.read_at(&mut [0; 2], 199_999).expect_err("the file ends before");
    assert_eq!(beyond.kind(), io::ErrorKind::UnexpectedEof, "{beyond}");
    let at_hand = file.read_at_hand(&mut [0; 10], 100);
    assert!(at_hand.is_ok() || at_hand.is_err_and(|error| error.kind() == io::ErrorKind::WouldBlock));
}

fn a_rename_replaces_its_target(disk: &dyn Disk) {
    make(disk, "runs/2", b"before");
    make(disk, "runs/2", b"and after");
    assert_eq!(read(&*open(disk, "runs/2"), 0, 9), b"and after");
    let names = disk.list(FOLDER).expect("a list");
    assert_eq!(names.iter().filter(|name| name.starts_with('2')).count(), 1, "{names:?}");
}

/// A merge removes runs that look-ups on other threads may still be reading.
fn an_open_file_outlives_its_name(disk: &dyn Disk) {
    let bytes: Vec<u8> = (0..300_000u32).map(|n| (n / 5).to_le_bytes()[0]).collect();
    make(disk, "runs/3", &bytes);
    let (file, other) = (open(disk, "runs/3"), open(disk, "runs/3"));
    disk.remove("runs/3").expect("a file is removed");
    let names = disk.list(FOLDER).expect("a list");
    assert!(!names.contains(&"3".to_owned()), "a removed file is listed: {names:?}");
    let reopened = disk.open("runs/3", FileAccess::Read).expect_err("it has no name any more");
    assert_eq!(reopened.kind(), io::ErrorKind::NotFound, "{reopened}");
    assert_eq!(
        read(&*file, 70_000, 200_000),
        bytes[70_000..270_000],
        "an open file was changed by its removal"
    );
    drop(file);
    make(disk, "runs/4", b"another");
    assert_eq!(read(&*other, 0, 300_000), bytes, "an open file was changed by its removal");
    drop(other);
    let again = disk.remove("runs/3").expect_err("it is removed already");
    assert_eq!(again.kind(), io::ErrorKind::NotFound, "{again}");
}

fn what_was_allocated_reads_as_zeros(disk: &dyn Disk) {
    let file = disk.create("journal/1.tmp").expect("a file is created");
    match file.allocate(50_000) {
        Ok(()) => {}
        Err(error) if error.kind() == io::ErrorKind::Unsupported => return,
        Err(error) => panic!("space is allocated: {error}"),
    }
    file.write_at(&[5; 100], 4_096).expect("bytes are written");
    file.sync_data().expect("bytes are synced");
    disk.rename("journal/1.tmp", "journal/1").expect("a file is renamed");
    disk.sync_dir("journal").expect("names are synced");
    let file = open(disk, "journal/1");
    assert_eq!(file.size().expect("a size"), 50_000);
    assert_eq!(read(&*file, 4_000, 400), [vec![0; 96], vec![5; 100], vec![0; 204]].concat());
}

fn what_is_not_there_is_said_so(disk: &dyn Disk) {
    let is_missing = |what: &str, error: io::Error| {
        assert_eq!(error.kind(), io::ErrorKind::NotFound, "{what}: {error}");
    };
    is_missing("open", disk.open("runs/99", FileAccess::Read).map(drop).expect_err("it is not there"));
    is_missing("remove", disk.remove("runs/99").expect_err("it is not there"));
    is_missing("rename", disk.rename("runs/99", "runs/100").expect_err("it is not there"));
}

fn numbers_are_given_once(disk: &dyn Disk) {
    let mut numbers: std::collections::BTreeSet<u64> = (0..1_000).map(|_| disk.unique()).collect();
    assert_eq!(numbers.len(), 1_000);
    for _ in 0..3 {
        numbers.extend(disk.secret().expect("two numbers"));
    }
    assert_eq!(numbers.len(), 1_006, "a seed is drawn for one folder");
}
