//! A receiver of pushes that records what it reads and answers, as the judge needs it.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, ErrorKind, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread::Scope;
use std::time::{Duration, Instant};

use duewheel_judge::history::{PushAnswer, PushId, PushSeen, Recorder, Seen, What};

use crate::process::PATIENCE;

/// What the receiver does with a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mood {
    /// 200.
    Well,
    /// 200 after this time.
    Slow(Duration),
    /// 500.
    Failing,
    /// 429 with `Retry-After` of so many seconds.
    Busy(u64),
    /// No answer.
    Hanging,
}

/// Its state, shared by its connections.
#[derive(Debug, Default)]
pub struct Receiver {
    pushes: AtomicU64,
    /// Connections that are open, and rounds of the acceptor that have found none.
    open: AtomicU64,
    rounds: AtomicU64,
    slow: Mutex<SlowAnswers>,
    stop: AtomicBool,
}

/// Requests that are recorded, and answered late.
#[derive(Debug, Default)]
struct SlowAnswers {
    waiting: u64,
    /// No answer is sent until what the present server has sent is recorded.
    held: bool,
}

/// How long a look for a request or a connection waits.
const LOOK: Duration = Duration::from_millis(5);

impl SlowAnswers {
    /// Holds them from now on; returns whether there is one.
    fn hold(&mut self) -> bool {
        self.held = true;
        self.waiting > 0
    }
}

impl Receiver {
    /// Begins to listen. `mood` is asked about each request.
    ///
    /// # Errors
    /// There is no port.
    pub fn listen<'scope, 'env>(
        &'env self,
        scope: &'scope Scope<'scope, 'env>,
        recorder: &'env Recorder,
        mood: &'env (dyn Fn(&PushSeen) -> Mood + Sync),
    ) -> Result<SocketAddr, String> {
        let listener = TcpListener::bind("127.0.0.1:0").map_err(|e| e.to_string())?;
        listener.set_nonblocking(true).map_err(|e| e.to_string())?;
        let address = listener.local_addr().map_err(|e| e.to_string())?;
        scope.spawn(move || {
            while !self.stop.load(Ordering::SeqCst) {
                match listener.accept() {
                    Ok((stream, _)) => {
                        self.open.fetch_add(1, Ordering::SeqCst);
                        scope.spawn(move || {
                            // A connection that breaks is one that has ended.
                            let _ = self.serve(stream, recorder, mood);
                            self.open.fetch_sub(1, Ordering::SeqCst);
                        });
                    }
                    Err(_) => {
                        self.rounds.fetch_add(1, Ordering::SeqCst);
                        std::thread::sleep(LOOK);
                    }
                }
            }
        });
        Ok(address)
    }

    /// Waits until everything that a killed server has sent is recorded. No other server sends anything meanwhile.
    ///
    /// # Errors
    /// Connections stay open.
    pub fn drained(&self) -> Result<(), String> {
        let (rounds, begun) = (self.rounds.load(Ordering::SeqCst), Instant::now());
        // The first round may have begun before the server was killed.
        while self.rounds.load(Ordering::SeqCst) < rounds + 2 || self.open.load(Ordering::SeqCst) > 0 {
            if begun.elapsed() > PATIENCE {
                return Err("connections of a killed server do not end".to_owned());
            }
            std::thread::sleep(LOOK);
        }
        self.slow().held = false;
        Ok(())
    }

    /// Waits until a request is recorded, and holds its answer until [`Receiver::drained`]: a kill cuts it.
    ///
    /// # Errors
    /// No such request comes.
    pub fn holds_one(&self) -> Result<(), String> {
        let begun = Instant::now();
        while !self.slow().hold() {
            if begun.elapsed() > PATIENCE {
                return Err("no push that is answered late".to_owned());
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        Ok(())
    }

    /// Ends all its threads.
    pub fn stop(&self) {
        self.stop.store(true, Ordering::SeqCst);
    }

    fn serve(
        &self,
        stream: TcpStream,
        recorder: &Recorder,
        mood: &(dyn Fn(&PushSeen) -> Mood + Sync),
    ) -> std::io::Result<()> {
        stream.set_nonblocking(false)?;
        stream.set_nodelay(true)?;
        let mut answers = stream.try_clone()?;
        let mut reader = BufReader::new(stream);
        while self.has_more(&mut reader)? {
            reader.get_ref().set_read_timeout(Some(PATIENCE))?;
            let seen = self.read(&mut reader)?;
            let push = seen.push;
            let mood = mood(&seen);
            recorder.note(recorder.stamp(), 0, What::PushSeen(seen));
            let (answer, text) = match mood {
                Mood::Well => (PushAnswer::Accepted, Some("200 OK".to_owned())),
                Mood::Slow(time) => {
                    if self.is_gone_within(&mut reader, time)? {
                        // The other side is gone, and nobody hears an answer.
                        return Ok(());
                    }
                    (PushAnswer::Accepted, Some("200 OK".to_owned()))
                }
                Mood::Failing => (PushAnswer::Failed, Some("500 Broken".to_owned())),
                Mood::Busy(seconds) => (
                    PushAnswer::NotBefore { ms: seconds * 1_000 },
                    Some(format!("429 Busy\r\nretry-after: {seconds}")),
                ),
                Mood::Hanging => (PushAnswer::Nothing, None),
            };
            recorder.note(recorder.stamp(), 0, What::PushAnswered { push, answer });
            match text {
                Some(text) => {
                    answers.write_all(format!("HTTP/1.1 {text}\r\ncontent-length: 0\r\n\r\n").as_bytes())?
                }
                // It reads on until the other side gives up.
                None => {
                    self.has_more(&mut reader)?;
                    return Ok(());
                }
            }
        }
        Ok(())
    }

    fn slow(&self) -> MutexGuard<'_, SlowAnswers> {
        self.slow.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether the other side goes before this time, or while its answer is held.
    fn is_gone_within(&self, reader: &mut BufReader<TcpStream>, time: Duration) -> std::io::Result<bool> {
        let until = Instant::now() + time;
        reader.get_ref().set_read_timeout(Some(LOOK))?;
        self.slow().waiting += 1;
        loop {
            let is_gone = match reader.fill_buf() {
                Ok(_) => true,
                Err(e) => !is_time_over(&e),
            };
            let mut slow = self.slow();
            if is_gone || !slow.held && Instant::now() >= until {
                slow.waiting -= 1;
                return Ok(is_gone);
            }
        }
    }

    /// Waits for the next request; `false` when the connection or the run ends.
    fn has_more(&self, reader: &mut BufReader<TcpStream>) -> std::io::Result<bool> {
        reader.get_ref().set_read_timeout(Some(LOOK))?;
        loop {
            match reader.fill_buf() {
                Ok(bytes) => return Ok(!bytes.is_empty()),
                Err(e) if is_time_over(&e) => {
                    if self.stop.load(Ordering::SeqCst) {
                        return Ok(false);
                    }
                }
                Err(e) => return Err(e),
            }
        }
    }

    fn read(&self, reader: &mut impl BufRead) -> std::io::Result<PushSeen> {
        let bad = |what: &str| std::io::Error::new(ErrorKind::InvalidData, what.to_owned());
        let mut headers = BTreeMap::new();
        let mut line = String::new();
        reader.read_line(&mut line)?;
        loop {
            line.clear();
            if reader.read_line(&mut line)? == 0 {
                return Err(ErrorKind::UnexpectedEof.into());
            }
            let Some((name, value)) = line.trim_end().split_once(": ") else { break };
            headers.insert(name.to_ascii_lowercase(), value.to_owned());
        }
        let header = |name: &str| headers.get(name).cloned();
        let number = |name: &str| header(name).and_then(|text| text.parse::<u64>().ok());
        let length = number("content-length").ok_or_else(|| bad("no length"))?;
        let mut body = vec![0; usize::try_from(length).map_err(|_| bad("too long"))?];
        reader.read_exact(&mut body)?;
        Ok(PushSeen {
            push: PushId(self.pushes.fetch_add(1, Ordering::SeqCst)),
            webhook_id: header("webhook-id").unwrap_or_default(),
            queue: header("duewheel-queue").unwrap_or_default(),
            key: header("duewheel-key"),
            attempt: number("duewheel-attempt").unwrap_or(0),
            body: Seen::of(&body),
        })
    }
}

fn is_time_over(e: &std::io::Error) -> bool {
    matches!(e.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut)
}
