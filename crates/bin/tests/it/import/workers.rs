//! Sources that are in use meanwhile.

use super::*;

/// A worker of the source takes a delayed job between our answer and the delete.
fn taken_meanwhile(
    more: &[&str],
    then: impl Fn(&mut Client, u64) + Send + 'static,
    before: impl Fn(&Target) + Send + Sync + 'static,
) -> (Arc<Target>, Beanstalkd, Value) {
    let target = Arc::new(Target::new());
    let source = Beanstalkd::start();
    let mut worker = source.client();
    worker.put_many("t", 1_000, "other", 5);
    let id = worker.put("t", 1, 1_000, 60, b"wanted");
    worker.ask("watch t");
    let held = Mutex::new(Some((worker, then)));
    // The proxy lives as long as the test's process, the server must not.
    let theirs = Arc::downgrade(&target);
    let proxy = Proxy::start(&source.address, move |command| {
        if command == format!("delete {id}")
            && let Some((mut worker, then)) = held.lock().expect("lock").take()
        {
            before(&theirs.upgrade().expect("target"));
            assert_eq!(worker.ask(&format!("kick-job {id}")), "KICKED");
            assert!(worker.ask("reserve").starts_with(&format!("RESERVED {id} ")));
            worker.line();
            std::thread::spawn(move || then(&mut worker, id));
        }
        true
    });
    let output = run(target.import(&proxy.address, more).arg("--json"));
    assert!(!text(&output.stderr).contains("panicked"), "{}", text(&output.stderr));
    let done = serde_json::from_slice(&output.stdout).unwrap_or_else(|_| panic!("{}", text(&output.stderr)));
    (target, source, done)
}

#[test]
fn worker_taken_job_is_not_imported() {
    let (target, source, done) = taken_meanwhile(
        &["--wait", "10m"],
        |worker, id| {
            std::thread::sleep(Duration::from_millis(100));
            assert_eq!(worker.ask(&format!("delete {id}")), "DELETED");
        },
        |_| {},
    );
    assert_eq!(
        (&done["moved"], &done["left_to_workers"], &done["may_run_twice"]),
        (&json!(5), &json!(1), &json!(0)),
        "{done}"
    );
    assert_eq!((source.jobs(), target.held("t")), (0, 5));
}

#[test]
fn released_job_is_copied_again() {
    // The dedupe id of the cancelled copy would answer with that copy: the job would be deleted and nobody had it.
    let (target, source, done) = taken_meanwhile(
        &["--wait", "10m"],
        |worker, id| {
            std::thread::sleep(Duration::from_millis(700));
            assert_eq!(worker.ask(&format!("release {id} 1 1000")), "RELEASED");
        },
        |_| {},
    );
    assert_eq!((&done["moved"], &done["left_to_workers"]), (&json!(6), &json!(1)), "{done}");
    assert_eq!((source.jobs(), target.held("t")), (0, 6));
    assert_eq!(target.messages("t").iter().filter(|m| m["body"] == "wanted").count(), 1);
}

#[test]
fn cancelled_copy_note_survives_interruption() {
    for drain in [false, true] {
        let target = Target::new();
        let source = Beanstalkd::start();
        let mut worker = source.client();
        let id = worker.put("t", 1, 1_000, 60, b"wanted");
        if drain {
            source.drain();
        }
        let worker = Arc::new(Mutex::new((Some(worker), 0)));
        let same = worker.clone();
        let proxy = Proxy::start(&source.address, move |command| {
            let mut held = same.lock().expect("lock");
            let (Some(worker), looks) = &mut *held else { return false };
            if command == format!("delete {id}") {
                assert_eq!(worker.ask(&format!("kick-job {id}")), "KICKED");
                worker.ask("watch t");
                assert!(worker.ask("reserve").starts_with(&format!("RESERVED {id} ")));
                worker.line();
            } else if command == format!("stats-job {id}")
                && worker.job(id, "state").as_deref() == Some("reserved")
            {
                // At the first look it learns who has the job and cancels the copy. At the second it ends here.
                *looks += 1;
                return *looks == 1;
            }
            true
        });
        ended(&run(&mut target.import(&proxy.address, &[])), 1);
        assert_eq!((target.held("t"), source.jobs()), (0, if drain { 1 } else { 2 }));
        // The worker hangs up, which gives the job back.
        drop((proxy, worker.lock().expect("lock").0.take()));
        let begun = Instant::now();
        let mut client = source.client();
        while client.job(id, "state").as_deref() == Some("reserved") {
            assert!(begun.elapsed() < PATIENCE, "the worker keeps the job");
            std::thread::sleep(Duration::from_millis(5));
        }
        let done = target.imports(&source.address, &[], 0);
        assert_eq!((source.jobs(), &done["moved"]), (0, &json!(1)), "{done}");
        assert_eq!(target.consume("t"), ["wanted"]);
        let queues = target.server.call("GET", "/v1/queues", "").1;
        assert_eq!(queues["queues"], json!([]), "nothing of ours is left");
    }
}

#[test]
fn import_reports_jobs_possibly_run_twice() {
    let (target, source, done) = taken_meanwhile(
        &["--wait", "10m"],
        |worker, id| {
            std::thread::sleep(Duration::from_millis(100));
            assert_eq!(worker.ask(&format!("delete {id}")), "DELETED");
        },
        |target| {
            let message = target.messages("t").into_iter().find(|m| m["body"] == "wanted").expect("copy");
            let path = format!("/v1/messages/{}/fire", message["id"].as_str().expect("id"));
            assert_eq!(target.server.call("POST", &path, "{}").0, 200);
            assert_eq!(target.reserve("t", 1)[0]["body"], "wanted");
        },
    );
    assert_eq!((&done["moved"], &done["may_run_twice"]), (&json!(5), &json!(1)), "{done}");
    assert_eq!((source.jobs(), target.held("t")), (0, 6));
}

/// Takes jobs until told to stop: deletes, gives back now or later, buries, each now and then. What it deleted.
fn worker(mut client: Client, seed: u32, stop: &AtomicBool) -> Vec<String> {
    client.ask("watch t");
    client.ask("use t");
    let (mut done, mut dice) = (Vec::new(), seed);
    while !stop.load(Ordering::Relaxed) {
        let line = client.ask("reserve-with-timeout 0");
        dice = dice.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        let Some(id) =
            line.strip_prefix("RESERVED ").and_then(|rest| rest.split(' ').next().map(str::to_owned))
        else {
            client.ask("kick 3");
            std::thread::sleep(Duration::from_millis(2));
            continue;
        };
        let body = client.line();
        std::thread::sleep(Duration::from_micros(u64::from(dice >> 20)));
        let settled = match (dice >> 16) % 8 {
            0..=2 => client.ask(&format!("delete {id}")),
            3 | 4 => client.ask(&format!("release {id} 9 0")),
            5 | 6 => client.ask(&format!("release {id} 9 1")),
            _ => client.ask(&format!("bury {id} 9")),
        };
        match &*settled {
            "DELETED" => done.push(body),
            "RELEASED" | "BURIED" | "NOT_FOUND" => {}
            other => panic!("{other}"),
        }
    }
    done
}

#[test]
fn busy_source_jobs_run_once() {
    let (target, expected, consumed) = busy(false);
    assert_each_once(&target, "t", &expected, &consumed);
}

#[test]
fn killed_import_beside_workers_loses_nothing() {
    // Its copy is there, it is not deleted, and before the next run a worker does it: a job of the batch in doubt may
    // be done twice, as docs/import.md says.
    let (target, expected, consumed) = busy(true);
    assert!(twice(&target, "t", &expected, &consumed).len() <= 500, "more than one batch");
}

fn busy(kill: bool) -> (Target, BTreeSet<String>, Vec<String>) {
    let target = Target::new();
    let source = Beanstalkd::start();
    let stop = AtomicBool::new(false);
    let mut expected: BTreeSet<String> = (0..3_000).map(|n| format!("a{n}")).collect();
    source.client().put_many("t", 0, "a", 3_000);
    let consumed = std::thread::scope(|scope| {
        let workers: Vec<_> = (1..=3)
            .map(|seed| {
                let (client, stop) = (source.client(), &stop);
                scope.spawn(move || worker(client, seed, stop))
            })
            .collect();
        let producer = scope.spawn(|| {
            let mut client = source.client();
            for round in 0..30 {
                client.put_many("t", round % 3, &format!("p{round}-"), 20);
                std::thread::sleep(Duration::from_millis(20));
            }
        });
        expected.extend((0..30).flat_map(|round| (0..20).map(move |n| format!("p{round}-{n}"))));
        if kill {
            let mut importer = Importer::start(&mut target.import(&source.address, &[]));
            let begun = Instant::now();
            while target.held("t") < 300 && begun.elapsed() < PATIENCE {}
            importer.kill();
        }
        for _ in 0..4 {
            let output = run(&mut target.import(&source.address, &["--wait", "300ms"]));
            assert!(matches!(output.status.code(), Some(0 | 1)), "{}", text(&output.stderr));
        }
        producer.join().expect("producer");
        stop.store(true, Ordering::Relaxed);
        workers.into_iter().flat_map(|worker| worker.join().expect("worker")).collect::<Vec<_>>()
    });
    let done = target.imports(&source.address, &[], 0);
    assert_eq!((source.jobs(), &done["not_found"]), (0, &json!(0)), "{done}");
    assert!(!consumed.is_empty() && target.held("t") > 0, "both sides had work");
    (target, expected, consumed)
}
