//! Imports that are killed, cut off or repeated.

use super::*;

/// Kills the importer again and again while it works, and another kind of trouble between two runs.
fn interrupted(binlog: bool, drain: bool) {
    let target = Target::new();
    let folder = target.folder("binlog");
    let start = || if binlog { Beanstalkd::start_on(&folder) } else { Beanstalkd::start() };
    let mut source = start();
    let mut client = source.client();
    let mut expected = BTreeSet::new();
    for (what, delay) in [("r", 0), ("d", 1_000)] {
        client.put_many("t", delay, what, 6_000);
        expected.extend((0..6_000).map(|n| format!("{what}{n}")));
    }
    if drain {
        source.drain();
    }
    let mut consumed = Vec::new();
    for round in 1..=6 {
        let mut importer = Importer::start(&mut target.import(&source.address, &[]));
        let begun = Instant::now();
        // At another moment of a batch each time.
        let moved = target.held("t") + consumed.len() as u64 + round * 300;
        while target.held("t") + (consumed.len() as u64) < moved && source.jobs() > 1 {
            assert!(begun.elapsed() < PATIENCE, "the import does not go on");
        }
        std::thread::sleep(Duration::from_micros(round * 700));
        importer.kill();
        // Consumers of the new side are at work already: copies that are gone count too.
        for grant in target.reserve("t", 100) {
            target.ack(&grant);
            consumed.push(text(&body(&grant)));
        }
        if binlog && !drain {
            drop(source);
            source = start();
        }
    }
    let left = source.jobs();
    assert!(left > 1, "all was moved before the last kill: nothing was tested");
    let done = target.imports(&source.address, &[], 0);
    assert_eq!((source.jobs(), &done["not_found"]), (0, &json!(0)), "{done}");
    assert_each_once(&target, "t", &expected, &consumed);
}

#[test]
fn import_resumes_after_interruption() {
    interrupted(false, false);
}

#[test]
fn import_resumes_after_source_restart() {
    interrupted(true, false);
}

#[test]
fn import_resumes_from_draining_source() {
    interrupted(false, true);
}

#[test]
fn kill_before_delete_imports_exactly_once() {
    // The one moment at which a job is on both sides. Half of the copies are done before the second run, and the source
    // restarts: the second run must know them all the same.
    let target = Target::new();
    let folder = target.folder("binlog");
    let source = Beanstalkd::start_on(&folder);
    let mut client = source.client();
    let first = client.put_many("t", 0, "r", 40)[0];
    client.put_many("t", 1_000, "d", 40);
    let proxy = Proxy::start(&source.address, move |command| command != format!("delete {first}"));
    ended(&run(&mut target.import(&proxy.address, &[])), 1);
    assert_eq!((target.held("t"), source.jobs()), (80, 81), "on both sides, and the marker");
    let mut consumed = Vec::new();
    for grant in target.reserve("t", 20) {
        target.ack(&grant);
        consumed.push(text(&body(&grant)));
    }
    drop(source);
    let source = Beanstalkd::start_on(&folder);
    let done = target.imports(&source.address, &[], 0);
    assert_eq!((&done["moved"], source.jobs(), target.held("t")), (&json!(80), 0, 60), "{done}");
    let expected = (0..40).flat_map(|n| [format!("r{n}"), format!("d{n}")]).collect();
    assert_each_once(&target, "t", &expected, &consumed);
}
