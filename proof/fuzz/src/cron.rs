//! Cron expressions, which users write: what they cost to read and to search, and whether their occurrences agree.

use std::time::{Duration, SystemTime};

use duewheel_delivery::{Occurrence, Recurrence, RecurrenceSettings, fuzzing};

/// Zones with gaps and folds of all kinds, and without any.
const ZONES: [&str; 8] = [
    "UTC",
    "America/New_York",
    "Australia/Lord_Howe",
    "America/Santiago",
    "Australia/Sydney",
    "Africa/Casablanca",
    "Pacific/Apia",
    "Asia/Kathmandu",
];

/// A search goes no further.
const TEN_YEARS: Duration = Duration::from_secs(3_653 * 86_400);
/// Days that one search looks at, at most: each of ten years, and those around changes of clocks.
const STEPS: u64 = 10_000;
/// Memory that an expression takes while it is read and searched, at most, in bytes.
const BYTES: u64 = 256 * 1024;
/// Occurrences that are looked at.
const LOOKED_AT: usize = 4;

/// Zone, treatment of gaps and folds, and the creation, in six bytes; then the expression.
pub fn cron(data: &[u8]) {
    let Some((&[zone, modes, a, b, c, d], text)) = data.split_first_chunk() else { return };
    let Ok(text) = std::str::from_utf8(text) else { return };
    let settings = RecurrenceSettings {
        cron: Some(text.to_owned()),
        zone: Some(ZONES[usize::from(zone) % ZONES.len()].to_owned()),
        dst_gap: (modes & 1 != 0).then(|| "skip".to_owned()),
        dst_fold: (modes & 2 != 0).then(|| "both".to_owned()),
        ..RecurrenceSettings::default()
    };
    // From 1970 to 2106.
    let created = SystemTime::UNIX_EPOCH + Duration::from_secs(u64::from(u32::from_le_bytes([a, b, c, d])));
    let read = bounded(text, || Recurrence::new(&settings, created));
    assert!(text.len() <= 256 || read.is_err(), "an expression of {} bytes is read", text.len());
    let Ok(recurrence) = read else { return };
    let first = bounded(text, || recurrence.next(created - Duration::from_nanos(1)));
    assert!(first.is_some(), "{text:?} is read, and has no occurrence in ten years");
    let mut after = created;
    for _ in 0..LOOKED_AT {
        let Some(Occurrence { at, .. }) = bounded(text, || recurrence.next(after)) else { return };
        assert!(at > after, "{text:?}: {at:?} is not after {after:?}");
        assert!(at <= after + TEN_YEARS, "{text:?}: {at:?} is too far from {after:?}");
        let again = bounded(text, || recurrence.next(at - Duration::from_nanos(1)));
        assert_eq!(
            again.map(|again| again.at),
            Some(at),
            "{text:?}: {at:?} is not found from just before it"
        );
        after = at;
    }
}

/// Does something with an expression, and checks what it has cost.
fn bounded<T>(text: &str, act: impl FnOnce() -> T) -> T {
    fuzzing::cron_steps();
    let mut result = None;
    let cost = allocation_counter::measure(|| result = Some(act()));
    let steps = fuzzing::cron_steps();
    assert!(steps <= STEPS, "{text:?}: a search of {steps} steps");
    assert!(cost.bytes_max <= BYTES, "{text:?}: {} bytes", cost.bytes_max);
    result.expect("it was done")
}
