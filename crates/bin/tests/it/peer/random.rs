//! Random sequences of commands in lockstep: one command to both, one reply from both.
//!
//! Left out is what is a race by nature: two connections that wait on the same tube, and times that end during the run.
//! So a delay is 0 or at least 1000 s, and no two delays of a sequence are near each other. A job with the shortest
//! time to run is reserved and deleted within that second; a sequence in which that took longer says nothing, and is
//! done again.

use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use super::compare::Normal;
use super::pair::{Difference, Pair};
use super::rng::Rng;
use super::server::{Kind, Setup};
use crate::fixture::PATIENCE;

/// Commands in a sequence.
const COMMANDS: usize = 60;

/// Pairs of servers, each with its share of the sequences.
const PAIRS: usize = 3;

/// The largest body that beanstalkd takes by default.
const MAX_BODY: u64 = 65535;

#[test]
fn two_beanstalkds_answer_random_commands_alike() {
    run(Kind::Theirs, 50);
}

#[test]
fn ours_answers_random_commands_like_beanstalkd() {
    run(Kind::Ours, 150);
}

fn run(other: Kind, sequences: u64) {
    let number = |name| {
        std::env::var(name)
            .ok()
            .map(|n: String| n.parse::<u64>().unwrap_or_else(|e| panic!("{name}={n}: {e}")))
    };
    if let Some(seed) = number("DUEWHEEL_PEER_SEED") {
        let mut pair = Pair::start(other, Setup::Tcp);
        return sequence(&mut pair, seed).unwrap_or_else(|what| panic!("{what}"));
    }
    let sequences = number("DUEWHEEL_PEER_SEQUENCES").unwrap_or(sequences);
    let (next, failed, late) = (AtomicU64::new(0), AtomicBool::new(false), AtomicU64::new(0));
    let differences = Mutex::new(Vec::new());
    std::thread::scope(|scope| {
        for _ in 0..PAIRS {
            scope.spawn(|| {
                let mut pair = Pair::start(other, Setup::Tcp);
                while !failed.load(Ordering::Relaxed) {
                    let seed = next.fetch_add(1, Ordering::Relaxed);
                    if seed >= sequences {
                        return;
                    }
                    let begun = Instant::now();
                    let outcome = loop {
                        let outcome = sequence(&mut pair, seed);
                        let is_late = outcome.as_ref().is_err_and(|what| what == TOO_LATE);
                        if !is_late || begun.elapsed() > PATIENCE {
                            break outcome;
                        }
                        late.fetch_add(1, Ordering::Relaxed);
                        pair = Pair::start(other, Setup::Tcp);
                    };
                    if let Err(what) = outcome {
                        failed.store(true, Ordering::Relaxed);
                        differences.lock().expect("differences").push(what);
                    }
                }
            });
        }
    });
    let differences = differences.into_inner().expect("differences");
    assert!(differences.is_empty(), "{}", differences.join("\n\n"));
    println!("{} of {sequences} sequences were too slow to tell anything, and done again", late.into_inner());
}

/// The error has the transcript so far and says how to repeat it.
fn sequence(pair: &mut Pair, seed: u64) -> Result<(), String> {
    pair.begin_anew();
    let mut sequence = Sequence::new(pair, seed);
    let done = sequence.run();
    if sequence.too_late {
        return Err(TOO_LATE.to_owned());
    }
    done.map_err(|what| {
        let said = pair.said().join("\n");
        format!(
            "seed {seed} after\n{said}\ndiffers:\n{what}\n\nonce more: DUEWHEEL_PEER_SEED={seed} cargo test -p \
             duewheel-server --test it peer::random::ours"
        )
    })
}

struct Sequence<'a> {
    pair: &'a mut Pair,
    rng: Rng,
    connections: Vec<&'static str>,
    tubes: Vec<String>,
    /// Ids seen so far; they are called {1} to {jobs}.
    jobs: usize,
    pauses: Pauses,
    /// What each connection has reserved lately, most of it still.
    held: Vec<(&'static str, String)>,
    closes: u32,
    /// A time to run may have ended during the sequence.
    too_late: bool,
}

/// Of a sequence in which a time to run may have ended.
const TOO_LATE: &str = "too late";

/// A time to run of one second is taken for ended after this.
const LAST_SECOND: Duration = Duration::from_millis(700);

/// beanstalkd forgets the pause of a tube to which nothing refers any more, ours keeps it. So a sequence either has no
/// pauses, or tubes that stay to its end.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Pauses {
    None,
    OfTubesThatStay,
}

/// Connections that a sequence closes at most.
const MOST_CLOSES: u32 = 2;

/// Watches every tube of a sequence.
const KEEPER: &str = "K";

impl<'a> Sequence<'a> {
    fn new(pair: &'a mut Pair, seed: u64) -> Self {
        let mut rng = Rng::new(seed);
        let connections = ["A", "B", "C"][..=rng.below(3)].to_vec();
        let tubes = (0..=rng.below(3)).map(|n| format!("t{seed}-{n}")).collect();
        let pauses = if rng.percent(50) { Pauses::OfTubesThatStay } else { Pauses::None };
        Sequence {
            pair,
            rng,
            connections,
            tubes,
            jobs: 0,
            pauses,
            held: Vec::new(),
            closes: 0,
            too_late: false,
        }
    }

    fn run(&mut self) -> Result<(), Difference> {
        if self.pauses == Pauses::OfTubesThatStay {
            for tube in self.tubes.clone() {
                self.ask_line(KEEPER, &format!("watch {tube}"))?;
            }
        }
        for name in self.connections.clone() {
            self.enter(name)?;
        }
        for _ in 0..COMMANDS {
            let name = *self.rng.pick(&self.connections);
            match self.rng.below(100) {
                0..=3 => self.hand_over(name)?,
                4 => self.close(name)?,
                5..=8 => self.burst(name)?,
                9..=12 => self.last_second(name)?,
                _ => {
                    let command = self.command(name);
                    self.ask(name, &command)?;
                }
            }
        }
        self.look_around()?;
        self.clear()
    }

    /// Closes a connection, and opens it again. Ours holds a job off that was lost with its connection too often.
    fn close(&mut self, name: &'static str) -> Result<(), Difference> {
        if self.closes == MOST_CLOSES {
            return Ok(());
        }
        self.closes += 1;
        self.pair.close(name)?;
        self.enter(name)
    }

    /// A connection's first words.
    fn enter(&mut self, name: &'static str) -> Result<(), Difference> {
        let (use_, watch) = (self.rng.pick(&self.tubes).clone(), self.rng.pick(&self.tubes).clone());
        self.ask_line(name, &format!("use {use_}"))?;
        self.ask_line(name, &format!("watch {watch}"))?;
        if self.rng.percent(70) {
            self.ask_line(name, "ignore default")?;
        }
        Ok(())
    }

    fn ask(&mut self, name: &'static str, command: &[u8]) -> Result<Normal, Difference> {
        self.pair.send(name, command)?;
        self.receive(name)
    }

    fn receive(&mut self, name: &'static str) -> Result<Normal, Difference> {
        let reply = self.pair.receive(name)?;
        if reply.lines[0].starts_with("INSERTED {") {
            self.jobs += 1;
        }
        if let Some((id, _)) = reply.lines[0].strip_prefix("RESERVED ").and_then(|rest| rest.split_once(' '))
        {
            self.held.push((name, id.to_owned()));
        }
        Ok(reply)
    }

    fn ask_line(&mut self, name: &'static str, line: &str) -> Result<Normal, Difference> {
        self.ask(name, format!("{line}\r\n").as_bytes())
    }

    /// Several commands in one packet.
    fn burst(&mut self, name: &'static str) -> Result<(), Difference> {
        let commands: Vec<Vec<u8>> = (0..2 + self.rng.below(5)).map(|_| self.command(name)).collect();
        // For this one it must be known what was asked.
        if commands.iter().any(|command| command.starts_with(b"list-tubes\r")) {
            return Ok(());
        }
        self.pair.send(name, &commands.concat())?;
        commands.iter().try_for_each(|_| self.receive(name).map(drop))
    }

    /// A job whose last second begins when it is reserved: who asks for another one hears of it, unless there is one.
    fn last_second(&mut self, name: &'static str) -> Result<(), Difference> {
        let ttr = self.rng.below(2);
        let put = format!("put {} 0 {ttr} 1\r\nx\r\n", self.pri());
        let began = Instant::now();
        let done = self.in_last_second(name, put.as_bytes());
        self.too_late |= began.elapsed() > LAST_SECOND;
        if self.too_late { Err(TOO_LATE.to_owned()) } else { done }
    }

    fn in_last_second(&mut self, name: &'static str, put: &[u8]) -> Result<(), Difference> {
        let inserted = self.ask(name, put)?;
        let Some(id) =
            inserted.lines[0].strip_prefix("INSERTED ").and_then(|rest| rest.strip_suffix("\\r\\n"))
        else {
            return Ok(());
        };
        let id = id.to_owned();
        self.ask_line(name, &format!("reserve-job {id}"))?;
        for _ in 0..=self.rng.below(3) {
            match self.rng.below(4) {
                0 => self.ask_line(name, &format!("touch {id}"))?,
                1 => self.ask_line(name, "reserve-with-timeout 10")?,
                _ => self.ask_line(name, "reserve-with-timeout 0")?,
            };
        }
        self.ask_line(name, &format!("delete {id}")).map(drop)
    }

    /// One connection waits and another one puts; the wait ends with the job, or with the connection.
    fn hand_over(&mut self, waits: &'static str) -> Result<(), Difference> {
        let Some(puts) = self.connections.iter().find(|name| **name != waits).copied() else { return Ok(()) };
        if self.closes == MOST_CLOSES {
            return Ok(());
        }
        if self.ask_line(waits, "reserve-with-timeout 0")?.lines[0] != "TIMED_OUT\\r\\n" {
            return Ok(());
        }
        let wait: &[u8] =
            if self.rng.percent(50) { b"reserve\r\n" } else { b"reserve-with-timeout 100000\r\n" };
        self.pair.send(waits, wait)?;
        self.pair.until(None, "current-waiting", "1")?;
        let command = self.put();
        self.ask(puts, &command)?;
        if self.rng.percent(50) {
            let command = self.put();
            self.ask(puts, &command)?;
        }
        match self.pair.field("current-waiting") {
            (Some(theirs), Some(ours)) if theirs == ours && theirs == "0" => {
                self.pair.receive(waits)?;
            }
            (theirs, ours) if theirs == ours => self.close(waits)?,
            (theirs, ours) => return Err(format!("current-waiting: theirs {theirs:?}, ours {ours:?}")),
        }
        Ok(())
    }

    /// A whole command with its CRLF and body, now and then a wrong one.
    fn command(&mut self, name: &str) -> Vec<u8> {
        let command = self.valid(name);
        if !self.rng.percent(12) {
            return command;
        }
        let end = command.windows(2).position(|w| w == b"\r\n").expect("CRLF");
        let mut line = command[..end].to_vec();
        for _ in 0..=self.rng.below(2) {
            self.mutate(&mut line);
        }
        if !is_safe(&line) {
            return command;
        }
        let mut out = line.clone();
        out.extend_from_slice(b"\r\n");
        if let Some(size) = body_size(&line) {
            out.extend(std::iter::repeat_n(b'b', size));
            out.extend_from_slice(b"\r\n");
        }
        out
    }

    fn mutate(&mut self, line: &mut Vec<u8>) {
        let at = self.rng.below(line.len() + 1);
        let in_id = line[..at].iter().rev().find(|b| matches!(b, b'{' | b'}')) == Some(&b'{');
        if in_id {
            return;
        }
        match self.rng.below(6) {
            0 if at < line.len() && line[at] != b'{' => {
                line.remove(at);
            }
            1 => line.truncate(at),
            2 if at < line.len() => line[at] = line[at].to_ascii_uppercase(),
            3 => line.extend_from_slice(self.rng.pick(&[" ", " 0", "x", " x", "\0", "-"]).as_bytes()),
            _ => line.insert(at, *self.rng.pick(b" 0-+x.\t\0\"1,")),
        }
    }

    fn put(&mut self) -> Vec<u8> {
        let pri = self.pri();
        let delay = self.delay();
        let body: Vec<u8> = (0..self.rng.below(20)).map(|_| *self.rng.pick(b"abc \r\n\0\xff")).collect();
        let mut out = format!("put {pri} {delay} 1000000 {}\r\n", body.len()).into_bytes();
        out.extend_from_slice(&body);
        out.extend_from_slice(b"\r\n");
        out
    }

    fn pri(&mut self) -> u32 {
        *self.rng.pick(&[0, 0, 1, 5, 5, 5, 1023, 1024, 100_000, u32::MAX])
    }

    fn delay(&mut self) -> usize {
        if self.rng.percent(70) { 0 } else { 1000 * (1 + self.rng.below(4_000_000)) }
    }

    /// An id, as a rule of a job of this sequence.
    fn id(&mut self) -> String {
        match self.rng.below(40) {
            0 => "0".to_owned(),
            1 => "9007199254740991".to_owned(),
            _ if self.jobs == 0 => "9007199254740990".to_owned(),
            // Late ones are more likely to be there still.
            n if n % 2 == 0 => format!("{{{}}}", self.jobs - self.rng.below(self.jobs.min(6))),
            _ => format!("{{{}}}", 1 + self.rng.below(self.jobs)),
        }
    }

    /// An id, as a rule of a job that this connection has reserved.
    fn held(&mut self, name: &str) -> String {
        let held: Vec<usize> = (0..self.held.len()).filter(|at| self.held[*at].0 == name).collect();
        if held.is_empty() || self.rng.percent(20) {
            return self.id();
        }
        let at = *self.rng.pick(&held);
        if self.rng.percent(30) { self.held[at].1.clone() } else { self.held.swap_remove(at).1 }
    }

    fn tube(&mut self) -> String {
        self.rng.pick(&self.tubes).clone()
    }

    fn valid(&mut self, name: &str) -> Vec<u8> {
        let line = match self.rng.below(100) {
            0..=23 => return self.put(),
            24..=35 => "reserve-with-timeout 0".to_owned(),
            36..=38 => format!("reserve-job {}", self.id()),
            39..=41 => format!("delete {}", self.id()),
            42..=44 => format!("delete {}", self.held(name)),
            45..=52 => format!("release {} {} {}", self.held(name), self.pri(), self.delay()),
            53..=59 => format!("bury {} {}", self.held(name), self.pri()),
            60..=63 => format!("kick {}", self.rng.below(4)),
            64..=66 => format!("kick-job {}", self.id()),
            67..=68 => format!("touch {}", self.held(name)),
            69..=70 => format!("peek {}", self.id()),
            71..=72 => "peek-ready".to_owned(),
            73..=74 => "peek-delayed".to_owned(),
            75..=76 => "peek-buried".to_owned(),
            77..=82 => format!("stats-job {}", self.id()),
            83..=86 => format!("stats-tube {}", self.tube()),
            87..=88 => format!("use {}", self.tube()),
            89..=90 => format!("watch {}", self.tube()),
            91..=92 => format!("ignore {}", self.tube()),
            93 => "list-tubes-watched".to_owned(),
            94 => "list-tube-used".to_owned(),
            95 => "list-tubes".to_owned(),
            96 => "stats".to_owned(),
            97 => "ignore default".to_owned(),
            _ if self.pauses == Pauses::None => format!("stats-tube {}", self.tube()),
            98 => format!("pause-tube {} {}", self.tube(), 1000 * self.rng.below(3)),
            _ => format!("pause-tube {} 0", self.tube()),
        };
        format!("{line}\r\n").into_bytes()
    }

    /// Everything that can be asked without changing anything.
    fn look_around(&mut self) -> Result<(), Difference> {
        for name in self.connections.clone() {
            for line in ["list-tubes-watched", "list-tube-used", "peek-ready", "peek-delayed", "peek-buried"]
            {
                self.ask_line(name, line)?;
            }
        }
        let name = self.connections[0];
        for job in 1..=self.jobs {
            self.ask_line(name, &format!("stats-job {{{job}}}"))?;
        }
        for tube in self.tubes.clone() {
            self.ask_line(name, &format!("stats-tube {tube}"))?;
        }
        self.ask_line(name, "list-tubes")?;
        self.ask_line(name, "stats")?;
        Ok(())
    }

    /// Deletes what is left and goes.
    fn clear(&mut self) -> Result<(), Difference> {
        for job in 1..=self.jobs {
            for name in self.connections.clone() {
                if self.ask_line(name, &format!("delete {{{job}}}"))?.lines[0].starts_with("DELETED") {
                    break;
                }
            }
        }
        let name = self.connections[0];
        for tube in self.tubes.clone() {
            self.ask_line(name, &format!("stats-tube {tube}"))?;
            if self.pauses == Pauses::OfTubesThatStay {
                self.ask_line(name, &format!("pause-tube {tube} 0"))?;
            }
        }
        self.ask_line(name, "list-tubes")?;
        self.ask_line(name, "stats")?;
        for name in self.connections.clone() {
            self.pair.close(name)?;
        }
        if self.pauses == Pauses::OfTubesThatStay {
            self.pair.close(KEEPER)?;
        }
        Ok(())
    }
}

/// True for a changed line that both must answer at once and alike.
fn is_safe(line: &[u8]) -> bool {
    // The two have other ids, and so a digit beside one names other jobs.
    let beside_id = line
        .windows(2)
        .any(|w| (w[0].is_ascii_digit() && w[1] == b'{') || (w[0] == b'}' && w[1].is_ascii_digit()));
    let text = String::from_utf8_lossy(line);
    // A known difference; and waits.
    let waits = text == "reserve"
        || text.strip_prefix("reserve-with-timeout ").is_some_and(|rest| {
            !rest.starts_with('0') || rest[1..].starts_with(|c: char| c.is_ascii_digit())
        });
    let short_time = |n: u64| (1..1000).contains(&n);
    let times = if text.starts_with("put ") {
        numbers(&line[4..], 4).is_some_and(|(n, _)| short_time(n[1]) || n[2] < 1000 || n[3] > MAX_BODY + 5000)
    } else if text.starts_with("release") || text.starts_with("pause-tube") {
        let digits = text.rsplit(|c: char| !c.is_ascii_digit()).find(|digits| !digits.is_empty());
        digits.and_then(|digits| digits.parse().ok()).is_some_and(short_time)
    } else {
        false
    };
    !beside_id && !waits && !times && !line.contains(&b'\r')
}

/// How many bytes of body a line asks for; none if it is refused without reading one.
fn body_size(line: &[u8]) -> Option<usize> {
    if line.contains(&0) {
        return None;
    }
    let (numbers, rest) = numbers(line.strip_prefix(b"put ")?, 4)?;
    let read = rest.is_empty() || numbers[3] > MAX_BODY;
    read.then(|| usize::try_from(numbers[3]).expect("size"))
}

/// As beanstalkd reads them: spaces may be before each.
fn numbers(mut text: &[u8], count: usize) -> Option<(Vec<u64>, &[u8])> {
    let mut out = Vec::new();
    for _ in 0..count {
        text = &text[text.iter().take_while(|b| **b == b' ').count()..];
        let digits = text.iter().take_while(|b| b.is_ascii_digit()).count();
        let number: u64 = std::str::from_utf8(&text[..digits]).ok()?.parse().ok()?;
        out.push(u64::from(u32::try_from(number).ok()?));
        text = &text[digits..];
    }
    Some((out, text))
}
