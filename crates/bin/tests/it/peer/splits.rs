//! How the bytes are cut into packets must not matter.

use super::compare::{Ids, Normal, difference, normal};
use super::rng::Rng;
use super::server::{Kind, Server, Setup};
use super::wire::{Connection, Heard};
use crate::fixture::PATIENCE;

/// Many commands in one stream, on one tube. `{1}` to `{4}` are jobs that are there before.
const STREAM: &[&[u8]] = &[
    b"list-tubes-watched\r\nput 5 0 1000 5\r\nhello\r\nput 4 0 1000 0\r\n\r\n",
    b"put 3 0 1000 6\r\n\r\nput \r\nput 3 0 1000 2\r\n\0\xff\r\n",
    b"nonsense\r\n\r\nput x\r\nuse -\r\npeek-readyx\r\nSTATS\r\n",
    b"put 0 0 1000 3\r\nabcde\r\nput 0 0 1000 3\r\nabcde",
    b"reserve\r\nreserve\r\nreserve-with-timeout 0\r\npeek {1}\r\n",
    b"delete {2}\r\ndelete {2}\r\ntouch {3}\r\nbury {3} 1\r\nrelease {4} 0 0\r\n",
    b"list-tube-used\0\r\n",
    b"kick 3\r\npeek-ready\r\npeek-buried\r\npeek-delayed\r\n",
    b"reserve\r\nreserve\r\nreserve\r\nreserve\r\nreserve\r\nreserve-with-timeout 0\r\n",
    b"stats-job {1}\r\nstats-job {3}\r\nlist-tube-used\r\nignore default\r\nignore default\r\n",
];

/// Around a line that is too long and a body that is too big.
const LONG: [(usize, &[u8], &[u8]); 4] = [
    (222, b"", b"\r\nlist-tube-used\r\n"),
    (700, b"", b"\r\nlist-tube-used\r\n"),
    (65535, b"put 9 0 1000 65535\r\n", b"\r\nlist-tube-used\r\n"),
    (65536, b"put 9 0 1000 65536\r\n", b"\r\nlist-tube-used\r\n"),
];

#[derive(Clone, Copy, Debug)]
enum Cut {
    Nowhere,
    Everywhere,
    Anywhere,
}

#[test]
fn beanstalkd_tolerates_split_stream() {
    run(Kind::Theirs);
}

#[test]
fn duewheel_tolerates_split_stream() {
    run(Kind::Ours);
}

fn run(other: Kind) {
    let expected = replies(&Server::start(Kind::Theirs, Setup::Tcp), Cut::Nowhere, 0);
    assert_eq!(expected.len(), 55, "{expected:#?}");
    let other = Server::start(other, Setup::Tcp);
    let anywhere = (3..30).map(|seed| (seed, Cut::Anywhere));
    for (seed, cut) in [(1, Cut::Nowhere), (2, Cut::Everywhere)].into_iter().chain(anywhere) {
        let got = replies(&other, cut, seed);
        for (at, (expected, got)) in expected.iter().zip(&got).enumerate() {
            let what = difference(expected, got);
            assert!(got.is_same(expected), "seed {seed}, {cut:?}: reply {at}\n{what}");
        }
        assert_eq!(got.len(), expected.len(), "seed {seed}, {cut:?}");
    }
}

/// On a tube of its own.
fn replies(server: &Server, cut: Cut, seed: u64) -> Vec<Normal> {
    let mut rng = Rng::new(seed);
    let tube = format!("split-{seed:04}");
    let (mut connection, mut ids) = (server.connect(), Ids::default());
    let hear = |connection: &mut Connection, ids: &mut Ids| match connection.receive(PATIENCE) {
        Heard::Reply(reply) => {
            let normal = normal(server.kind, b"", &reply, ids, server.asked);
            Some(Normal { lines: normal.lines.iter().map(|line| line.replace(&tube, "split")).collect() })
        }
        Heard::Closed(begun) if begun.is_empty() => None,
        other => panic!("{:?} with {cut:?} {seed}: {other:?}", server.kind),
    };
    connection.send(format!("use {tube}\r\nwatch {tube}\r\n").as_bytes());
    connection.send(
        b"put 2 0 1000 1\r\na\r\nput 1 0 1000 1\r\nb\r\nput 0 0 1000 1\r\nc\r\nput 0 0 1000 1\r\nd\r\n",
    );
    connection.send(b"reserve\r\nreserve\r\n");
    let mut out: Vec<Normal> = (0..8).map_while(|_| hear(&mut connection, &mut ids)).collect();

    let mut stream = ids.fill_in(&STREAM.concat()).expect("ids");
    for (times, before, behind) in LONG {
        stream.extend_from_slice(before);
        stream.extend(std::iter::repeat_n(b'x', times));
        stream.extend_from_slice(behind);
    }
    stream.extend_from_slice(b"quit\r\n");
    // The long runs are not cut into single bytes: that takes long and says nothing new.
    let mut rest = stream.as_slice();
    while !rest.is_empty() {
        let plain = rest.len() > 12 && rest[..12].iter().all(|b| *b == b'x');
        let n = match cut {
            Cut::Nowhere => rest.len(),
            Cut::Everywhere if plain => 1 + rng.below(1000),
            Cut::Everywhere => 1,
            Cut::Anywhere => 1 + rng.below(if plain { 3000 } else { 40 }),
        };
        let (now, later) = rest.split_at(n.min(rest.len()));
        connection.send(now);
        rest = later;
        if rng.percent(20) {
            std::thread::yield_now();
        }
    }
    out.extend(std::iter::from_fn(|| hear(&mut connection, &mut ids)));
    out
}
