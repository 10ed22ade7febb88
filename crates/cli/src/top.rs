//! `duewheel top`: the ring, the queues and the lateness of a running server, live in the terminal.

use std::collections::HashMap;
use std::io::{self, IsTerminal};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SendError, SyncSender, TryRecvError, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use clap::Args;
use duewheel_client::Error;
use ratatui::DefaultTerminal;
use ratatui::crossterm::event::{self, Event, KeyCode, KeyEventKind, KeyModifiers};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use serde_json::{Value, json};

use super::failure::CommandFailure;
use super::remote::Remote;
use super::session::{ClientCommand, ClientSession, Interrupt};
use super::top_past::PastHours;
use super::top_view::{self, Palette, TopFigures, TopScreen};
use super::when;
use duewheel_api::span::TimeSpan;

/// How long the keyboard is awaited before the screen is looked at again.
const LOOK: Duration = Duration::from_millis(100);
/// The queues that are asked for, the first by name.
const QUEUES: usize = 1_000;

#[derive(Args, Debug)]
#[command(
    after_help = "Keys: q, Escape and Ctrl-C end, p or space stops and goes on, s sorts queues by name, ready, dead or \
overdue, d shows only queues with dead messages, h changes the span of the histogram (a day, 30 days, ten years), arrows, \
j, k, page keys and Home scroll.\n\n\
The token needs the scope metrics for all queues. With NO_COLOR in the environment there are no colours."
)]
pub(super) struct TopArgs {
    /// Time between two looks at the server
    #[arg(long, value_name = "TIME", default_value = "1s", value_parser = when::span)]
    interval: TimeSpan,
}

impl ClientCommand for TopArgs {
    fn run(self, session: &ClientSession) -> Result<(), CommandFailure> {
        if self.interval.0 < 100 {
            return Err(CommandFailure::Usage("--interval: must be at least 100ms".into()));
        }
        // A wrong address or token is an error of the command, and no picture.
        let first = figures(&session.remote)?;
        if session.is_json {
            let all = json!({"stats": first.stats, "queues": first.queues, "more": first.more});
            return session.say(&all, "");
        }
        if !io::stdout().is_terminal() || !io::stdin().is_terminal() {
            let what = "top draws in a terminal, and this is none; --json prints the figures once";
            return Err(CommandFailure::Usage(what.into()));
        }
        let interrupt = Interrupt::watch()?;
        let screen = TopScreen::new(session.server.clone(), Palette::of_environment(), first);
        let looks = Looks::start(session.remote.clone(), Duration::from_millis(self.interval.0));
        let mut terminal = ratatui::try_init()?;
        let result = watch(&mut terminal, screen, &looks, &read_events(), &interrupt);
        if is_hung_up() {
            // There is no screen left to restore, and an attempt prints its failure to it.
            std::process::exit(0);
        }
        ratatui::try_restore()?;
        Ok(result?)
    }
}

/// Requests the present figures of a server.
fn figures(remote: &Remote) -> Result<TopFigures, Error> {
    let stats = remote.get("/v1/stats")?;
    let mut queues = remote.get(&format!("/v1/queues?limit={QUEUES}"))?;
    let more = queues["next"].is_string();
    let queues = match queues["queues"].take() {
        Value::Array(queues) => queues,
        _ => Vec::new(),
    };
    Ok(TopFigures { stats, queues, more, past: HashMap::new() })
}

/// A thread that asks the server again and again: a server that does not answer stops no key.
struct Looks {
    found: Receiver<Result<TopFigures, Error>>,
    is_paused: Arc<AtomicBool>,
    /// The queues on the screen.
    shown: Arc<Mutex<Vec<String>>>,
}

impl Looks {
    fn start(remote: Remote, interval: Duration) -> Looks {
        let (sender, found) = sync_channel(1);
        let is_paused = Arc::new(AtomicBool::new(false));
        let shown = Arc::new(Mutex::new(Vec::new()));
        let (paused, wanted) = (Arc::clone(&is_paused), Arc::clone(&shown));
        // The thread ends with the process.
        thread::spawn(move || look(&remote, interval, &sender, &paused, &wanted));
        Looks { found, is_paused, shown }
    }
}

fn look(
    remote: &Remote,
    interval: Duration,
    sender: &SyncSender<Result<TopFigures, Error>>,
    is_paused: &AtomicBool,
    shown: &Mutex<Vec<String>>,
) {
    let mut past = PastHours::default();
    loop {
        thread::sleep(interval);
        if !is_paused.load(Ordering::Relaxed) {
            let now = figures(remote).map(|figures| {
                past.refresh(remote, &shown.lock().unwrap_or_else(PoisonError::into_inner).clone());
                TopFigures { past: past.all(), ..figures }
            });
            let found: Result<(), SendError<_>> = sender.send(now);
            if found.is_err() {
                return;
            }
        }
    }
}

/// Reads keys on a thread of its own, which ends with the process. Once its terminal is gone, a read of events never
/// returns, so the thread that watches the signals and the terminal does not read.
fn read_events() -> Receiver<Event> {
    let (sender, events) = sync_channel(16);
    thread::spawn(move || {
        while let Ok(event) = event::read() {
            if sender.send(event).is_err() {
                return;
            }
        }
    });
    events
}

/// Whether the terminal of standard input is gone.
fn is_hung_up() -> bool {
    let stdin = io::stdin();
    let mut fds = [PollFd::new(&stdin, PollFlags::empty())];
    let at_once = Timespec { tv_sec: 0, tv_nsec: 0 };
    poll(&mut fds, Some(&at_once)).is_ok_and(|ready| ready > 0)
        && fds[0].revents().intersects(PollFlags::HUP | PollFlags::ERR | PollFlags::NVAL)
}

/// Draws until `q`, a signal, or the end of the terminal.
fn watch(
    terminal: &mut DefaultTerminal,
    mut screen: TopScreen,
    looks: &Looks,
    events: &Receiver<Event>,
    interrupt: &Interrupt,
) -> io::Result<()> {
    let mut drawn = None::<Instant>;
    loop {
        let mut has_news = false;
        match looks.found.try_recv() {
            Ok(found) => {
                has_news = true;
                screen.take(found.map_err(|trouble| trouble.to_string()), Instant::now());
            }
            Err(TryRecvError::Empty | TryRecvError::Disconnected) => {}
        }
        // The age of the figures is on the screen.
        if has_news || drawn.is_none_or(|at| at.elapsed() >= Duration::from_millis(500)) {
            terminal.draw(|frame| top_view::draw(frame, &mut screen, Instant::now()))?;
            looks.shown.lock().unwrap_or_else(PoisonError::into_inner).clone_from(&screen.shown);
            drawn = Some(Instant::now());
        }
        if interrupt.has_come() || is_hung_up() {
            return Ok(());
        }
        let event = match events.recv_timeout(LOOK) {
            Ok(event) => event,
            Err(RecvTimeoutError::Timeout) => continue,
            Err(RecvTimeoutError::Disconnected) => return Ok(()),
        };
        drawn = None;
        let Event::Key(key) = event else { continue };
        if key.kind == KeyEventKind::Release {
            continue;
        }
        match key.code {
            KeyCode::Char('q') | KeyCode::Esc => return Ok(()),
            KeyCode::Char('c') if key.modifiers.contains(KeyModifiers::CONTROL) => return Ok(()),
            KeyCode::Char('p' | ' ') => {
                screen.is_paused = !screen.is_paused;
                looks.is_paused.store(screen.is_paused, Ordering::Relaxed);
            }
            KeyCode::Char('s') => screen.sort = screen.sort.next(),
            KeyCode::Char('d') => screen.only_dead = !screen.only_dead,
            KeyCode::Char('h') => screen.span = (screen.span + 1) % 3,
            KeyCode::Up | KeyCode::Char('k') => screen.scroll(-1),
            KeyCode::Down | KeyCode::Char('j') => screen.scroll(1),
            KeyCode::PageUp => screen.scroll(-10),
            KeyCode::PageDown => screen.scroll(10),
            KeyCode::Home => screen.scroll(isize::MIN),
            _ => {}
        }
    }
}
