//! The corpora and the inputs that once broke something, replayed on stable; then each with some changes that a seed
//! decides.
//!
//! `DUEWHEEL_FUZZ_MUTATIONS=1000` makes more changes of each file. A failure prints the command that repeats it.
#![allow(clippy::unwrap_used)] // a panic is a failed test

use std::collections::BTreeMap;
use std::fs;
use std::io::Read as _;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use duewheel_core::store::conformance::Dice;
use duewheel_fuzz::{TARGETS, Target, beanstalk_answers, http_answers};

/// Bytes at which numbers end.
const EDGES: [u8; 8] = [0, 1, 0x7f, 0x80, 0xff, b'0', b'\n', b'{'];

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz")
}

/// The corpora of all targets, out of their archive: path and bytes of each file.
fn corpora() -> &'static BTreeMap<PathBuf, Vec<u8>> {
    static CORPORA: OnceLock<BTreeMap<PathBuf, Vec<u8>>> = OnceLock::new();
    CORPORA.get_or_init(|| {
        let archive = fs::File::open(root().join("corpus.tar.gz")).unwrap();
        let mut archive = tar::Archive::new(flate2::read::GzDecoder::new(archive));
        let files = archive.entries().unwrap().map(|file| {
            let mut file = file.unwrap();
            let mut bytes = Vec::new();
            file.read_to_end(&mut bytes).unwrap();
            (file.path().unwrap().into_owned(), bytes)
        });
        files.collect()
    })
}

/// The corpus of a target: names and bytes.
fn corpus(name: &str) -> Vec<(String, Vec<u8>)> {
    let folder = Path::new("corpus").join(name);
    let files = corpora().iter().filter(|(path, _)| path.parent() == Some(&folder));
    files
        .map(|(path, bytes)| (path.file_name().unwrap().to_str().unwrap().to_owned(), bytes.clone()))
        .collect()
}

/// The files of a folder, by name.
fn files(folder: &Path) -> Vec<(String, Vec<u8>)> {
    let Ok(entries) = fs::read_dir(folder) else { return Vec::new() };
    let mut files: Vec<(String, Vec<u8>)> = entries
        .map(|entry| entry.unwrap())
        .map(|entry| (entry.file_name().into_string().unwrap(), fs::read(entry.path()).unwrap()))
        .collect();
    files.sort();
    files
}

fn number(name: &str) -> Option<u64> {
    std::env::var(name)
        .ok()
        .map(|text| text.parse().unwrap_or_else(|_| panic!("{name} is no number: {text}")))
}

fn run(target: &Target, bytes: &[u8]) -> bool {
    let run = target.run;
    catch_unwind(AssertUnwindSafe(|| run(bytes))).is_ok()
}

fn replay(name: &str) {
    let target = TARGETS.iter().find(|target| target.name == name).unwrap();
    let (corpus, regressions) = (corpus(name), files(&root().join("regressions").join(name)));
    assert!(corpus.len() > 10, "the corpus of {name} is missing, or too small: {} files", corpus.len());
    let one = std::env::var("DUEWHEEL_FUZZ_FILE").ok();
    let mutations = number("DUEWHEEL_FUZZ_MUTATIONS").unwrap_or(2);
    let seeds = match number("DUEWHEEL_FUZZ_SEED") {
        Some(seed) => seed..seed + 1,
        None => 1..1 + mutations,
    };
    let all: Vec<&(String, Vec<u8>)> = corpus.iter().chain(&regressions).collect();
    let mut ran = 0;
    for (n, (file, bytes)) in all.iter().enumerate() {
        if one.as_ref().is_some_and(|one| one != file) {
            continue;
        }
        let repeat = |seed: u64| {
            let what = if seed == 0 { "as it is" } else { "changed by the seed" };
            panic!(
                "{name}: {file}, {what}; repeat with\nDUEWHEEL_FUZZ_FILE={file} DUEWHEEL_FUZZ_SEED={seed} \
                 cargo test -p duewheel-fuzz --test replay {name}"
            )
        };
        if !run(target, bytes) {
            repeat(0);
        }
        ran += 1;
        for seed in seeds.clone().filter(|seed| *seed > 0) {
            // Its own name is part of the seed, and not its place: new files leave the others as they are.
            let own = file.bytes().fold(seed, |hash, b| hash.wrapping_mul(31).wrapping_add(u64::from(b)));
            let mut dice = Dice::new(own);
            let other = &all[usize::try_from(dice.below(all.len() as u64)).unwrap()].1;
            let changed = change(bytes, other, target.max_len, &mut dice);
            if !run(target, &changed) {
                fs::create_dir_all(root().join("artifacts").join(name)).unwrap();
                fs::write(
                    root().join("artifacts").join(name).join(format!("replay-{file}-{seed}")),
                    &changed,
                )
                .unwrap();
                repeat(seed);
            }
            ran += 1;
        }
        assert!(n < 1_000, "a corpus is small");
    }
    assert!(ran > 0, "no file has run");
}

/// What a run finds does not depend on the runs before it: otherwise a finding could not be repeated.
#[test]
fn replay_is_independent_of_history() {
    type Talk = fn(&[u8]) -> Vec<u8>;
    for (name, answers) in [("beanstalk", beanstalk_answers as Talk), ("http", http_answers)] {
        let corpus = corpus(name);
        let forwards: Vec<Vec<u8>> = corpus.iter().map(|(_, bytes)| answers(bytes)).collect();
        assert!(forwards.iter().filter(|answers| answers.len() > 100).count() > 10, "{name} says nothing");
        for ((file, bytes), before) in corpus.iter().zip(forwards).rev() {
            let (before, now) = (String::from_utf8_lossy(&before), answers(bytes));
            assert_eq!(String::from_utf8_lossy(&now), before, "{name}: {file}");
        }
    }
}

fn change(bytes: &[u8], other: &[u8], most: usize, dice: &mut Dice) -> Vec<u8> {
    let mut bytes = bytes.to_vec();
    for _ in 0..=dice.below(3) {
        let below = |dice: &mut Dice, n: usize| usize::try_from(dice.below(n.max(1) as u64)).unwrap();
        let at = below(dice, bytes.len());
        match dice.below(6) {
            0 if !bytes.is_empty() => bytes[at] ^= 1 << dice.below(8),
            1 if !bytes.is_empty() => bytes[at] = EDGES[below(dice, EDGES.len())],
            2 => bytes.truncate(at),
            3 => bytes.insert(at, EDGES[below(dice, EDGES.len())]),
            4 => {
                let from = below(dice, other.len());
                bytes.truncate(at);
                bytes.extend_from_slice(&other[from..]);
            }
            _ => {
                let until = (at + below(dice, 16)).min(bytes.len());
                bytes.drain(at..until);
            }
        }
    }
    bytes.truncate(most);
    bytes
}

macro_rules! targets {
    ($($name:ident),*) => {
        $(#[test]
        fn $name() {
            replay(stringify!($name));
        })*

        #[test]
        fn every_target_has_replay_and_binary() {
            let replayed = [$(stringify!($name)),*];
            assert_eq!(replayed.to_vec(), TARGETS.map(|target| target.name).to_vec());
            for name in replayed {
                let wrapper = fs::read_to_string(root().join("fuzz_targets").join(format!("{name}.rs"))).unwrap();
                assert!(wrapper.contains(&format!("duewheel_fuzz::{name}(data)")), "{wrapper}");
            }
        }
    };
}
targets!(journal, run_file, manifest, state, record, engine, beanstalk, http, text, wire, cron);
