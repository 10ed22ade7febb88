//! Times on the command line, as people write them, and what the answer says of how they were read.

use std::process::{Command, Output};

use serde_json::{Value, json};
use tempfile::TempDir;

use crate::process::{BINARY, run, text};
use crate::shell::Shell;

/// In a zone that is 5 1/2 hours ahead.
fn in_kolkata(shell: &Shell, args: &[&str]) -> (Output, String) {
    let output = shell.command(args).env("TZ", "Asia/Kolkata").output().expect("output");
    let note = text(&output.stderr);
    (output, note)
}

/// The answer of a command with `--json`, and its notes, one a line.
fn said(shell: &Shell, args: &[&str]) -> (Value, String) {
    let (output, stderr) = in_kolkata(shell, args);
    assert!(output.status.success() && stderr.is_empty(), "{args:?}: {stderr}");
    let answer: Value = serde_json::from_slice(&output.stdout).expect("JSON");
    let notes = answer["notes"].as_array().into_iter().flatten().filter_map(Value::as_str);
    let notes: String = notes.map(|note| format!("{note}\n")).collect();
    (answer, notes)
}

#[test]
fn schedule_times_accept_human_formats() {
    let shell = Shell::new();
    let put =
        ["schedule", "put", "once", "--queue", "q", "--json", "--at", "2099-01-31 9:00", "--at", "in 2 days"];
    let (made, note) = said(&shell, &put);
    assert_eq!(made["at"][0], "2099-01-31T03:30:00.000Z", "{made}");
    assert_eq!(note, "--at \"2099-01-31 9:00\": taken as 2099-01-31 09:00:00 +05:30 of Asia/Kolkata\n");
    // The schedule's own zone counts, if it has one.
    let more = ["--zone", "Europe/Berlin", "--start", "2099-01-01 9:00", "--end", "2099-07-01T09:00:00Z"];
    let put =
        [&["schedule", "put", "daily", "--queue", "q", "--json", "--cron", "0 9 * * *"][..], &more].concat();
    let (made, note) = said(&shell, &put);
    assert_eq!(made["start"], "2099-01-01T08:00:00.000Z", "{made}");
    assert_eq!(made["end"], "2099-07-01T09:00:00Z", "{made}");
    assert_eq!(note, "--start \"2099-01-01 9:00\": taken as 2099-01-01 09:00:00 +01:00 of Europe/Berlin\n");
    let seen =
        ["schedule", "preview", "--json", "--cron", "0 9 * * *", "--count", "1", "--from", "2099-01-31"];
    let (seen, note) = said(&shell, &seen);
    assert_eq!(seen["next"][0]["at"], "2099-01-31T09:00:00.000Z", "{seen}");
    assert_eq!(note, "--from \"2099-01-31\": taken as 2099-01-31 00:00:00 +05:30 of Asia/Kolkata\n");
    let (made, note) = said(&shell, &["schedule", "put", "often", "--queue", "q", "--json", "--every", "90"]);
    assert_eq!(made["every"], "1m30s", "{made}");
    assert_eq!(note, "--every \"90\": 90 is taken as 90 seconds\n");
    shell.ok(&["schedule", "put", "past", "--queue", "q", "--cron", "0 9 * * *"]);
    let fill = ["schedule", "backfill", "past", "--json", "--from", "2026-01-01", "--to", "2026-01-03 23:00"];
    let (filled, note) = said(&shell, &fill);
    assert_eq!(filled["occurrences"], 3, "{filled}");
    assert!(
        note.contains("--from \"2026-01-01\": taken as") && note.contains("--to \"2026-01-03 23:00\""),
        "{note}"
    );
    for (option, value) in [("--start", "tomorrow"), ("--end", "soon"), ("--at", "9:00")] {
        let told = shell.fails(&["schedule", "put", "x", "--queue", "q", option, value], 2);
        assert!(told.contains(&format!("{option} {value:?}: must ")), "{told}");
    }
    let told = shell.fails(
        &["schedule", "preview", "--cron", "0 9 * * *", "--zone", "Mars/Base", "--start", "2099-01-01"],
        2,
    );
    assert!(told.contains("--start \"2099-01-01\": its zone is not known here"), "{told}");
    let told = shell.fails(&["schedule", "backfill", "daily", "--from", "soon", "--to", "2026-01-03"], 2);
    assert!(told.contains("--from") && told.contains("soon"), "{told}");
}

/// Story: the zone in which `--at`, `--start` and `--from` were read went to the server, too, which takes one for cron
/// expressions only and refused it.
#[test]
fn schedule_zone_needs_no_cron() {
    let shell = Shell::new();
    let zone = ["--zone", "Europe/Berlin", "--json"];
    let put = |more: &[&str]| said(&shell, &[&["schedule", "put"], more, &zone].concat());
    let (made, note) = put(&["once", "--queue", "q", "--at", "2099-01-31 9:00"]);
    assert_eq!(made["at"][0], "2099-01-31T08:00:00.000Z", "{made}");
    assert!(note.contains("+01:00 of Europe/Berlin"), "{note}");
    let (made, _) = put(&["often", "--queue", "q", "--every", "6h", "--start", "2099-01-31 9:00"]);
    assert_eq!(made["start"], "2099-01-31T08:00:00.000Z", "{made}");
    let preview = ["schedule", "preview", "--every", "6h", "--start", "2099-01-31T08:00:00Z", "--count", "1"];
    let from = ["--from", "2099-01-31 9:30"];
    let (seen, _) = said(&shell, &[&preview[..], &from, &zone].concat());
    assert_eq!(seen["next"][0]["at"], "2099-01-31T14:00:00.000Z", "{seen}");
    // Nothing here is of a zone.
    let refused =
        shell.fails(&["schedule", "put", "x", "--queue", "q", "--every", "6h", "--zone", "Asia/Tokyo"], 2);
    assert!(refused.contains("--zone"), "{refused}");
    // Alone it is that of the expression which the schedule has.
    let (made, _) = put(&["daily", "--queue", "q", "--cron", "0 9 * * *"]);
    assert_eq!(made["zone"], "Europe/Berlin", "{made}");
    let changed = shell.json(&["schedule", "put", "daily", "--zone", "Asia/Tokyo", "--json"]);
    assert_eq!(changed["zone"], "Asia/Tokyo", "{changed}");
}

#[test]
fn bare_number_means_seconds() {
    let shell = Shell::new();
    let (made, note) =
        said(&shell, &["enqueue", "q", "x", "--delay", "1h", "--lease", "90", "--spread", "5s", "--json"]);
    assert_eq!(note, "--lease \"90\": 90 is taken as 90 seconds\n");
    let id = made["id"].as_str().expect("an id");
    assert_eq!(shell.json(&["get", id, "--json"])["lease_ms"], 90_000);
    let (_, note) = said(&shell, &["config", "q", "--backoff", "1s..120", "--json"]);
    assert_eq!(note, "--backoff \"1s..120\": 120 is taken as 120 seconds\n");
    let bulk = ["bulk", "postpone", "q", "--all", "--shift", "-90", "--dry-run", "--json"];
    assert_eq!(said(&shell, &bulk).1, "--shift \"-90\": 90 is taken as 90 seconds\n");
    let (output, note) = in_kolkata(&shell, &["pause", "q", "--for", "60"]);
    assert!(output.status.success() && note == "--for \"60\": 60 is taken as 60 seconds\n", "{note}");
}

#[test]
fn filter_times_report_their_zone() {
    let shell = Shell::new();
    shell.ok(&["enqueue", "q", "x", "--at", "2099-01-31T03:30:00Z"]);
    let filter = ["--due-from", "2099-01-31 9:00", "--due-to", "2099-01-31 9:01"];
    let (count, note) =
        said(&shell, &[&["bulk", "cancel", "q", "--dry-run", "--json"], &filter[..]].concat());
    assert_eq!(count["matched"], 1);
    let of = |option: &str, minute: u8| {
        format!(
            "{option} \"2099-01-31 9:0{minute}\": taken as 2099-01-31 09:0{minute}:00 +05:30 of Asia/Kolkata\n"
        )
    };
    assert_eq!(note, of("--due-from", 0) + &of("--due-to", 1));
    let (listed, note) = said(&shell, &["list", "q", "--json", "--due-from", "2099-01-31T03:31:00Z"]);
    assert_eq!((&listed["messages"], note.as_str()), (&json!([]), ""));
    let (_, note) =
        said(&shell, &["histogram", "q", "--json", "--from", "2099-01-31", "--to", "2099-02-01T00:00:00Z"]);
    assert_eq!(note, "--from \"2099-01-31\": taken as 2099-01-31 00:00:00 +05:30 of Asia/Kolkata\n");
}

#[test]
fn token_expires_by_duration_or_instant() {
    let dir = TempDir::new().expect("dir");
    let new = |expires: &str| {
        let mut command = Command::new(BINARY);
        command.args(["token", "new", "--name", "n", "--scope", "admin", "--expires", expires]);
        run(command.current_dir(dir.path()).env("TZ", "Asia/Kolkata"))
    };
    let made = new("2099-01-31");
    let (block, note) = (text(&made.stdout), text(&made.stderr));
    assert!(block.contains("expires = \"2099-01-30T18:30:00.000Z\""), "{block}");
    assert!(
        note.starts_with("--expires \"2099-01-31\": taken as 2099-01-31 00:00:00 +05:30 of Asia/Kolkata\n"),
        "{note}"
    );
    for (given, said) in [
        ("90d", ""),
        ("2 weeks", ""),
        ("3600", "3600 is taken as 3600 seconds"),
        ("1 year", "taken as 20"),
        ("tomorrow 9:00", "of Asia/Kolkata"),
    ] {
        let made = new(given);
        let (block, note) = (text(&made.stdout), text(&made.stderr));
        assert!(
            made.status.success() && block.contains("expires = \"20") && note.contains(said),
            "{given}: {note}"
        );
    }
    for (given, why) in
        [("soon", "must be a length of time"), ("2001-01-01", "has passed"), ("tomorrow", "at what time")]
    {
        let failed = new(given);
        let told = text(&failed.stderr);
        assert_eq!(failed.status.code(), Some(2), "{told}");
        assert!(told.contains(&format!("--expires {given:?}: ")) && told.contains(why), "{told}");
    }
}

/// Story: `--wait 30sec` was read when everything else had begun, and the error did not repeat it.
#[test]
fn invalid_wait_is_refused_by_value() {
    let mut command = Command::new(BINARY);
    command.args([
        "import",
        "--beanstalk",
        "127.0.0.1:1",
        "--server",
        "http://127.0.0.1:1",
        "--wait",
        "soon",
    ]);
    let failed = run(&mut command);
    let told = text(&failed.stderr);
    assert_eq!(failed.status.code(), Some(2), "{told}");
    assert!(told.contains("'soon'") && told.contains("--wait"), "{told}");
}
