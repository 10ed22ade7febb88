//! The effect of hostile clients on others: a well-behaved client enqueues, reserves and acks over one connection,
//! alone and then beside each attack, on one server in one run. The figure is the p99 of a round beside the attack over
//! that alone.
//!
//! `bench/run hostile [--seconds 10] [--only idle]`. Attackers are a process of their own with the lowest priority
//! (`nice`): in the real world they have a machine of their own, and here all processes share two cores.
//!
//! Names that hang need a name server of their own at port 53, which only root may give to the server: it starts with
//! another `/etc/resolv.conf` in a mount namespace. Without root that attack is left out.

use std::io::{self, BufRead, BufReader, ErrorKind, Read, Write};
use std::net::{TcpStream, UdpSocket};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use clap::{Parser, ValueEnum};
use duewheel_bench::process::resident_mib_of;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use xxhash_rust::xxh3::xxh3_64_with_seed;

#[derive(Debug, Parser)]
struct Args {
    /// Seconds beside each attack.
    #[arg(long, default_value_t = 10)]
    seconds: u64,
    /// Only these attacks.
    #[arg(long)]
    only: Vec<Attack>,
    /// What the attackers' process does (used by the program itself).
    #[arg(long, hide = true)]
    attack: Option<Attack>,
    #[arg(long, hide = true, default_value = "")]
    address: String,
    #[arg(long, hide = true, default_value = "")]
    token: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Attack {
    SlowHeaders,
    SlowBodies,
    Idle,
    TooMany,
    DeepJson,
    LargeBodies,
    GiantLengths,
    GiantHeaders,
    ManyNames,
    WrongTokens,
    UnreadPages,
    CollidingIds,
    GrowingAnswers,
    SlowJobs,
    HangingNames,
}

impl Attack {
    fn describe(self) -> &'static str {
        match self {
            Attack::SlowHeaders => "2,000 connections, a byte of headers a second",
            Attack::SlowBodies => "2,000 connections, a byte of a body a second",
            Attack::Idle => "9,000 idle connections",
            Attack::TooMany => "all 10,000 places taken, and 500 more connections a second",
            Attack::DeepJson => "100 a second of 1 MB of `[`",
            Attack::LargeBodies => "four bodies of 16 MiB in chunks, above the limit, again and again",
            Attack::GiantLengths => "1,000 a second that announce 2^63 bytes",
            Attack::GiantHeaders => "1,000 a second with 60 KiB of headers",
            Attack::ManyNames => "2,000 a second, each for another queue",
            Attack::WrongTokens => "2,000 a second with a wrong token",
            Attack::UnreadPages => "100 connections that ask for pages of 16 MiB and do not read",
            Attack::CollidingIds => "2,000 a second, all `dedupe_id`s with the same XXH3",
            Attack::GrowingAnswers => {
                "10 messages by quota, replaced 2,000 times a second with new `dedupe_id`s of 250 bytes"
            }
            Attack::SlowJobs => "1,000 jobs of a message a second",
            Attack::HangingNames => "1,000 a second with a `target_url` whose name server never answers",
        }
    }
}

pub(crate) fn main() -> io::Result<()> {
    let args = crate::arguments::<Args>();
    if let Some(attack) = args.attack {
        return attackers(attack, &args.address, &args.token);
    }
    duewheel_bench::server::build()?;
    println!("{}\n", duewheel_bench::machine::describe());
    let dir = tempfile::tempdir()?;
    let server = Server::start(dir.path())?;
    fill(&server)?;
    let time = Duration::from_secs(args.seconds);
    println!(
        "| one client that does no harm, beside | rounds/s | p50 ms | p99 ms | to p99 alone | resident MiB |"
    );
    println!("|---|--:|--:|--:|--:|--:|");
    let mut healthy = Healthy::connect(&server)?;
    healthy.rounds(Duration::from_secs(2))?;
    let attacks = Attack::value_variants().iter().filter(|a| args.only.is_empty() || args.only.contains(a));
    for &attack in attacks {
        if attack == Attack::HangingNames && server.silent_names.is_none() {
            println!("| {} | left out: it needs root | | | | |", attack.describe());
            continue;
        }
        // Measured alone right before, so that other load of the machine is in both.
        let alone = healthy.rounds(time / 2)?;
        println!("{}", row("nobody", &alone, alone.p99, &server));
        let mut child = server.attackers(attack)?;
        let beside = healthy.rounds(time)?;
        println!("{}", row(attack.describe(), &beside, alone.p99, &server));
        child.kill()?;
        child.wait()?;
        // The server notices the end of the attack, and recovers.
        std::thread::sleep(Duration::from_secs(2));
        healthy = Healthy::connect(&server)?;
        healthy.rounds(Duration::from_secs(1))?;
    }
    Ok(())
}

fn row(beside: &str, seen: &Seen, alone: f64, server: &Server) -> String {
    let ratio = seen.p99 / alone;
    let resident = resident_mib_of(server.child.id());
    format!(
        "| {beside} | {:.0} | {:.2} | {:.2} | {ratio:.2} | {resident} |",
        seen.per_second, seen.p50, seen.p99
    )
}

// ----- the server -----

struct Server {
    child: Child,
    address: String,
    token: String,
    /// A name server that never answers, if the server of this bench asks one.
    silent_names: Option<UdpSocket>,
}

impl Server {
    fn start(dir: &Path) -> io::Result<Server> {
        let binary = duewheel_bench::server::binary()?;
        let tokens = dir.join("tokens.toml");
        let mut new = Command::new(&binary);
        new.args([
            "token",
            "new",
            "--name",
            "bench",
            "--scope",
            "enqueue,consume,admin,metrics,push-any",
            "--tokens",
        ]);
        let token = String::from_utf8_lossy(&new.arg(&tokens).stderr(Stdio::null()).output()?.stdout)
            .trim()
            .to_owned();
        let silent_names = UdpSocket::bind((NAME_SERVER, 53)).ok();
        let mut serve = match silent_names {
            Some(_) => asking_silent_names(dir, &binary)?,
            None => Command::new(&binary),
        };
        serve.args(["serve", "--http", "127.0.0.1:0", "--beanstalk", "off", "--log", "error"]);
        let config = dir.join("duewheel.toml");
        std::fs::write(&config, "[[quota]]\nprefix = \"tenant.\"\nmessages = 10\nbytes = 10000000\n")?;
        serve.arg("--config").arg(config);
        serve.args(["--header-timeout", "5m", "--body-timeout", "20s", "--data"]).arg(dir.join("data"));
        let mut child = serve.arg("--tokens").arg(tokens).stdout(Stdio::piped()).spawn()?;
        let mut line = String::new();
        BufReader::new(child.stdout.take().ok_or(ErrorKind::BrokenPipe)?).read_line(&mut line)?;
        let address = line.trim().rsplit('/').next().unwrap_or_default().to_owned();
        Ok(Server { child, address, token, silent_names })
    }

    fn attackers(&self, attack: Attack) -> io::Result<Child> {
        let word = attack.to_possible_value().map(|value| value.get_name().to_owned()).unwrap_or_default();
        let mut child = Command::new("nice")
            .args(["-n", "19"])
            .arg(std::env::current_exe()?)
            .arg("hostile")
            .args(["--attack", &word, "--address", &self.address, "--token", &self.token])
            .stdout(Stdio::piped())
            .spawn()?;
        // It says when it has begun.
        let mut line = String::new();
        BufReader::new(child.stdout.take().ok_or(ErrorKind::BrokenPipe)?).read_line(&mut line)?;
        Ok(child)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The address of the name server that never answers.
const NAME_SERVER: &str = "127.9.9.9";

/// A server that asks no other name server.
fn asking_silent_names(dir: &Path, binary: &Path) -> io::Result<Command> {
    let resolv = dir.join("resolv.conf");
    std::fs::write(&resolv, format!("nameserver {NAME_SERVER}\n"))?;
    let mut command = Command::new("unshare");
    command.args(["--mount", "sh", "-c", "mount --bind \"$0\" /etc/resolv.conf && exec \"$@\""]);
    command.arg(resolv).arg(binary);
    Ok(command)
}

/// A queue with a page of large messages.
fn fill(server: &Server) -> io::Result<()> {
    let line = format!("{{\"body\": \"{}\", \"delay\": \"1d\"}}\n", "a".repeat(200_000));
    let mut stream = TcpStream::connect(&server.address)?;
    let head = head("POST", "/v1/queues/large/messages", &server.token);
    for _ in 0..4 {
        let body = line.repeat(40);
        let length = body.len();
        write!(stream, "{head}content-type: application/x-ndjson\r\ncontent-length: {length}\r\n\r\n{body}")?;
        answer(&mut stream)?;
    }
    Ok(())
}

fn head(method: &str, path: &str, token: &str) -> String {
    format!("{method} {path} HTTP/1.1\r\nhost: localhost\r\nauthorization: Bearer {token}\r\n")
}

/// Status and body of one answer with a length.
fn answer(stream: &mut TcpStream) -> io::Result<(String, String)> {
    let mut read = Vec::new();
    loop {
        let mut some = [0; 16_384];
        let n = stream.read(&mut some)?;
        if n == 0 {
            return Err(ErrorKind::UnexpectedEof.into());
        }
        read.extend_from_slice(&some[..n]);
        let text = String::from_utf8_lossy(&read);
        let Some((head, body)) = text.split_once("\r\n\r\n") else { continue };
        let length = head.lines().find_map(|line| line.strip_prefix("content-length: "));
        if length.and_then(|n| n.parse().ok()) == Some(body.len()) {
            return Ok((head.get(9..12).unwrap_or_default().to_owned(), body.to_owned()));
        }
    }
}

// ----- the client that does no harm -----

struct Healthy {
    stream: TcpStream,
    token: String,
}

struct Seen {
    per_second: f64,
    p50: f64,
    p99: f64,
}

impl Healthy {
    fn connect(server: &Server) -> io::Result<Healthy> {
        let stream = TcpStream::connect(&server.address)?;
        stream.set_nodelay(true)?;
        Ok(Healthy { stream, token: server.token.clone() })
    }

    /// Enqueue, reserve and ack, again and again for so long.
    fn rounds(&mut self, time: Duration) -> io::Result<Seen> {
        let (begun, mut took) = (Instant::now(), Vec::new());
        while begun.elapsed() < time {
            let round = Instant::now();
            self.ask("/v1/queues/healthy/messages", r#"{"body": "a", "delay_ms": 0}"#, "201")?;
            let granted = self.ask("/v1/queues/healthy/reserve", r#"{"wait_ms": 10000}"#, "200")?;
            let text = |name: &str| {
                let rest =
                    granted.split_once(&format!("\"{name}\":\"")).map(|(_, rest)| rest).unwrap_or_default();
                rest.split('"').next().unwrap_or_default().to_owned()
            };
            let ack = format!("{{\"lease_token\": \"{}\"}}", text("lease_token"));
            self.ask(&format!("/v1/messages/{}/ack", text("id")), &ack, "200")?;
            took.push(round.elapsed());
        }
        took.sort_unstable();
        let at = |per_mille: usize| took[(took.len() - 1) * per_mille / 1_000].as_secs_f64() * 1e3;
        Ok(Seen { per_second: took.len() as f64 / time.as_secs_f64(), p50: at(500), p99: at(990) })
    }

    fn ask(&mut self, path: &str, body: &str, wanted: &str) -> io::Result<String> {
        let (head, length) = (head("POST", path, &self.token), body.len());
        let request = format!("{head}content-length: {length}\r\n\r\n{body}");
        self.stream.write_all(request.as_bytes())?;
        let (status, body) = answer(&mut self.stream)?;
        if status == wanted { Ok(body) } else { Err(io::Error::other(format!("{path}: {status} {body}"))) }
    }
}

// ----- the attackers -----

fn attackers(attack: Attack, address: &str, token: &str) -> io::Result<()> {
    let Rlimit { maximum, .. } = getrlimit(Resource::Nofile);
    setrlimit(Resource::Nofile, Rlimit { current: maximum, maximum })?;
    let post = head("POST", "/v1/queues/victim/messages", token);
    let begin = || println!("begun");
    match attack {
        Attack::SlowHeaders => drip(address, 2_000, "GET / HTTP/1.1\r\nx-slow: ", begin),
        Attack::SlowBodies => drip(address, 2_000, &format!("{post}content-length: 262144\r\n\r\n{{"), begin),
        Attack::Idle => {
            let _idle = open(address, 9_000)?;
            begin();
            std::thread::sleep(Duration::from_secs(3_600));
            Ok(())
        }
        Attack::TooMany => {
            let _idle = open(address, 10_000)?;
            begin();
            paced(500, || TcpStream::connect(address).map(drop))
        }
        Attack::DeepJson => {
            let body = "[".repeat(1_000_000);
            let request = format!("{post}content-length: 1000000\r\n\r\n{body}");
            begin();
            again(address, 100, request.as_bytes())
        }
        Attack::LargeBodies => {
            let head =
                format!("{post}content-type: application/x-ndjson\r\ntransfer-encoding: chunked\r\n\r\n");
            let block = format!("10000\r\n{}\r\n", "x".repeat(65_536));
            let attack = || loop {
                let Ok(mut stream) = TcpStream::connect(address) else { continue };
                let _ = stream.write_all(head.as_bytes());
                while stream.write_all(block.as_bytes()).is_ok() {}
            };
            begin();
            std::thread::scope(|scope| {
                for _ in 0..4 {
                    scope.spawn(attack);
                }
            });
            Ok(())
        }
        Attack::GiantLengths => {
            let request = format!("{post}content-length: 9223372036854775808\r\n\r\n");
            begin();
            paced(1_000, || once(address, request.as_bytes()))
        }
        Attack::GiantHeaders => {
            let request = format!("{post}x: {}\r\ncontent-length: 0\r\n\r\n", "a".repeat(60 * 1024));
            begin();
            again(address, 1_000, request.as_bytes())
        }
        Attack::ManyNames => {
            begin();
            let (mut stream, mut n) = (TcpStream::connect(address)?, 0);
            paced(2_000, || {
                n += 1;
                let request = head("GET", &format!("/v1/queues/name-{n}"), token) + "\r\n";
                stream.write_all(request.as_bytes())?;
                answer(&mut stream).map(drop)
            })
        }
        Attack::WrongTokens => {
            let request = head("GET", "/v1/queues", "dw_wrong") + "\r\n";
            begin();
            again(address, 2_000, request.as_bytes())
        }
        Attack::CollidingIds => {
            let ids = colliding("victim", 20_000);
            let request = |ids: &[String]| lines(token, "victim", ids, r#""delay": "1d""#);
            let requests: Vec<Vec<u8>> = ids.chunks(100).map(request).collect();
            begin();
            // The first time they are remembered, then they are looked up.
            let mut requests = requests.iter().cycle();
            paced(20, || requests.next().map_or(Ok(()), |request| once(address, request)))
        }
        Attack::GrowingAnswers => {
            begin();
            let mut n = 0_u64;
            paced(20, || {
                let ids: Vec<String> = (n..n + 100).map(|n| format!("{n:0250}")).collect();
                n += 100;
                let same = r#""delay": "1d", "key": "k", "if_exists": "replace""#;
                once(address, &lines(token, "tenant.a", &ids, same))
            })
        }
        Attack::SlowJobs => {
            let job = r#"{"action": "fire", "all": true, "rate": 1}"#;
            let request = with_body("POST", "/v1/queues/large/bulk", token, job);
            begin();
            again(address, 100, &request)
        }
        Attack::HangingNames => {
            send(address, "PUT", "/v1/targets/names", token, r#"{"url": "http://hangs.example/"}"#)?;
            send(address, "PUT", "/v1/queues/names/config", token, r#"{"target": "names"}"#)?;
            begin();
            let (mut stream, mut n) = (TcpStream::connect(address)?, 0);
            paced(1_000, || {
                n += 1;
                let body =
                    format!(r#"{{"body": "a", "delay_ms": 0, "target_url": "http://name-{n}.example/"}}"#);
                stream.write_all(&with_body("POST", "/v1/queues/names/messages", token, &body))?;
                answer(&mut stream).map(drop)
            })
        }
        Attack::UnreadPages => {
            let request = head("GET", "/v1/queues/large/messages?limit=1000", token) + "\r\n";
            begin();
            loop {
                let mut deaf = open(address, 100)?;
                for stream in &mut deaf {
                    stream.set_nonblocking(false)?;
                    stream.write_all(request.as_bytes())?;
                }
                // As long as the server keeps the connection open.
                std::thread::sleep(Duration::from_secs(25));
            }
        }
    }
}

/// An enqueue of a line for each of these ids.
fn lines(token: &str, queue: &str, ids: &[String], more: &str) -> Vec<u8> {
    let line = |id: &String| format!("{{\"body\": \"a\", \"dedupe_id\": {id:?}, {more}}}\n");
    let body: String = ids.iter().map(line).collect();
    let head = head("POST", &format!("/v1/queues/{queue}/messages"), token);
    let length = body.len();
    format!("{head}content-type: application/x-ndjson\r\ncontent-length: {length}\r\n\r\n{body}").into()
}

/// Names of eight letters with equal upper 32 bits of their XXH3 under the seed that builds before 0.1.0 had for the
/// `dedupe_id`s of a queue: the end of the function, backwards.
fn colliding(queue: &str, count: usize) -> Vec<String> {
    let seed = xxh3_64_with_seed(queue.as_bytes(), u64::from_le_bytes(*b"answers."));
    let low = u32::try_from(seed & 0xffff_ffff).unwrap_or_default();
    let flip = (0x1cad_21f7_2c81_017c_u64 ^ 0xdb97_9083_e96d_d4de)
        .wrapping_sub(seed ^ u64::from(low.swap_bytes()) << 32);
    let times = 0x9fb2_1c65_1e98_df25_u64;
    let inverse = (0..6).fold(times, |x, _| x.wrapping_mul(2_u64.wrapping_sub(times.wrapping_mul(x))));
    let name = |hash: u64| {
        let h = (hash ^ hash >> 28 ^ hash >> 56).wrapping_mul(inverse);
        let h = (h ^ ((h >> 35) + 8)).wrapping_mul(inverse);
        let h = (0..6).fold(h, |h, n| h ^ h.rotate_left(49 << n & 63) ^ h.rotate_left(24 << n & 63));
        let bytes = (h ^ flip).rotate_left(32).to_le_bytes();
        let is_text = bytes.iter().all(u8::is_ascii_graphic);
        is_text.then(|| String::from_utf8_lossy(&bytes).into_owned())
    };
    (0..1 << 32).filter_map(|n| name(0x00c0_ffee << 32 | n)).take(count).collect()
}

fn open(address: &str, n: usize) -> io::Result<Vec<TcpStream>> {
    (0..n)
        .map(|_| {
            let stream = TcpStream::connect(address)?;
            stream.set_nonblocking(true)?;
            Ok(stream)
        })
        .collect()
}

/// A byte a second on each of many connections; those that the server has closed are opened again.
fn drip(address: &str, n: usize, text: &str, begin: impl Fn()) -> io::Result<()> {
    let mut streams = open(address, n)?;
    for stream in &mut streams {
        stream.write_all(text.as_bytes())?;
    }
    begin();
    loop {
        let round = Instant::now();
        for stream in &mut streams {
            if stream.write(b"a").is_err_and(|e| e.kind() != ErrorKind::WouldBlock) {
                *stream = TcpStream::connect(address)?;
                stream.set_nonblocking(true)?;
                let _ = stream.write_all(text.as_bytes());
            }
        }
        std::thread::sleep(Duration::from_secs(1).saturating_sub(round.elapsed()));
    }
}

/// So many a second, evenly.
fn paced(per_second: u32, mut attack: impl FnMut() -> io::Result<()>) -> io::Result<()> {
    let (begun, mut done) = (Instant::now(), 0);
    loop {
        let due = Duration::from_secs(1) * done / per_second;
        std::thread::sleep(due.saturating_sub(begun.elapsed()));
        let _ = attack();
        done += 1;
    }
}

fn with_body(method: &str, path: &str, token: &str, body: &str) -> Vec<u8> {
    let head = head(method, path, token);
    format!("{head}content-length: {}\r\n\r\n{body}", body.len()).into_bytes()
}

/// A request that must be carried out.
fn send(address: &str, method: &str, path: &str, token: &str, body: &str) -> io::Result<()> {
    let mut stream = TcpStream::connect(address)?;
    stream.write_all(&with_body(method, path, token, body))?;
    let (status, answer) = answer(&mut stream)?;
    if status.starts_with('2') { Ok(()) } else { Err(io::Error::other(format!("{path}: {status} {answer}"))) }
}

/// A connection for one request.
fn once(address: &str, request: &[u8]) -> io::Result<()> {
    let mut stream = TcpStream::connect(address)?;
    stream.write_all(request)?;
    answer(&mut stream).map(drop)
}

/// The same request over a connection that is kept as long as the server keeps it.
fn again(address: &str, per_second: u32, request: &[u8]) -> io::Result<()> {
    let mut stream = TcpStream::connect(address)?;
    paced(per_second, || {
        let asked = stream.write_all(request).and_then(|()| answer(&mut stream).map(drop));
        if asked.is_err() {
            stream = TcpStream::connect(address)?;
        }
        Ok(())
    })
}
