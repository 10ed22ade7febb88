//! `duewheel import`: a real beanstalkd on one side, a real server on the other.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{BufRead, BufReader, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::path::PathBuf;
use std::process::{Child, Command, Output, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant, SystemTime};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::beanstalkd::{Beanstalkd, Client};
use crate::fixture::PATIENCE;
use crate::process::{BINARY, Process, run, text};

mod interrupted;
mod stage;
mod workers;

use stage::{Importer, Proxy, Target, assert_each_once, body, due_ms, ended, ms, twice};

#[test]
fn everything_about_a_job_is_kept() {
    let target = Target::new();
    let source = Beanstalkd::start();
    let mut client = source.client();
    let every_byte: Vec<u8> = (0..=255).collect();
    let ready: [(&str, u32, u32, &[u8]); 6] = [
        ("default", 1024, 60, b"plain"),
        ("default", 0, 1, b""),
        ("default", 4_294_967_295, 4_294_967_295, &every_byte),
        ("a/b;c.$_()", 7, 120, "ümläut\r\n".as_bytes()),
        ("a/b;c.$_()", 5, 120, &[0; 3]),
        ("big", 9, 5, &[b'x'; 65_535]),
    ];
    for (tube, priority, ttr, body) in ready {
        client.put(tube, priority, 0, ttr, body);
    }
    let mut delayed = Vec::new();
    for delay in [1_000, 3_600, 1_000_000] {
        let before = ms(SystemTime::now());
        client.put("later", 3, delay, 9, format!("{delay}").as_bytes());
        delayed.push((format!("{delay}"), i64::from(delay) * 1000, before, ms(SystemTime::now())));
    }
    let begun = Instant::now();
    let done = target.imports(&source.address, &[], 0);
    let took = i64::try_from(begun.elapsed().as_millis()).expect("ms");
    assert_eq!(
        (&done["moved"], &done["in_source"], &done["refused"]),
        (&json!(9), &json!(0), &json!(0)),
        "{done}"
    );
    assert_eq!(source.jobs(), 0);

    let mut seen = Vec::new();
    for tube in ["default", "a/b;c.$_()", "big"] {
        for message in target.messages(tube) {
            assert_eq!(message["state"], "ready", "{message}");
            assert_eq!(message["max_attempts"], 4_294_967_295_u64, "{message}");
            let number = |name: &str| message[name].as_u64().expect("number");
            seen.push((tube, number("priority"), number("lease_ms"), body(&message)));
        }
    }
    let mut expected: Vec<_> = ready
        .iter()
        .map(|(tube, priority, ttr, body)| {
            (*tube, u64::from(*priority), u64::from(*ttr) * 1000, body.to_vec())
        })
        .collect();
    seen.sort();
    expected.sort();
    assert!(seen == expected, "{seen:?}");

    let later = target.messages("later");
    assert_eq!(later.len(), 3);
    for (message, (body, delay, before, after)) in later.iter().zip(delayed) {
        assert_eq!((&message["body"], &message["state"]), (&json!(body), &json!("scheduled")));
        let due = due_ms(message);
        assert!(due >= before + delay, "{} ms early", before + delay - due);
        // A second for the rounding of the source, and what lay between its answer and ours at most.
        assert!(due <= after + delay + 1_000 + took, "{} ms late", due - after - delay);
    }
    let queues = target.server.call("GET", "/v1/queues", "").1;
    let names: Vec<_> =
        queues["queues"].as_array().expect("queues").iter().map(|q| q["queue"].clone()).collect();
    assert_eq!(names, ["a/b;c.$_()", "big", "default", "later"], "nothing of ours is left");
    assert!(
        !text(&client.data("list-tubes").expect("tubes")).contains("duewheel"),
        "nothing of ours is left"
    );
}

#[test]
fn buried_jobs_arrive_dead_in_order() {
    let target = Target::new();
    let source = Beanstalkd::start();
    let mut client = source.client();
    let order: Vec<u32> = (0..20).map(|n| n * 7 % 20).collect();
    for n in 0..20 {
        let place = order.iter().position(|m| *m == n).expect("place");
        client.put("b", u32::try_from(place).expect("small"), 0, 60, format!("n{n}").as_bytes());
    }
    client.put_many("b", 500, "later", 2);
    client.ask("watch b");
    for n in &order {
        let id = n + 1;
        assert_eq!(client.ask("reserve"), format!("RESERVED {id} {}", format!("n{n}").len()));
        client.line();
        assert_eq!(client.ask(&format!("bury {id} {n}")), "BURIED");
    }
    let done = target.imports(&source.address, &[], 0);
    assert_eq!(
        (&done["moved"], &done["tubes"][0]["buried"], source.jobs()),
        (&json!(22), &json!(20), 0),
        "{done}"
    );
    assert_eq!(target.counts("b")["dead"], 20);
    let mut seen = Vec::new();
    for _ in 0..20 {
        let (status, done) = target.server.call("POST", "/v1/queues/b/redrive", r#"{"max": 1}"#);
        assert_eq!((status, &done["redriven"]), (200, &json!(1)), "{done}");
        let grants = target.reserve("b", 10);
        assert_eq!(grants.len(), 1, "{grants:?}");
        seen.push(grants[0]["body"].as_str().expect("text").to_owned());
        assert_eq!(
            grants[0]["priority"].to_string(),
            seen.last().expect("one")[1..],
            "as it was buried with"
        );
        target.ack(&grants[0]);
    }
    let expected: Vec<String> = order.iter().map(|n| format!("n{n}")).collect();
    assert_eq!(seen, expected);
}

#[test]
fn reserved_job_moves_on_later_run() {
    let target = Target::new();
    let source = Beanstalkd::start();
    let mut worker = source.client();
    worker.put_many("t", 0, "n", 3);
    worker.ask("watch t");
    assert!(worker.ask("reserve").starts_with("RESERVED 1 "));
    worker.line();
    let output = run(&mut target.import(&source.address, &[]));
    ended(&output, 1);
    assert!(text(&output.stderr).contains("workers have 1 job: "), "{}", text(&output.stderr));
    assert!(
        text(&output.stdout)
            .contains("TUBE  READY  DELAYED  BURIED  HELD  REFUSED\nt     2      0        0       1     0")
    );
    assert_eq!((source.jobs(), target.held("t")), (1, 2));
    let done = target.imports(&source.address, &["--wait", "10ms"], 1);
    assert_eq!((&done["moved"], &done["held"]), (&json!(0), &json!(1)));
    // One run waits, and the worker gives the job back meanwhile.
    let mut importer = Importer::start(&mut target.import(&source.address, &["--wait", "10m"]));
    std::thread::sleep(Duration::from_millis(50));
    assert_eq!(worker.ask("release 1 2 0"), "RELEASED");
    assert_eq!(importer.0.wait().expect("wait").code(), Some(0));
    assert_eq!(source.jobs(), 0);
    let mut bodies = target.consume("t");
    bodies.sort();
    assert_eq!(bodies, ["n0", "n1", "n2"]);
}

#[test]
fn import_moves_only_selected_tubes() {
    let target = Target::new();
    let source = Beanstalkd::start();
    let mut client = source.client();
    client.put_many("old", 500, "first", 1);
    for _ in 0..100 {
        let ids = client.put_many("gone", 0, "x", 1_000);
        client.send(ids.iter().map(|id| format!("delete {id}\r\n")).collect::<String>().as_bytes());
        ids.iter().for_each(|_| assert_eq!(client.line(), "DELETED"));
    }
    client.put_many("live", 0, "n", 50);
    client.put_many("other", 0, "o", 5);
    let done = target.imports(&source.address, &["--tube", "live", "--tube", "old", "--tube", "none"], 0);
    assert_eq!((&done["moved"], source.jobs()), (&json!(51), 5), "{done}");
    assert_eq!((target.held("live"), target.held("old"), target.held("other")), (50, 1, 0));
    let done = target.imports(&source.address, &["--prefix", "from-b/"], 0);
    assert_eq!((&done["moved"], source.jobs()), (&json!(5), 0), "{done}");
    assert_eq!(
        target.consume("from-b%2Fother"),
        ["o0", "o1", "o2", "o3", "o4"],
        "in the order they were put"
    );
}

#[test]
fn copy_leaves_source_unchanged() {
    let target = Target::new();
    let source = Beanstalkd::start();
    let mut client = source.client();
    let ready = client.put_many("t", 0, "n", 700);
    client.put_many("t", 1_000, "later", 30);
    for _ in 0..2 {
        let done = target.imports(&source.address, &["--copy"], 0);
        assert_eq!((&done["moved"], &done["in_source"]), (&json!(730), &json!(730)), "{done}");
        assert_eq!(target.counts("t")["ready"], 700);
        assert_eq!(target.counts("t")["scheduled"], 30);
        assert_eq!(source.jobs(), 730);
        assert_eq!(client.job(ready[0], "reserves").as_deref(), Some("0"));
    }
    // Copies that were thrown away are not taken for moved jobs.
    assert_eq!(target.server.call("POST", "/v1/queues/t/purge", "{}").0, 200);
    let done = target.imports(&source.address, &[], 0);
    assert_eq!((&done["moved"], &done["before"], source.jobs()), (&json!(730), &json!(0), 0), "{done}");
    assert_eq!((target.held("t"), target.counts("t")["ready"].as_u64()), (730, Some(700)));
}

#[test]
fn refused_jobs_stay_in_source() {
    let target = Target::with(&["--max-body", "1000", "--beanstalk-max-job-size", "1000"]);
    let source = Beanstalkd::start();
    let mut client = source.client();
    client.put_many("t", 0, "n", 3);
    let large = client.put("t", 9, 0, 60, &[b'x'; 1_001]);
    let later = client.put("t", 9, 500, 60, &[b'y'; 2_000]);
    client.put_many("t", 0, "n", 3);
    let output = run(target.import(&source.address, &[]).arg("--json"));
    ended(&output, 1);
    let done: Value = serde_json::from_slice(&output.stdout).expect("json");
    assert_eq!(
        (&done["moved"], &done["refused"], &done["in_source"]),
        (&json!(6), &json!(2), &json!(2)),
        "{done}"
    );
    let said = text(&output.stderr);
    assert!(said.contains(&format!("job {large} of tube t, 1001 bytes, stays: body_too_large")), "{said}");
    assert!(said.contains(&format!("job {later} of tube t, 2000 bytes, stays: body_too_large")), "{said}");
    assert_eq!(client.job(large, "state").as_deref(), Some("ready"));
    assert_eq!(client.job(large, "pri").as_deref(), Some("9"));
    assert_eq!(client.job(later, "state").as_deref(), Some("delayed"));
}

#[test]
fn large_bodies_take_several_requests() {
    let target = Target::with(&["--max-body", "16000000"]);
    let source = Beanstalkd::start_with(&["-z", "20000000"]);
    let mut client = source.client();
    let sizes = [3_000_000, 3_000_000, 10, 6_000_000, 11_534_336, 11_534_337, 20, 900_000, 5_000_000];
    for (n, size) in sizes.into_iter().enumerate() {
        client.put("t", 1, 0, 60, &vec![u8::try_from(n).expect("small") + 0xf0; size]);
    }
    let done = target.imports(&source.address, &[], 1);
    assert_eq!((&done["moved"], &done["refused"]), (&json!(8), &json!(1)), "{done}");
    assert_eq!(done["refusals"][0]["size"], 11_534_337);
    assert_eq!((source.jobs(), client.job(6, "state").as_deref()), (1, Some("ready")));
    assert_eq!(target.held("t"), 8);
    for n in 0..8 {
        let grant = target.reserve("t", 1).remove(0);
        let (at, bytes) = (if n < 5 { n } else { n + 1 }, body(&grant));
        assert_eq!(bytes.len(), sizes[at], "in the order they were put");
        assert!(bytes.iter().all(|b| usize::from(*b) == at + 0xf0));
    }
}

#[test]
fn other_source_with_same_ids_imports() {
    let target = Target::new();
    for round in 1..=3 {
        let source = Beanstalkd::start();
        source.client().put_many("t", 0, "n", 10);
        if round == 3 {
            source.drain();
        }
        let done = target.imports(&source.address, &[], 0);
        assert_eq!((&done["moved"], &done["before"], target.held("t")), (&json!(10), &json!(0), round * 10));
    }
}

#[test]
fn draining_source_with_high_ids_imports() {
    // With a binlog ids go on after a restart, and total-jobs begins at 0.
    let target = Target::new();
    let folder = target.folder("binlog");
    let source = Beanstalkd::start_on(&folder);
    let mut client = source.client();
    let mut live = client.put_many("a", 900, "old", 2);
    for _ in 0..20 {
        let ids = client.put_many("gone", 0, "x", 1_000);
        client.send(ids.iter().map(|id| format!("delete {id}\r\n")).collect::<String>().as_bytes());
        ids.iter().for_each(|_| assert_eq!(client.line(), "DELETED"));
    }
    // Behind the heads of its tube on both sides.
    live.extend(client.put_many("a", 1_000, "new", 30));
    live.push(client.put("a", 1, 0, 60, b"head"));
    live.push(client.put("a", 2, 0, 60, b"behind"));
    drop(source);
    let source = Beanstalkd::start_on(&folder);
    source.drain();
    assert_eq!(source.client().stats("total-jobs"), "0");
    let done = target.imports(&source.address, &[], 0);
    assert_eq!((&done["moved"], source.jobs()), (&json!(live.len()), 0), "{done}");
    assert_eq!(target.held("a"), live.len() as u64);
}

#[test]
fn import_survives_server_kills() {
    let dir = TempDir::new().expect("dir");
    let source = Beanstalkd::start();
    source.client().put_many("t", 0, "n", 8_000);
    let mut target = Target { server: Process::start(&dir.path().join("data"), &[]), dir };
    let address = target.server.url.trim_start_matches("http://").to_owned();
    let mut importer = Importer::start(&mut target.import(&source.address, &[]));
    for round in 1..=3 {
        let begun = Instant::now();
        while target.held("t") < round * 1_000 {
            assert!(begun.elapsed() < PATIENCE, "the import does not go on");
        }
        target.server = target.server.killed_and_restarted(&target.dir.path().join("data"), &address);
    }
    assert_eq!(importer.0.wait().expect("wait").code(), Some(0));
    assert_eq!((source.jobs(), target.held("t")), (0, 8_000));
    assert_each_once(&target, "t", &(0..8_000).map(|n| format!("n{n}")).collect(), &[]);
}

#[test]
fn a_source_behind_a_unix_socket() {
    let target = Target::new();
    let socket = target.dir.path().join("b.sock");
    let address = format!("unix:{}", socket.display());
    let mut child = Command::new("beanstalkd").args(["-l", &address]).spawn().expect("beanstalkd");
    let begun = Instant::now();
    while std::os::unix::net::UnixStream::connect(&socket).is_err() && begun.elapsed() < PATIENCE {
        std::thread::sleep(Duration::from_millis(2));
    }
    let mut put = std::os::unix::net::UnixStream::connect(&socket).expect("connect");
    put.write_all(b"put 1 0 60 2\r\nhi\r\n").expect("write");
    let mut said = String::new();
    BufReader::new(&put).read_line(&mut said).expect("read");
    let done = target.imports(&address, &[], 0);
    let _ = child.kill();
    let _ = child.wait();
    assert_eq!((said.trim_end(), &done["moved"]), ("INSERTED 1", &json!(1)));
    assert_eq!(target.consume("default"), ["hi"]);
}

#[test]
fn duewheel_source_imports_but_not_itself() {
    let target = Target::new();
    let dir = TempDir::new().expect("dir");
    let mut server = Process::start(&dir.path().join("data"), &["--beanstalk", "127.0.0.1:0"]);
    let source = server.beanstalk();
    let mut client = Client::connect(&source);
    client.put_many("t", 0, "r", 600);
    client.put_many("t", 1_000, "d", 600);
    client.ask("watch t");
    assert!(client.ask("reserve").starts_with("RESERVED "));
    client.line();
    assert_eq!(client.ask("bury 1 9"), "BURIED");
    for more in [&[][..], &["--copy"]] {
        let output = run(Command::new(BINARY)
            .args(["import", "--beanstalk", &source, "--server", &server.url])
            .args(more));
        ended(&output, 2);
        assert!(text(&output.stderr).contains("the server itself"), "{}", text(&output.stderr));
        // A tube goes with the last connection that uses it.
        let begun = Instant::now();
        while server.call("GET", "/v1/queues", "").1.to_string().contains("duewheel-import") {
            assert!(begun.elapsed() < PATIENCE, "a marker is left");
        }
    }
    let done = target.imports(&source, &[], 0);
    assert_eq!((&done["moved"], &done["in_source"]), (&json!(1_200), &json!(0)), "{done}");
    let counts = target.counts("t");
    assert_eq!(
        (&counts["ready"], &counts["scheduled"], &counts["dead"]),
        (&json!(599), &json!(600), &json!(1))
    );
}

#[test]
fn wrong_uses_are_one_clear_line() {
    let target = Target::new();
    let source = Beanstalkd::start();
    let nobody = TcpListener::bind("127.0.0.1:0").expect("bind").local_addr().expect("address").to_string();
    for (from, more, code, says) in [
        (&*nobody, &[][..], 5, "cannot reach a beanstalkd"),
        ("unix:/nowhere", &[], 5, "cannot reach a beanstalkd"),
        (target.server.url.trim_start_matches("http://"), &[], 1, "this is no beanstalkd"),
        (&*source.address, &["--tube", "a b"], 2, "--tube"),
    ] {
        let output = run(&mut target.import(from, more));
        ended(&output, code);
        let said = text(&output.stderr);
        assert!(said.starts_with("duewheel: ") && said.lines().count() == 1 && said.contains(says), "{said}");
    }
    let typo = run(&mut target.import(&source.address, &["--wait", "soon"]));
    ended(&typo, 2);
    assert!(text(&typo.stderr).contains("invalid value 'soon' for '--wait <TIME>'"), "{typo:?}");
    source.client().put("t", 1, 0, 60, b"x");
    let mut command = Command::new(BINARY);
    command.args(["import", "--beanstalk", &source.address, "--server", &format!("http://{nobody}")]);
    ended(&run(&mut command), 5);
    assert_eq!(source.jobs(), 1);
}
