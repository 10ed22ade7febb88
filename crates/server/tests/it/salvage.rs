//! `duewheel salvage`: exit codes, the list, and a folder that opens.

use std::fs;
use std::path::Path;
use std::process::{Command, Output};
use std::sync::Arc;

use duewheel::core::store::Store;
use duewheel::core::store::conformance::History;
use duewheel_store_log::{LogStore, Options, verify};
use serde_json::Value;

use crate::process::BINARY;

fn salvage(src: &Path, dest: &Path) -> Output {
    Command::new(BINARY).args(["salvage", "--json"]).args([src, dest]).output().expect("run")
}

fn json(output: &Output) -> Value {
    serde_json::from_slice(&output.stdout).expect("JSON")
}

#[test]
fn a_salvage_ends_0_without_a_loss_and_1_with_the_list_of_what_is_lost() {
    let dir = tempfile::tempdir().expect("a folder");
    let (src, whole, rest) = (dir.path().join("src"), dir.path().join("whole"), dir.path().join("rest"));
    let options = Options { segment_bytes: 64 * 1024, ..Options::default() };
    let mut store = LogStore::open(&src, options, Arc::new(|| {})).expect("open");
    let mut history = History::new(3);
    for _ in 0..30 {
        store.append(&history.group(9)).expect("append");
    }
    store.close(history.tick()).expect("close");

    let done = salvage(&src, &whole);
    assert_eq!(done.status.code(), Some(0), "{done:?}");
    assert_eq!(json(&done)["losses"], serde_json::json!([]));
    let report = verify(&whole).expect("verify");
    assert_eq!((report.problems.len(), report.messages), (0, history.model().len() as u64));
    assert!(!dir.path().join("whole.partial").exists());

    let again = salvage(&src, &whole);
    assert_eq!(again.status.code(), Some(1), "the new folder must not be there");
    assert!(String::from_utf8_lossy(&again.stderr).contains("exists"), "{again:?}");

    let journal = src.join("journal/0000000001.log");
    let mut bytes = fs::read(&journal).expect("read");
    bytes[4_096 + 60] ^= 1;
    fs::write(&journal, &bytes).expect("write");
    let lossy = salvage(&src, &rest);
    assert_eq!(lossy.status.code(), Some(1), "{lossy:?}");
    let told = json(&lossy);
    assert_eq!(told["losses"][0]["kind"], "records", "{told}");
    assert!(told["damage"][0].as_str().expect("a place").starts_with("journal/0000000001.log"), "{told}");
    assert_eq!(fs::read(&journal).expect("read"), bytes, "the damaged folder stays as it is");
    let report = verify(&rest).expect("verify");
    assert_eq!((report.problems.len(), Some(report.messages)), (0, told["messages"].as_u64()));

    let usage = Command::new(BINARY).arg("salvage").output().expect("run");
    assert_eq!(usage.status.code(), Some(2));
}
