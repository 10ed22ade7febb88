//! The descriptions of the operations on schedules.

use duewheel::core::{MessageId, WallMs};
use schemars::json_schema;

use super::operation::{OperationDoc, Tag};
use crate::error::ErrorCode::{DiskFull, InThePast, KeyExists, NotFound, OverQuota};
use crate::http::schedule::{
    BackfillRequest, BackfilledAnswer, ScheduleRemoved, TriggerRequest, TriggeredAnswer,
};
use crate::http::schedule_view::{
    ListedSchedule, OccurrenceAnswer, OccurrenceCountsAnswer, PastOccurrenceAnswer, PreviewAnswer,
    PreviewRequest, ScheduleAnswer, ScheduleFields, ScheduleRequest, SchedulesAnswer,
};
use crate::json::{IdText, InstantText};

const NAME: &str = "weekly-report";
const NEXT: InstantText = InstantText(WallMs(1_767_596_400_000));
const LAST: InstantText = InstantText(WallMs(1_766_991_600_000));
const ZONE_DATA: &str = "system 2025c";

fn next() -> Vec<OccurrenceAnswer> {
    vec![OccurrenceAnswer { at: NEXT, offset: 3_600, note: None, message: None }]
}

fn schedule() -> ScheduleAnswer {
    ScheduleAnswer {
        name: NAME.into(),
        fields: ScheduleFields {
            queue: "reports".into(),
            cron: Some("0 8 * * MON".into()),
            every: None,
            at: Vec::new(),
            zone: Some("Europe/Berlin".into()),
            start: None,
            end: None,
            jitter: None,
            dst_gap: None,
            dst_fold: None,
            body: Some("weekly".into()),
            body_base64: None,
            headers: Default::default(),
            missed: None,
            catchup: None,
            overlap: Some("skip".into()),
            paused: false,
            note: None,
        },
        created_at: LAST,
        remaining: None,
        next: next(),
        latest: vec![PastOccurrenceAnswer { at: LAST, outcome: "entered", message: Some("17".into()) }],
        counts: OccurrenceCountsAnswer { entered: 1, ..Default::default() },
        waits: None,
        error: None,
    }
}

pub(crate) fn put() -> OperationDoc {
    OperationDoc::new(Tag::Operate, "put_schedule", "Create a schedule, or give it other settings")
        .takes::<ScheduleRequest<'_>>(
            r#"{"queue": "reports", "cron": "0 8 * * MON", "zone": "Europe/Berlin", "body": "weekly", "overlap": "skip"}"#,
        )
        .gives(200, "The schedule.", &schedule())
        .refuses(&[KeyExists, InThePast, DiskFull])
}

pub(crate) fn get() -> OperationDoc {
    OperationDoc::new(Tag::Look, "get_schedule", "Look at a schedule")
        .gives(200, "The schedule.", &schedule())
        .refuses(&[NotFound, KeyExists])
}

pub(crate) fn change() -> OperationDoc {
    OperationDoc::new(
        Tag::Operate,
        "change_schedule",
        "Change some settings of a schedule; `null` resets one",
    )
    .takes::<ScheduleRequest<'_>>(r#"{"paused": true, "note": "holidays"}"#)
    .gives(200, "The schedule.", &schedule())
    .refuses(&[NotFound, KeyExists, InThePast, DiskFull])
}

pub(crate) fn remove() -> OperationDoc {
    OperationDoc::new(
        Tag::Operate,
        "remove_schedule",
        "Remove a schedule, and its occurrence that is not due",
    )
    .gives(200, "The schedule is removed.", &ScheduleRemoved { name: NAME.into(), removed: true })
    .refuses(&[NotFound])
}

pub(crate) fn list() -> OperationDoc {
    let listed = ListedSchedule {
        name: NAME.into(),
        queue: Some("reports".into()),
        paused: false,
        next: Some(NEXT),
        counts: OccurrenceCountsAnswer { entered: 1, ..Default::default() },
        error: None,
    };
    let example = SchedulesAnswer { schedules: vec![listed], next: None, zone_data: ZONE_DATA.into() };
    OperationDoc::new(Tag::Look, "list_schedules", "List schedules by name")
        .query("after", "The `next` of the page before.", |_| json_schema!({"type": "string"}), NAME.into())
        .query(
            "limit",
            "The largest number of schedules; 100 by default.",
            |_| json_schema!({"type": "integer", "minimum": 1, "x-limit": "max_page"}),
            100.into(),
        )
        .gives(200, "A page.", &example)
}

pub(crate) fn trigger() -> OperationDoc {
    OperationDoc::new(Tag::Operate, "trigger_schedule", "Enter one message of a schedule now")
        .may_take::<TriggerRequest<'_>>(r#"{"dedupe_id": "after-the-fix"}"#)
        .gives(
            201,
            "The message.",
            &TriggeredAnswer { id: IdText(MessageId(17)), due_at: NEXT, replayed: false },
        )
        .refuses(&[NotFound, KeyExists, OverQuota, DiskFull])
}

pub(crate) fn backfill() -> OperationDoc {
    OperationDoc::new(Tag::Operate, "backfill_schedule", "Enter the occurrences of a time past")
        .takes::<BackfillRequest<'_>>(
            r#"{"from": "2026-01-01T00:00:00Z", "to": "2026-01-03T00:00:00Z", "id": "first-days"}"#,
        )
        .gives(
            200,
            "The occurrences have entered.",
            &BackfilledAnswer { id: "first-days".into(), occurrences: 2 },
        )
        .refuses(&[NotFound, KeyExists, OverQuota, DiskFull])
}

pub(crate) fn preview() -> OperationDoc {
    OperationDoc::new(Tag::Look, "preview_schedule", "See when a schedule would occur, without saving it")
        .takes::<PreviewRequest>(r#"{"cron": "0 8 * * MON", "zone": "Europe/Berlin", "count": 1}"#)
        .gives(200, "The next occurrences.", &PreviewAnswer { next: next(), zone_data: ZONE_DATA.into() })
}
