//! What beanstalkd loses when it ends and ours keeps: the same folder, a killed process, a new one.

use std::time::{Duration, Instant};

use super::server::{Kind, Server, Setup};
use super::wire::{Connection, Heard, show};
use crate::fixture::PATIENCE;

/// A kill in the middle of things, and an orderly end.
const ENDS: [&str; 2] = ["-KILL", "-TERM"];

fn at_each_end(check: impl Fn(&str) + Sync) {
    std::thread::scope(|scope| {
        let threads: Vec<_> = ENDS
            .map(|end| {
                scope.spawn({
                    let check = &check;
                    move || check(end)
                })
            })
            .into();
        for thread in threads {
            if let Err(panic) = thread.join() {
                std::panic::resume_unwind(panic);
            }
        }
    });
}

fn ask(connection: &mut Connection, line: &str) -> String {
    connection.send(format!("{line}\r\n").as_bytes());
    match connection.receive(PATIENCE) {
        Heard::Reply(reply) => show(&reply).trim_end_matches("\\r\\n").to_owned(),
        other => panic!("{line:?}: {other:?}"),
    }
}

/// The id.
fn put(connection: &mut Connection, pri: u32, delay: u32, body: &str) -> String {
    let answer = ask(connection, &format!("put {pri} {delay} 100 {}\r\n{body}", body.len()));
    answer.strip_prefix("INSERTED ").unwrap_or_else(|| panic!("{answer}")).to_owned()
}

/// A field of a stats reply.
fn field(connection: &mut Connection, line: &str, field: &str) -> String {
    let answer = ask(connection, line);
    let found = answer.split("\\n").find_map(|line| line.strip_prefix(field)?.strip_prefix(": "));
    found.unwrap_or_else(|| panic!("no {field} in {answer}")).to_owned()
}

/// Connected to the tube `t` and to no other.
fn enter(server: &Server) -> Connection {
    let mut connection = server.connect();
    assert_eq!(ask(&mut connection, "use t"), "USING t");
    assert_eq!(ask(&mut connection, "watch t"), "WATCHING 2");
    assert_eq!(ask(&mut connection, "ignore default"), "WATCHING 1");
    connection
}

#[test]
fn release_priority_survives_restart() {
    at_each_end(|end| {
        let mut server = Server::start(Kind::Ours, Setup::Tcp);
        let mut c = enter(&server);
        let (one, two) = (put(&mut c, 10, 0, "one"), put(&mut c, 20, 0, "two"));
        assert_eq!(ask(&mut c, "reserve"), format!("RESERVED {one} 3\\r\\none"), "{end}");
        assert_eq!(ask(&mut c, &format!("release {one} 30 0")), "RELEASED", "{end}");
        server.restart(end);
        let mut c = enter(&server);
        assert_eq!(field(&mut c, &format!("stats-job {one}"), "pri"), "30", "{end}");
        assert_eq!(ask(&mut c, "reserve"), format!("RESERVED {two} 3\\r\\ntwo"), "{end}");
        assert_eq!(ask(&mut c, "reserve"), format!("RESERVED {one} 3\\r\\none"), "{end}");
    });
}

#[test]
fn counters_of_a_job_are_kept() {
    at_each_end(|end| {
        let mut server = Server::start(Kind::Ours, Setup::Tcp);
        let mut c = enter(&server);
        let id = ask(&mut c, "put 5 1000 1 3\r\none").strip_prefix("INSERTED ").expect("id").to_owned();
        let job = format!("stats-job {id}");
        // One timeout; the time to run is a second.
        ask(&mut c, &format!("reserve-job {id}"));
        server.until(Some("t"), "current-jobs-ready", "1").expect("over");
        for line in ["release ID 6 0", "release ID 7 1000", "release ID 8 0", "bury ID 9", "bury ID 10"] {
            ask(&mut c, &format!("reserve-job {id}"));
            let answer = ask(&mut c, &line.replace("ID", &id));
            assert!(["RELEASED", "BURIED"].contains(&answer.as_str()), "{line}: {answer}");
        }
        assert_eq!(ask(&mut c, &format!("kick-job {id}")), "KICKED");
        ask(&mut c, &format!("reserve-job {id}"));
        assert_eq!(ask(&mut c, &format!("release {id} 11 2000")), "RELEASED");
        let before = ask(&mut c, &job);
        for (name, value) in [
            ("state", "delayed"),
            ("pri", "11"),
            ("delay", "2000"),
            ("ttr", "1"),
            ("reserves", "7"),
            ("timeouts", "1"),
            ("releases", "4"),
            ("buries", "2"),
            ("kicks", "1"),
        ] {
            assert_eq!(field(&mut c, &job, name), value, "{end} {name}: {before}");
        }
        server.restart(end);
        let mut c = enter(&server);
        let lasting = |text: &str| -> Vec<String> {
            let moves = |line: &&str| !line.starts_with("age: ") && !line.starts_with("time-left: ");
            text.split("\\n").filter(moves).map(str::to_owned).collect()
        };
        assert_eq!(lasting(&ask(&mut c, &job)), lasting(&before), "{end}");
    });
}

#[test]
fn tube_pause_and_totals_survive_restart() {
    at_each_end(|end| {
        let mut server = Server::start(Kind::Ours, Setup::Tcp);
        let mut c = enter(&server);
        put(&mut c, 0, 0, "kept");
        for _ in 0..3 {
            let id = put(&mut c, 0, 0, "gone");
            assert_eq!(ask(&mut c, &format!("delete {id}")), "DELETED");
        }
        assert_eq!(ask(&mut c, "pause-tube t 2"), "PAUSED");
        assert_eq!(ask(&mut c, "pause-tube t 1000"), "PAUSED");
        server.restart(end);
        let mut c = enter(&server);
        for (name, value) in [
            ("current-jobs-ready", "1"),
            ("total-jobs", "4"),
            ("cmd-delete", "3"),
            ("cmd-pause-tube", "2"),
            ("pause", "1000"),
        ] {
            assert_eq!(field(&mut c, "stats-tube t", name), value, "{end} {name}");
        }
        let left: u64 = field(&mut c, "stats-tube t", "pause-time-left").parse().expect("seconds");
        assert!((900..1000).contains(&left), "{end}: {left}");
        assert_eq!(ask(&mut c, "reserve-with-timeout 0"), "TIMED_OUT", "{end}");
        assert_eq!(ask(&mut c, "pause-tube t 0"), "PAUSED");
        assert!(ask(&mut c, "reserve-with-timeout 5").starts_with("RESERVED "), "{end}");
    });
}

#[test]
fn buried_job_order_survives_restart() {
    at_each_end(|end| {
        let mut server = Server::start(Kind::Ours, Setup::Tcp);
        let mut c = enter(&server);
        let ids: Vec<String> = (0..5).map(|n| put(&mut c, 5 - n, 0, "x")).collect();
        let order = [2, 0, 4, 1, 3];
        for at in order {
            ask(&mut c, &format!("reserve-job {}", ids[at]));
            assert_eq!(ask(&mut c, &format!("bury {} {}", ids[at], 10 + at)), "BURIED");
        }
        server.restart(end);
        let mut c = enter(&server);
        for at in order {
            assert_eq!(ask(&mut c, "peek-buried"), format!("FOUND {} 1\\r\\nx", ids[at]), "{end}");
            assert_eq!(ask(&mut c, "kick 1"), "KICKED 1", "{end}");
        }
        // Each has the priority of its bury.
        for id in &ids {
            assert_eq!(ask(&mut c, "reserve"), format!("RESERVED {id} 1\\r\\nx"), "{end}");
        }
    });
}

#[test]
fn due_times_are_kept() {
    at_each_end(|end| {
        let mut server = Server::start(Kind::Ours, Setup::Tcp);
        let mut c = enter(&server);
        let begun = Instant::now();
        let soon = put(&mut c, 0, 5, "soon");
        let late = put(&mut c, 0, 1000, "late");
        let stored = begun.elapsed();
        // A process that counts the delay from its start would be late by this.
        std::thread::sleep(Duration::from_millis(3000));
        server.restart(end);
        let mut c = enter(&server);
        // At most what was left when this is asked; a second for rounding.
        let left = |c: &mut Connection, id: &str, delay: u64| {
            let most = Duration::from_secs(delay + 1) + stored;
            let most = most.saturating_sub(begun.elapsed());
            let left = field(c, &format!("stats-job {id}"), "time-left").parse().expect("seconds");
            assert!(
                Duration::from_secs(left) <= most,
                "{end}: {left} s of {delay} are left, {most:?} at most"
            );
            left
        };
        left(&mut c, &soon, 5);
        // Unless the machine was so slow that it is due already.
        if begun.elapsed() < Duration::from_millis(4500) {
            assert_eq!(ask(&mut c, "reserve-with-timeout 0"), "TIMED_OUT", "{end}");
            assert_eq!(field(&mut c, &format!("stats-job {soon}"), "state"), "delayed", "{end}");
        }
        assert_eq!(ask(&mut c, "reserve-with-timeout 30"), format!("RESERVED {soon} 4\\r\\nsoon"), "{end}");
        let waited = begun.elapsed();
        // A delay ends to the millisecond; the put was there a little after `begun`.
        assert!(waited >= Duration::from_millis(4995), "{end}: early, after {waited:?}");
        assert_eq!(ask(&mut c, "peek-delayed"), format!("FOUND {late} 4\\r\\nlate"), "{end}");
        assert!(left(&mut c, &late, 1000) >= 900, "{end}");
    });
}

#[test]
fn a_reserved_job_is_ready_again() {
    at_each_end(|end| {
        let mut server = Server::start(Kind::Ours, Setup::Tcp);
        let mut c = enter(&server);
        let id = put(&mut c, 5, 0, "one");
        assert_eq!(ask(&mut c, "reserve"), format!("RESERVED {id} 3\\r\\none"));
        server.restart(end);
        let mut c = enter(&server);
        assert_eq!(field(&mut c, &format!("stats-job {id}"), "state"), "ready", "{end}");
        assert_eq!(ask(&mut c, &format!("release {id} 0 0")), "NOT_FOUND", "{end}");
        assert_eq!(ask(&mut c, "reserve-with-timeout 5"), format!("RESERVED {id} 3\\r\\none"), "{end}");
        assert_eq!(field(&mut c, &format!("stats-job {id}"), "reserves"), "2", "{end}");
        assert_eq!(ask(&mut c, &format!("delete {id}")), "DELETED", "{end}");
        server.restart(end);
        let mut c = enter(&server);
        assert_eq!(ask(&mut c, &format!("peek {id}")), "NOT_FOUND", "{end}");
    });
}
