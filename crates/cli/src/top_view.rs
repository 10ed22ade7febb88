//! The picture of `duewheel top`, for a terminal of any size.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use ratatui::Frame;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::{Color, Modifier, Style};
use ratatui::symbols::Marker;
use ratatui::text::{Line, Span};
use ratatui::widgets::canvas::{Canvas, Line as Stroke};
use ratatui::widgets::{Block, Paragraph, Row, Table};
use serde_json::Value;

use super::table::{cell, plain, rate};
use super::top_past::PastHour;
use duewheel_api::span::TimeSpan;

/// From this size on there is a ring.
const RING_COLUMNS: u16 = 76;
const RING_ROWS: u16 = 20;
/// Rows of the upper half with the ring, and without it.
const UPPER: u16 = 13;
const UPPER_LOW: u16 = 5;
/// How long the screen says that the server is back.
const BACK: Duration = Duration::from_secs(5);
/// Characters of the line of the last hour.
const HOUR: usize = 12;
const BARS: [&str; 9] = [" ", "▁", "▂", "▃", "▄", "▅", "▆", "▇", "█"];
const KEYS: &str = "q end  p pause  s sort  d dead only  h span  ↑↓ scroll";

/// The figures of a server at one time.
#[derive(Debug)]
pub(super) struct TopFigures {
    pub(super) stats: Value,
    pub(super) queues: Vec<Value>,
    /// Whether there are queues behind these.
    pub(super) more: bool,
    /// The last hour of queues, and of the whole server under an empty name.
    pub(super) past: HashMap<String, PastHour>,
}

/// Colours, or none.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Palette {
    Colours,
    Plain,
}

impl Palette {
    /// None if `NO_COLOR` is set (no-color.org).
    pub(super) fn of_environment() -> Palette {
        match std::env::var_os("NO_COLOR") {
            Some(value) if !value.is_empty() => Palette::Plain,
            Some(_) | None => Palette::Colours,
        }
    }

    fn style(self, colour: Color) -> Style {
        match self {
            Palette::Colours => Style::new().fg(colour),
            Palette::Plain => Style::new(),
        }
    }

    fn alarm(self) -> Style {
        self.style(Color::Red).add_modifier(Modifier::BOLD)
    }

    fn faint(self) -> Style {
        self.style(Color::DarkGray)
    }
}

/// The order of the queues.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum TopSort {
    Name,
    Ready,
    Dead,
    Overdue,
}

impl TopSort {
    pub(super) fn next(self) -> TopSort {
        match self {
            TopSort::Name => TopSort::Ready,
            TopSort::Ready => TopSort::Dead,
            TopSort::Dead => TopSort::Overdue,
            TopSort::Overdue => TopSort::Name,
        }
    }

    fn word(self) -> &'static str {
        match self {
            TopSort::Name => "name",
            TopSort::Ready => "ready",
            TopSort::Dead => "dead",
            TopSort::Overdue => "overdue",
        }
    }
}

/// Everything that is on the screen.
#[derive(Debug)]
pub(super) struct TopScreen {
    server: String,
    palette: Palette,
    figures: TopFigures,
    seen: Instant,
    /// Why the last look failed.
    trouble: Option<String>,
    /// When the server came back.
    back: Option<Instant>,
    pub(super) is_paused: bool,
    pub(super) only_dead: bool,
    pub(super) sort: TopSort,
    /// Which of the three spans the histogram shows.
    pub(super) span: usize,
    first_row: usize,
    /// The names of the queues that were drawn.
    pub(super) shown: Vec<String>,
}

impl TopScreen {
    pub(super) fn new(server: String, palette: Palette, figures: TopFigures) -> TopScreen {
        TopScreen {
            server,
            palette,
            figures,
            seen: Instant::now(),
            trouble: None,
            back: None,
            is_paused: false,
            only_dead: false,
            sort: TopSort::Name,
            span: 0,
            first_row: 0,
            shown: Vec::new(),
        }
    }

    /// Takes the result of a look at the server.
    pub(super) fn take(&mut self, found: Result<TopFigures, String>, now: Instant) {
        match found {
            Ok(figures) => {
                if self.trouble.take().is_some() {
                    self.back = Some(now);
                }
                self.figures = figures;
                self.seen = now;
            }
            Err(trouble) => {
                self.back = None;
                self.trouble = Some(plain(&trouble));
            }
        }
    }

    pub(super) fn scroll(&mut self, rows: isize) {
        self.first_row = self.first_row.saturating_add_signed(rows);
    }

    /// The queues that are shown, in order.
    fn queues(&self) -> Vec<&Value> {
        let count = |queue: &Value, state: &str| queue["counts"][state].as_u64().unwrap_or(0);
        let mut queues: Vec<&Value> = self.figures.queues.iter().collect();
        queues.retain(|queue| !self.only_dead || count(queue, "dead") > 0);
        match self.sort {
            TopSort::Name => {}
            TopSort::Ready => queues.sort_by_key(|queue| std::cmp::Reverse(count(queue, "ready"))),
            TopSort::Dead => queues.sort_by_key(|queue| std::cmp::Reverse(count(queue, "dead"))),
            TopSort::Overdue => {
                queues.sort_by_key(|queue| std::cmp::Reverse(queue["oldest_overdue_ms"].as_u64()))
            }
        }
        queues
    }
}

/// Draws the screen.
pub(super) fn draw(frame: &mut Frame<'_>, screen: &mut TopScreen, now: Instant) {
    let area = frame.area();
    let has_ring = area.width >= RING_COLUMNS && area.height >= RING_ROWS;
    let upper = match (has_ring, area.height) {
        (true, _) => UPPER,
        (false, 12..) => UPPER_LOW,
        (false, _) => 0,
    };
    let rows = [
        Constraint::Length(2),
        Constraint::Length(upper),
        Constraint::Min(0),
        Constraint::Length(u16::from(area.height > 3)),
    ];
    let [head, upper_area, queues, keys] = Layout::vertical(rows).areas(area);
    frame.render_widget(Paragraph::new(head_lines(screen, now)), head);
    if has_ring {
        let columns = [Constraint::Length(28), Constraint::Min(0)];
        let [ring_area, charts] = Layout::horizontal(columns).areas(upper_area);
        ring(frame, screen, ring_area);
        let [due, late] = Layout::vertical([Constraint::Min(0), Constraint::Length(4)]).areas(charts);
        histogram(frame, screen, due);
        lateness(frame, screen, late);
    } else if upper > 0 {
        histogram(frame, screen, upper_area);
    }
    table(frame, screen, queues);
    frame.render_widget(Line::styled(KEYS, screen.palette.faint()), keys);
}

/// Two lines: the server and what is wrong, and its messages.
fn head_lines(screen: &TopScreen, now: Instant) -> Vec<Line<'static>> {
    let palette = screen.palette;
    let bold = Style::new().add_modifier(Modifier::BOLD);
    let age = now.saturating_duration_since(screen.seen).as_secs();
    let silence = now.saturating_duration_since(screen.seen) >= Duration::from_secs(10);
    let note = match (&screen.trouble, screen.back) {
        _ if screen.is_paused => Span::styled("paused; p goes on", bold),
        (Some(trouble), _) => Span::styled(format!("figures of {age} s ago: {trouble}"), palette.alarm()),
        (None, _) if silence => {
            Span::styled(format!("figures of {age} s ago: the server does not answer"), palette.alarm())
        }
        (None, Some(back)) if now.saturating_duration_since(back) < BACK => {
            Span::styled("the server is back", palette.style(Color::Green).add_modifier(Modifier::BOLD))
        }
        (None, _) => {
            let n = screen.figures.queues.len();
            let only =
                if screen.figures.more { format!(", below the first {n} by name") } else { String::new() };
            Span::raw(format!("{} queues{only}", cell(&screen.figures.stats, "queues")))
        }
    };
    let counts = &screen.figures.stats["counts"];
    let mut second = Vec::new();
    for state in ["scheduled", "ready", "leased", "dead"] {
        let count = counts[state].as_u64().unwrap_or(0);
        let style = if state == "dead" && count > 0 { palette.alarm() } else { bold };
        second.push(Span::raw(format!("{state} ")));
        second.push(Span::styled(short(count), style));
        second.push(Span::raw("  "));
    }
    if let Some(hour) = screen.figures.past.get("") {
        let rates = [("in", &hour.enqueued), ("granted", &hour.granted), ("settled", &hour.settled)];
        let said = rates.map(|(word, series)| format!("{word} {}  ", hour.rate(series))).concat();
        second.push(Span::styled(said, palette.faint()));
        second.push(Span::styled(line_of(hour), palette.style(Color::Cyan)));
    }
    let first = vec![Span::styled(format!("duewheel {}  ", plain(&screen.server)), bold), note];
    vec![Line::from(first), Line::from(second)]
}

/// The ring of slots, with the pointer as a hand: the longer a stroke, the more messages are on these slots.
fn ring(frame: &mut Frame<'_>, screen: &TopScreen, area: Rect) {
    let ring = &screen.figures.stats["ring"];
    let number = |name: &str| ring[name].as_u64().unwrap_or(0);
    let (slots, pointer) = (number("slots").max(1), number("pointer"));
    let segments = numbers(&ring["segments"]);
    let turn = TimeSpan(slots * number("tick_ms"));
    let title = format!(" next {turn}: {} ", short(number("messages")));
    let most = segments.iter().copied().max().unwrap_or(0).max(1);
    let palette = screen.palette;
    let parts = segments.len().max(1);
    let canvas = Canvas::default()
        .block(Block::bordered().title(title))
        .marker(Marker::Braille)
        .x_bounds([-1.1, 1.1])
        .y_bounds([-1.1, 1.1])
        .paint(move |context| {
            let at = |angle: f64, radius: f64| (radius * angle.sin(), radius * angle.cos());
            let begin = std::f64::consts::TAU * ratio(pointer, slots);
            for (n, count) in segments.iter().enumerate() {
                let angle = begin + std::f64::consts::TAU * ratio(n as u64, parts as u64);
                // The root, so that one message is visible next to many.
                let length = 0.02 + 0.34 * ratio(*count, most).sqrt();
                let ((x1, y1), (x2, y2)) = (at(angle, 0.62), at(angle, 0.62 + length));
                let colour = match (palette, *count) {
                    (Palette::Plain, _) => Color::Reset,
                    (Palette::Colours, 0) => Color::DarkGray,
                    (Palette::Colours, _) => Color::Cyan,
                };
                context.draw(&Stroke { x1, y1, x2, y2, color: colour });
            }
            let (x2, y2) = at(begin, 0.55);
            let colour = if palette == Palette::Plain { Color::Reset } else { Color::Yellow };
            context.draw(&Stroke { x1: 0.0, y1: 0.0, x2, y2, color: colour });
        });
    frame.render_widget(canvas, area);
}

/// When messages are due, in columns.
fn histogram(frame: &mut Frame<'_>, screen: &TopScreen, area: Rect) {
    let later = &screen.figures.stats["later"][screen.span];
    let counts = numbers(&later["counts"]);
    let width_ms = later["width_ms"].as_u64().unwrap_or(0);
    let reach = TimeSpan(width_ms.saturating_mul(counts.len() as u64));
    let due: u64 = counts.iter().sum();
    let title = format!(
        " due within {reach}: {}, each column {}; later {} ",
        short(due),
        TimeSpan(width_ms),
        short(later["after"].as_u64().unwrap_or(0))
    );
    let block = Block::bordered().title(title);
    let inner = block.inner(area);
    frame.render_widget(block, area);
    let lines = bars(&counts, usize::from(inner.width), usize::from(inner.height));
    let style = screen.palette.style(Color::Cyan);
    frame.render_widget(
        Paragraph::new(lines.into_iter().map(Line::from).collect::<Vec<_>>()).style(style),
        inner,
    );
}

/// How late messages were granted since the start of the server.
fn lateness(frame: &mut Frame<'_>, screen: &TopScreen, area: Rect) {
    let late = &screen.figures.stats["lateness"];
    let (edges, counts) = (numbers(&late["edges_ms"]), numbers(&late["counts"]));
    let granted: u64 = counts.iter().sum();
    let block = Block::bordered().title(format!(" lateness of {} first grants ", short(granted)));
    let inner = block.inner(area);
    frame.render_widget(block, area);
    let within = |part: u64| {
        let wanted = (granted * part).div_ceil(1_000);
        let mut sum = 0;
        for (n, count) in counts.iter().enumerate() {
            sum += count;
            if sum >= wanted {
                return edges.get(n).map_or("more".to_owned(), |edge| format!("≤ {}", TimeSpan(*edge)));
            }
        }
        "-".to_owned()
    };
    let text = if granted == 0 {
        "nothing was granted yet".to_owned()
    } else {
        format!("half {}  99 % {}  99.9 % {}", within(500), within(990), within(999))
    };
    let shape = bars(&counts, usize::from(inner.width), 1).concat();
    frame.render_widget(Paragraph::new(vec![Line::raw(text), Line::raw(shape)]), inner);
}

fn table(frame: &mut Frame<'_>, screen: &mut TopScreen, area: Rect) {
    let total = screen.queues().len();
    let visible = usize::from(area.height.saturating_sub(1)).max(1);
    screen.first_row = screen.first_row.min(total.saturating_sub(visible));
    let palette = screen.palette;
    let is_wide = area.width >= 72;
    let has_hour = area.width >= 90;
    let lines = if has_hour { visible } else { 0 };
    screen.shown = screen.queues().into_iter().skip(screen.first_row).take(lines).map(name_of).collect();
    let rows: Vec<Row<'_>> = screen
        .queues()
        .into_iter()
        .skip(screen.first_row)
        .take(visible)
        .map(|queue| {
            let count = |state: &str| short(queue["counts"][state].as_u64().unwrap_or(0));
            let overdue = match queue["oldest_overdue"].is_null() {
                true => "-".to_owned(),
                false => {
                    TimeSpan(queue["oldest_overdue_ms"].as_u64().unwrap_or(0) / 1_000 * 1_000).to_string()
                }
            };
            let name = match queue["paused"].as_bool() {
                Some(true) => format!("{} (paused)", cell(queue, "queue")),
                Some(false) | None => cell(queue, "queue"),
            };
            let mut cells = vec![name, count("scheduled"), count("ready"), count("leased"), count("dead")];
            if is_wide {
                cells.extend([overdue, rate(&queue["rates"], "enqueued"), rate(&queue["rates"], "acked")]);
            }
            if has_hour {
                cells.push(screen.figures.past.get(&name_of(queue)).map_or_else(String::new, line_of));
            }
            let is_dead = queue["counts"]["dead"].as_u64().unwrap_or(0) > 0;
            Row::new(cells).style(if is_dead { palette.style(Color::Red) } else { Style::new() })
        })
        .collect();
    let dead = if screen.only_dead { "dead, " } else { "" };
    let mut head = vec![format!("QUEUE ({dead}by {})", screen.sort.word())];
    head.extend(["SCHED", "READY", "LEASED", "DEAD"].map(str::to_owned));
    let mut widths = vec![Constraint::Min(12)];
    widths.extend([Constraint::Length(6); 4]);
    if is_wide {
        head.extend(["OVERDUE", "IN", "OUT"].map(str::to_owned));
        widths.extend([Constraint::Length(9), Constraint::Length(7), Constraint::Length(7)]);
    }
    if has_hour {
        head.push("LAST HOUR".to_owned());
        widths.push(Constraint::Length(12));
    }
    let head = Row::new(head).style(Style::new().add_modifier(Modifier::BOLD));
    frame.render_widget(Table::new(rows, widths).header(head), area);
}

/// Grants of the hour in one line.
fn line_of(hour: &PastHour) -> String {
    bars(&hour.granted.iter().map(|count| count.unwrap_or(0)).collect::<Vec<_>>(), HOUR, 1).concat()
}

fn name_of(queue: &Value) -> String {
    queue["queue"].as_str().unwrap_or_default().to_owned()
}

/// Columns of so many rows; what is not nothing is seen. Each count has as many characters as fit, at least one.
fn bars(counts: &[u64], width: usize, height: usize) -> Vec<String> {
    if counts.is_empty() || width == 0 || height == 0 {
        return Vec::new();
    }
    // Without room for all, neighbours share a column.
    let share = counts.len().div_ceil(width);
    let columns: Vec<u64> = counts.chunks(share).map(|chunk| chunk.iter().sum()).collect();
    let each = (width / columns.len()).max(1);
    let most = columns.iter().copied().max().unwrap_or(0).max(1);
    let eighths = |count: u64| {
        let all = u128::from(count) * (height as u128) * 8;
        usize::try_from(all.div_ceil(u128::from(most))).unwrap_or(0)
    };
    let row = |row: usize| {
        let below = (height - 1 - row) * 8;
        columns.iter().map(|count| BARS[eighths(*count).saturating_sub(below).min(8)].repeat(each)).collect()
    };
    (0..height).map(row).collect()
}

fn numbers(list: &Value) -> Vec<u64> {
    list.as_array().map(|list| list.iter().filter_map(Value::as_u64).collect()).unwrap_or_default()
}

/// A count in at most five characters: `1234`, `12.3k`, `4.5M`.
fn short(count: u64) -> String {
    for (unit, letter) in [(1_000_000_000_000, 'T'), (1_000_000_000, 'G'), (1_000_000, 'M'), (1_000, 'k')] {
        if count >= unit && count >= 10_000 {
            let tenths = count / (unit / 10);
            return match tenths {
                1_000.. => format!("{}{letter}", tenths / 10),
                _ => format!("{}.{}{letter}", tenths / 10, tenths % 10),
            };
        }
    }
    count.to_string()
}

#[allow(clippy::cast_precision_loss, reason = "a point of a picture")]
fn ratio(part: u64, of: u64) -> f64 {
    part as f64 / of.max(1) as f64
}

#[cfg(test)]
mod tests {
    use ratatui::Terminal;
    use ratatui::backend::TestBackend;
    use serde_json::json;

    use super::*;

    fn figures() -> TopFigures {
        let mut segments = vec![0; 120];
        segments[1] = 7;
        let stats = json!({
            "queues": 2, "counts": {"scheduled": 12_345_678, "ready": 17, "leased": 1, "dead": 3},
            "ring": {"slots": 3_600, "tick_ms": 1_000, "pointer": 900, "messages": 7, "segments": segments},
            "later": [
                {"width_ms": 1_800_000, "counts": vec![1; 48], "after": 5},
                {"width_ms": 43_200_000, "counts": [0, 2], "after": 0},
                {"width_ms": 86_400_000, "counts": [9], "after": 0},
            ],
            "lateness": {"edges_ms": [1, 5, 10], "counts": [990, 9, 0, 1]},
        });
        let queue = |name: &str, ready: u64, dead: u64| {
            json!({
                "queue": name, "counts": {"scheduled": 1, "ready": ready, "leased": 0, "dead": dead},
                "oldest_overdue": "2026-01-01T00:00:00.000Z", "oldest_overdue_ms": 61_500, "paused": ready == 0,
                "rates": {"enqueued": 1.5, "acked": 2},
            })
        };
        let hour = json!({"step_ms": 10_000, "series": {
            "enqueued": [null, 15, null], "granted": [null, 0, 0, 0, 0, 0, 0, 0, 0, 0, 7, 14], "settled": [null],
        }});
        let past = ["", "orders"].map(|name| (name.to_owned(), PastHour::of(&hour))).into();
        let queues = vec![queue("orders", 17, 0), queue("sms\u{1b}[2J", 0, 3)];
        TopFigures { stats, queues, more: false, past }
    }

    fn screen(palette: Palette) -> TopScreen {
        TopScreen::new("http://h:1".into(), palette, figures())
    }

    fn drawn(screen: &mut TopScreen, width: u16, height: u16) -> (Vec<String>, bool) {
        let mut terminal = Terminal::new(TestBackend::new(width, height)).unwrap();
        let now = screen.seen;
        terminal.draw(|frame| draw(frame, screen, now)).unwrap();
        let buffer = terminal.backend().buffer().clone();
        let is_coloured =
            buffer.content.iter().any(|cell| cell.fg != Color::Reset || cell.bg != Color::Reset);
        let rows = buffer.content.chunks(usize::from(width).max(1));
        (rows.map(|row| row.iter().map(ratatui::buffer::Cell::symbol).collect()).collect(), is_coloured)
    }

    #[test]
    fn large_screen_shows_every_figure_escaped() {
        let (rows, is_coloured) = drawn(&mut screen(Palette::Colours), 100, 30);
        let all = rows.join("\n");
        for words in [
            "duewheel http://h:1  2 queues",
            "scheduled 12.3M  ready 17  leased 1  dead 3  in 1.5/s  granted 1.4/s  settled -            ▄█",
            "LAST HOUR",
            " next 1h: 7 ",
            " due within 1d: 48, each column 30m; later 5 ",
            "lateness of 1000 first grants",
            "half ≤ 1ms  99 % ≤ 1ms  99.9 % ≤ 5ms",
            "QUEUE (by name)",
            "sms\\u{1b}[2J (paused)",
            "1m1s",
            "q end",
        ] {
            assert!(all.contains(words), "{words}:\n{all}");
        }
        assert!(is_coloured);
    }

    #[test]
    fn without_colours_there_are_none() {
        let mut screen = screen(Palette::Plain);
        screen.take(Err("no server at http://h:1".into()), screen.seen);
        assert!(!drawn(&mut screen, 100, 30).1);
    }

    /// Whatever the size, it is drawn; counts are the last thing to go.
    #[test]
    fn every_size_is_drawn() {
        for width in [0, 1, 5, 20, 40, 60, 75, 76, 200] {
            for height in [0, 1, 2, 3, 4, 8, 12, 19, 20, 60] {
                let (rows, _) = drawn(&mut screen(Palette::Colours), width, height);
                if width >= 60 && height >= 2 {
                    assert!(rows[1].contains("dead 3"), "{width}×{height}: {rows:?}");
                }
            }
        }
        let (rows, _) = drawn(&mut screen(Palette::Colours), 50, 14);
        let all = rows.join("\n");
        assert!(!all.contains("OVERDUE") && all.contains("orders") && all.contains("due within 1d"), "{all}");
    }

    #[test]
    fn top_shows_server_loss_and_return() {
        let mut screen = screen(Palette::Colours);
        let now = screen.seen;
        let first = |screen: &mut TopScreen| drawn(screen, 120, 24).0[0].clone();
        screen.take(Err("no server at http://h:1 can be reached".into()), now);
        assert!(first(&mut screen).contains("figures of 0 s ago: no server at http://h:1 can be reached"));
        screen.take(Ok(figures()), now);
        assert!(first(&mut screen).contains("the server is back"));
        screen.is_paused = true;
        assert!(first(&mut screen).contains("paused; p goes on"));
    }

    /// Story: of more than a thousand queues the others were missing without a word.
    #[test]
    fn top_counts_queues_left_out() {
        let mut screen = screen(Palette::Plain);
        let first = |screen: &mut TopScreen| drawn(screen, 120, 24).0[0].trim_end().to_owned();
        assert!(first(&mut screen).ends_with("2 queues"));
        let mut stats = figures().stats;
        stats["queues"] = json!(1_234);
        screen.take(Ok(TopFigures { stats, more: true, ..figures() }), screen.seen);
        assert!(first(&mut screen).ends_with("1234 queues, below the first 2 by name"));
    }

    #[test]
    fn queues_are_sorted_filtered_and_scrolled() {
        let mut screen = screen(Palette::Plain);
        let names = |screen: &TopScreen| {
            screen.queues().iter().map(|queue| cell(queue, "queue")).collect::<Vec<_>>().join(" ")
        };
        screen.sort = TopSort::Dead;
        assert!(names(&screen).starts_with("sms"));
        screen.sort = TopSort::Ready;
        assert!(names(&screen).starts_with("orders"));
        screen.only_dead = true;
        assert!(!names(&screen).contains("orders"));
        screen.scroll(1_000);
        drawn(&mut screen, 80, 24);
        assert_eq!(screen.first_row, 0, "there is nothing to scroll");
        screen.span = 1;
        assert!(drawn(&mut screen, 80, 24).0.join("\n").contains("due within 1d: 2, each column 12h"));
    }

    #[test]
    fn bars_and_counts_fit() {
        assert_eq!(bars(&[0, 1, 8], 3, 1), [" ▁█"]);
        assert_eq!(bars(&[4, 8], 4, 2), ["  ██", "████"]);
        assert_eq!(bars(&[1, 1, 1, 1], 2, 1), ["██"]);
        assert_eq!([0, 9_999, 10_000, 123_456, 1_234_567].map(short), ["0", "9999", "10.0k", "123k", "1.2M"]);
        assert_eq!(short(u64::MAX), "18446744T");
    }
}
