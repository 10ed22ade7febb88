//! Occurrences, compared with an oracle that walks civil time minute by minute over changes of clocks.

use std::time::{Duration, SystemTime};

use duewheel_delivery::limits::HORIZON;
use duewheel_delivery::{BadSettings, Occurrence, OccurrenceNote, Recurrence, RecurrenceSettings};
use jiff::civil::DateTime;
use jiff::tz::TimeZone;
use jiff::{SignedDuration, Timestamp};
use proptest::prelude::*;

fn at(text: &str) -> SystemTime {
    text.parse::<Timestamp>().unwrap().into()
}

fn cron(expression: &str, zone: &str, gap: &str, fold: &str) -> Recurrence {
    let settings = RecurrenceSettings {
        cron: Some(expression.into()),
        zone: Some(zone.into()),
        dst_gap: Some(gap.into()),
        dst_fold: Some(fold.into()),
        ..RecurrenceSettings::default()
    };
    Recurrence::new(&settings, at("2000-01-01T00:00:00Z")).unwrap()
}

/// An expression, whether its hours are fixed, and what it means.
type Expression = (&'static str, bool, fn(DateTime) -> bool);

const EXPRESSIONS: [Expression; 8] = [
    ("30 2 * * *", true, |t| t.hour() == 2 && t.minute() == 30),
    ("*/7 1-3 * * *", true, |t| (1..=3).contains(&t.hour()) && t.minute() % 7 == 0),
    ("0 0 * * *", true, |t| t.hour() == 0 && t.minute() == 0),
    ("15,45 0,1,2,3,23 * * *", true, |t| matches!(t.hour(), 0..=3 | 23) && matches!(t.minute(), 15 | 45)),
    ("59 23 * * SUN", true, |t| {
        t.hour() == 23 && t.minute() == 59 && t.weekday() == jiff::civil::Weekday::Sunday
    }),
    ("*/15 * * * *", false, |t| t.minute() % 15 == 0),
    ("10 */2 * * *", false, |t| t.hour() % 2 == 0 && t.minute() == 10),
    ("* * * * *", false, |_| true),
];

/// What occurs in these minutes: every instant is visited, and every civil minute that the clock jumps over.
fn oracle(
    zone: &TimeZone,
    (_, fixed, matches): Expression,
    (shift, both): (bool, bool),
    first: Timestamp,
    minutes: i64,
) -> Vec<(Timestamp, Option<OccurrenceNote>)> {
    let minute = SignedDuration::from_mins(1);
    let mut found = Vec::new();
    let mut before = zone.to_datetime(first - minute);
    let mut highest = before;
    for n in 0..minutes {
        let now = first + minute * i32::try_from(n).unwrap();
        let civil = zone.to_datetime(now);
        let mut missing = before + minute;
        let mut shifted = false;
        while missing < civil {
            shifted |= matches(missing);
            missing += minute;
        }
        let repeated = civil <= highest;
        if fixed && shift && shifted {
            found.push((now, Some(OccurrenceNote::Shifted)));
        } else if matches(civil) && !(fixed && !both && repeated) {
            found.push((now, repeated.then_some(OccurrenceNote::Repeated)));
        }
        before = civil;
        highest = highest.max(civil);
    }
    found
}

/// The changes of offset of a zone between two years.
fn changes(zone: &TimeZone, from: i16, to: i16) -> Vec<Timestamp> {
    let start: Timestamp = format!("{from}-01-01T00:00:00Z").parse().unwrap();
    let end: Timestamp = format!("{to}-01-01T00:00:00Z").parse().unwrap();
    zone.following(start).map(|change| change.timestamp()).take_while(|at| *at < end).collect()
}

/// Each zone with the years that are looked at.
const ZONES: [(&str, i16, i16); 6] = [
    ("America/New_York", 2020, 2025),
    ("Australia/Lord_Howe", 2020, 2025), // half an hour
    ("America/Santiago", 2020, 2025),    // at midnight
    ("Australia/Sydney", 2020, 2025),
    ("Africa/Casablanca", 2020, 2025), // twice around each Ramadan
    ("Pacific/Apia", 2009, 2014),      // without 30 December 2011
];

const AROUND: i64 = 26 * 60;

#[test]
fn occurrences_match_oracle_around_clock_changes() {
    let mut compared = 0;
    for (name, from, to) in ZONES {
        let zone = TimeZone::get(name).unwrap();
        let changes = changes(&zone, from, to);
        assert!(changes.len() >= 6, "{name} has {} changes", changes.len());
        for change in changes {
            let first = change - SignedDuration::from_mins(AROUND);
            let until: SystemTime = (change + SignedDuration::from_mins(AROUND)).into();
            for expression in EXPRESSIONS {
                for (gap, fold) in
                    [("shift", "first"), ("skip", "both"), ("shift", "both"), ("skip", "first")]
                {
                    let policies = (gap == "shift", fold == "both");
                    let expected = oracle(&zone, expression, policies, first, 2 * AROUND);
                    let recurrence = cron(expression.0, name, gap, fold);
                    let before = SystemTime::from(first) - Duration::from_secs(1);
                    let found: Vec<_> = recurrence
                        .upcoming(before)
                        .take_while(|found| found.at < until)
                        .map(|found| (Timestamp::try_from(found.at).unwrap(), found.note))
                        .collect();
                    assert_eq!(found, expected, "{} in {name} around {change}, {gap}, {fold}", expression.0);
                    compared += found.len();
                }
            }
        }
    }
    assert!(compared > 500_000, "{compared}");
}

/// The answer to "what is next?" does not depend on where one begins to ask.
#[test]
fn the_next_one_from_every_minute() {
    for (name, from, to) in ZONES {
        let zone = TimeZone::get(name).unwrap();
        for change in changes(&zone, from, to) {
            let first = change - SignedDuration::from_mins(AROUND);
            for (expression, gap, fold) in
                [(EXPRESSIONS[3], "shift", "first"), (EXPRESSIONS[3], "skip", "both")]
            {
                let expected = oracle(&zone, expression, (gap == "shift", fold == "both"), first, 2 * AROUND);
                let recurrence = cron(expression.0, name, gap, fold);
                for n in 0..2 * AROUND {
                    let asked = first + SignedDuration::from_mins(n);
                    let Some((next, note)) = expected.iter().find(|(at, _)| *at > asked) else { break };
                    let found = recurrence.next(asked.into()).unwrap();
                    assert_eq!(
                        (Timestamp::try_from(found.at).unwrap(), found.note),
                        (*next, *note),
                        "{name}, {asked}"
                    );
                }
            }
        }
    }
}

fn shown(found: impl Iterator<Item = Occurrence>) -> Vec<String> {
    let show = |found: Occurrence| format!("{} {:?}", Timestamp::try_from(found.at).unwrap(), found.note);
    found.map(show).collect()
}

/// Samoa went from 29 December 2011, 24:00, to 31 December: the library for expressions gives up on such a gap.
#[test]
fn the_day_that_samoa_left_out() {
    let from = at("2011-12-29T00:00:00Z");
    let nine = |gap| shown(cron("0 9 * * *", "Pacific/Apia", gap, "first").upcoming(from).take(3));
    assert_eq!(
        nine("shift"),
        ["2011-12-29T19:00:00Z None", "2011-12-30T10:00:00Z Some(Shifted)", "2011-12-30T19:00:00Z None"]
    );
    assert_eq!(
        nine("skip"),
        ["2011-12-29T19:00:00Z None", "2011-12-30T19:00:00Z None", "2011-12-31T19:00:00Z None"]
    );
    let only = RecurrenceSettings {
        cron: Some("0 0 9 30 12 * 2011".into()),
        zone: Some("Pacific/Apia".into()),
        ..RecurrenceSettings::default()
    };
    let only = Recurrence::new(&only, from).unwrap();
    let only = shown(only.upcoming(from));
    assert_eq!(only, ["2011-12-30T10:00:00Z Some(Shifted)"]);
}

#[test]
fn rare_days_and_seconds() {
    let leap = cron("0 12 29 2 *", "UTC", "shift", "first");
    assert_eq!(
        shown(leap.upcoming(at("2024-03-01T00:00:00Z")).take(2)),
        ["2028-02-29T12:00:00Z None", "2032-02-29T12:00:00Z None"]
    );
    let seconds = cron("*/20 * * * * *", "Europe/Paris", "shift", "first");
    assert_eq!(
        shown(seconds.upcoming(at("2027-01-01T00:00:00.5Z")).take(2)),
        ["2027-01-01T00:00:20Z None", "2027-01-01T00:00:40Z None"]
    );
    // Strictly after, whatever the fraction of a second, and before 1970, too.
    for (asked, next) in
        [("1969-12-31T23:59:59.5Z", "1970-01-01T00:00:00Z"), ("1970-01-01T00:00:00Z", "1970-01-01T00:01:00Z")]
    {
        assert_eq!(
            cron("* * * * *", "UTC", "shift", "first").next(at(asked)).unwrap().at,
            at(next),
            "{asked}"
        );
    }
    assert_eq!(
        cron("@hourly", "America/New_York", "skip", "first")
            .upcoming(at("2024-11-03T04:30:00Z"))
            .take(3)
            .count(),
        3
    );
    assert_eq!(
        shown(
            cron("@hourly", "America/New_York", "skip", "first").upcoming(at("2024-11-03T04:30:00Z")).take(3)
        ),
        ["2024-11-03T05:00:00Z None", "2024-11-03T06:00:00Z Some(Repeated)", "2024-11-03T07:00:00Z None"],
        "an hour is an hour"
    );
}

fn settings(json: serde_json::Value) -> Result<Recurrence, BadSettings> {
    Recurrence::new(&serde_json::from_value(json).unwrap(), at("2027-01-01T00:00:00.25Z"))
}

#[test]
fn intervals_and_lists() {
    let every = settings(serde_json::json!({"every": "90s", "end": "2027-01-01T00:03:01Z"})).unwrap();
    let from = at("2020-01-01T00:00:00Z");
    assert_eq!(shown(every.upcoming(from)), ["2027-01-01T00:01:30.25Z None", "2027-01-01T00:03:00.25Z None"]);
    let every = settings(serde_json::json!({"every": "1h", "start": "2027-02-01T00:00:00Z"})).unwrap();
    assert_eq!(
        shown(every.upcoming(from).take(2)),
        ["2027-02-01T00:00:00Z None", "2027-02-01T01:00:00Z None"]
    );
    let start = at("2027-02-01T00:00:00Z");
    assert_eq!(every.next(start).unwrap().at, start + Duration::from_secs(3_600), "strictly after");

    let listed = settings(serde_json::json!({
        "at": ["2027-03-01T10:00:00+02:00", "2027-01-05T00:00:00Z", "2027-03-01T08:00:00Z", "2028-01-01T00:00:00Z"],
        "start": "2027-02-01T00:00:00Z", "end": "2027-12-31T00:00:00Z",
    }))
    .unwrap();
    assert_eq!(shown(listed.upcoming(from)), ["2027-03-01T08:00:00Z None"]);
}

#[test]
fn start_and_end_count_themselves() {
    let day = settings(serde_json::json!({
        "cron": "0 0 * * *", "start": "2027-02-01T00:00:00Z", "end": "2027-02-03T00:00:00Z",
    }))
    .unwrap();
    assert_eq!(
        shown(day.upcoming(at("2020-01-01T00:00:00Z"))),
        ["2027-02-01T00:00:00Z None", "2027-02-02T00:00:00Z None", "2027-02-03T00:00:00Z None"]
    );
}

#[test]
fn jitter_is_always_the_same() {
    let jittered = settings(serde_json::json!({"cron": "* * * * *", "jitter": "30s"})).unwrap();
    let found: Vec<_> = jittered.upcoming(at("2027-01-01T00:00:00Z")).take(200).collect();
    let late = |name: &str| -> Vec<u64> {
        let of =
            |one: &Occurrence| jittered.due_at(name, one).duration_since(one.at).unwrap().as_millis() as u64;
        found.iter().map(of).collect()
    };
    assert_eq!(late("report"), late("report"));
    assert_ne!(late("report"), late("other"));
    let late = late("report");
    assert!(late.iter().all(|ms| *ms <= 30_000));
    assert!(late.iter().any(|ms| *ms < 5_000) && late.iter().any(|ms| *ms > 25_000), "they spread: {late:?}");
    // What is stored stays valid: the same numbers in every version.
    assert_eq!(late[..3], [24_981, 19_062, 10_183]);
}

/// Story: these were read by a library that takes a leap second for the second before it, and reads forms that no other
/// field takes.
#[test]
fn listed_instants_are_strict_and_never_early() {
    let listed = |text: &str| settings(serde_json::json!({ "at": [text] }));
    let first = |text: &str| listed(text).unwrap().next(at("2027-01-01T00:00:00Z")).unwrap().at;
    assert_eq!(first("2030-12-31T23:59:60Z"), at("2031-01-01T00:00:00Z"), "never early");
    assert_eq!(first("2030-12-31T23:59:59.0001Z"), at("2030-12-31T23:59:59.001Z"));
    for text in ["2030-12-31T23:00:00+01:00[Europe/Paris]", "20301130T090000Z", "2030-12-31T23:00:00+0100"] {
        assert!(listed(text).is_err(), "{text}");
    }
}

#[test]
fn errors_name_the_field() {
    let long = format!("0 0 {} * *", vec!["1"; 150].join(","));
    let many = vec!["2027-03-01T10:00:00Z"; 1_001];
    for (given, error) in [
        (serde_json::json!({}), "cron: one of cron, every and at must be there"),
        (
            serde_json::json!({"cron": "* * * * *", "every": "1h"}),
            "cron: only one of cron, every and at may be there",
        ),
        (serde_json::json!({"every": "1h", "zone": "UTC"}), "zone: belongs to cron"),
        (
            serde_json::json!({"cron": "* * * * *", "zone": "Mars/Base"}),
            "zone: must be the name of an IANA zone, such as Europe/Berlin",
        ),
        (serde_json::json!({"cron": "* * * * *", "dst_gap": "first"}), "dst_gap: must be shift or skip"),
        (serde_json::json!({"cron": "* * * * *", "dst_fold": "shift"}), "dst_fold: must be first or both"),
        (serde_json::json!({"cron": long}), "cron: is longer than 256 bytes"),
        (serde_json::json!({"cron": "0 0 30 2 *"}), "cron: has no occurrence in ten years"),
        (serde_json::json!({"cron": "0 0 0 1 1 * 2026"}), "cron: has no occurrence in ten years"),
        (serde_json::json!({"cron": "0 0 0 1 1 * 2040"}), "cron: has no occurrence in ten years"),
        (serde_json::json!({"every": "999ms"}), "every: must be a time such as 90s, at least 1s"),
        (
            serde_json::json!({"at": ["2027-03-01T10:00:00Z", "tomorrow"]}),
            "at[1]: must be an RFC 3339 instant with an offset, such as 2026-01-31T08:00:00Z or \
             2026-01-31T09:00:00.250+01:00, up to the year 9999",
        ),
        (serde_json::json!({"at": many}), "at: has more than 1000 instants"),
        (
            serde_json::json!({"every": "1h", "jitter": "25h"}),
            "jitter: must be a time such as 30s, at most 24h",
        ),
        (
            serde_json::json!({"every": "1h", "start": "2027-03-01T10:00:00Z", "end": "2027-02-01T10:00:00Z"}),
            "end: is before start",
        ),
    ] {
        assert_eq!(settings(given.clone()).map(|_| ()).unwrap_err().to_string(), error, "{given}");
    }
    for expression in [
        "",
        "* * * *",
        "60 * * * *",
        "* 24 * * *",
        "@reboot",
        "@every 5m",
        "a b c d e",
        "* * * * * * * *",
        "*/0 * * * *",
    ] {
        let error = settings(serde_json::json!({"cron": expression})).unwrap_err();
        assert_eq!(error.field, "cron", "{expression:?}: {error}");
    }
}

/// Lines of real crontabs, of Quartz and of Spring, each with its ten next runs after the beginning of 2027. The runs are
/// those of a minute-by-minute walk; for what crontab(5) knows they agree with a port of Debian's cron. Fewer than ten:
/// the next one is more than ten years away.
#[test]
fn real_lines_run_as_cron_says() {
    let lines: Vec<&str> = include_str!("cron_lines.tsv").lines().collect();
    assert!(lines.len() >= 100, "{}", lines.len());
    for line in lines {
        let (expression, runs) = line.split_once('\t').unwrap();
        let recurrence = settings(serde_json::json!({"cron": expression})).unwrap();
        let found: Vec<String> = recurrence
            .upcoming(at("2027-01-01T00:00:00Z"))
            .take(10)
            .map(|found| Timestamp::try_from(found.at).unwrap().to_string().trim_end_matches('Z').to_owned())
            .collect();
        assert_eq!(found.join(" "), runs, "{expression}");
    }
}

/// Errors are about the expression as it was written, and say what was meant.
#[test]
fn errors_of_cron_say_what_was_meant() {
    let mut wrong = Vec::new();
    for (cron, error) in [
        ("", "has 0 fields: give minute, hour, day, month and weekday;"),
        (
            "0 5 * * 1 /usr/bin/backup",
            "weekday (field 6, position 11): \"/usr/bin/backup\" is not understood",
        ),
        ("17 * * * * root cd / && run-parts", "has 10 fields: "),
        ("*/60 * * * *", "minute (field 1, position 1): \"*/60\" has a step above 59: write \"0 * * * *\""),
        (
            "*/120 * * * *",
            "minute (field 1, position 1): \"*/120\" has a step above 59: write \"0 */2 * * *\"",
        ),
        ("*/90 * * * *", ": an interval is no cron expression, set every to 90m"),
        ("*/60 9 * * *", "has a step above 59: write \"0 9 * * *\""),
        (
            "*/60 * * * * *",
            "second (field 1, position 1): \"*/60\" has a step above 59: write \"0 * * * * *\"",
        ),
        ("0 */24 * * *", "hour (field 2, position 3): \"*/24\" has a step above 23: write \"0 0 * * *\""),
        ("0 */48 * * *", "set every to 48h"),
        ("0 0 */31 * *", "day (field 3, position 5): \"*/31\" has a step above 30: write \"0 0 1 * *\""),
        ("0 0 */100,1-7 * MON", "day (field 3, position 5): \"*/100\" has a step above 30"),
        ("0 0 1 */12 *", "write \"0 0 1 1 *\""),
        ("0 0 * * */8", "weekday (field 5, position 9): \"*/8\" has a step above 7: write \"0 0 * * 0\""),
        ("60 * * * *", "minute (field 1, position 1): \"60\" must be 0 to 59"),
        ("0  24 * * *", "hour (field 2, position 4): \"24\" must be 0 to 23"),
        ("0 0 0 * *", "day (field 3, position 5): \"0\" must be 1 to 31"),
        ("0 0 * foo *", "month (field 4, position 7): \"foo\" must be 1 to 12, or JAN to DEC"),
        ("0 0 * * 1,8", "weekday (field 5, position 11): \"8\" must be 0 to 7, or SUN to SAT"),
        ("0 0 * * 1,,2", "weekday (field 5, position 11): \"\" lacks a value"),
        ("*/0 * * * *", "\"*/0\" has no step: write a number from 1 behind the /"),
        ("*/ * * * *", "has no step"),
        ("H * * * *", "\"H\" is Jenkins's"),
        (
            "? * * * *",
            "minute (field 1, position 1): \"?\" is not understood: a ? stands alone, as day or weekday",
        ),
        ("0 0 0 ? * 2-6", "weekday (field 6, position 11): \"2-6\" may count from SUN = 0 or from SUN = 1"),
        ("0 0 0 ? * 6#3", "write names, such as MON-FRI"),
        ("0 0 0 ? * L", "write names"),
        ("0 0 * * L", "\"L\" is not understood: write SAT, or FRIL"),
        ("0 0 * * FRI#6", "FRI#1 to FRI#5"),
        ("0 0 L-31 * *", "L-0 to L-30"),
        ("0 0 32W * *", "1W to 31W"),
        ("0 0 0 * * * 2030-2028", "year (field 7, position 13): \"2030-2028\" ends before it begins"),
        ("@every 5m", "\"@every 5m\" is an interval: set every to \"5m\", and no cron"),
        ("@reboot", "\"@reboot\" has no time"),
        ("@fortnightly", "\"@fortnightly\" is no nickname: there are @yearly"),
        ("CRON_TZ=Europe/Berlin 0 9 * * *", "must not name a zone: set zone to \"Europe/Berlin\""),
        ("TZ=Asia/Tokyo 0 9 * * *", "set zone to \"Asia/Tokyo\""),
    ] {
        match settings(serde_json::json!({"cron": cron})) {
            Err(found) if found.field == "cron" && found.what.contains(error) => {}
            other => wrong.push(format!("{cron}: {other:?}")),
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
    for (zone, meant) in
        [("Berlin", "Europe/Berlin"), ("new york", "America/New_York"), ("TOKYO", "Asia/Tokyo")]
    {
        let error = settings(serde_json::json!({"cron": "* * * * *", "zone": zone})).unwrap_err().to_string();
        assert!(error.ends_with(&format!("write {meant}")), "{error}");
    }
}

/// An instant finer than a millisecond was rounded down: an occurrence lay before the start.
#[test]
fn sub_millisecond_start_is_rounded_up() {
    let start = "2027-03-01T10:00:00.0005Z";
    let started = settings(serde_json::json!({"every": "1s", "start": start})).unwrap();
    let first = started.next(at("2027-03-01T09:00:00Z")).unwrap().at;
    assert_eq!(first, at("2027-03-01T10:00:00.001Z"));
    assert_eq!(started.next(first).unwrap().at, at("2027-03-01T10:00:01.001Z"));
    let every = RecurrenceSettings { every: Some("1s".into()), ..RecurrenceSettings::default() };
    let created = Recurrence::new(&every, at(start)).unwrap();
    assert_eq!(created.next(at(start)).unwrap().at, at("2027-03-01T10:00:01.001Z"), "a whole second later");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]
    /// Whatever is written as an expression: no panic, and what comes next is later, within the ten years of a search.
    #[test]
    fn any_expression_is_answered(text in "([0-9*,/#LW?@+ -]|MON|JAN|[0-9]{1,2}|\\*/[0-9]{1,3}| ){1,60}") {
        let given = serde_json::json!({"cron": text, "zone": "America/Santiago"});
        if let Ok(recurrence) = settings(given) {
            let mut last = at("2027-01-01T00:00:00Z");
            for found in recurrence.upcoming(last).take(5) {
                prop_assert!(found.at > last);
                prop_assert!(found.at.duration_since(last).unwrap() <= HORIZON, "as far as a search goes");
                last = found.at;
            }
        }
    }
}
