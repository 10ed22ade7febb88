//! The descriptions of the operations on targets.

use duewheel::core::{MessageId, WallMs};
use schemars::json_schema;

use super::operation::{OperationDoc, Tag};
use crate::error::ErrorCode::{DiskFull, InUse, KeyExists, NotFound, OverQuota};
use crate::http::target::{PauseTargetRequest, TargetRemoved};
use crate::http::target_view::{
    NetworksFields, PushCountsAnswer, TargetAnswer, TargetAttemptAnswer, TargetRequest, TargetRetryAnswer,
    TargetSettingsAnswer, TargetsAnswer, TestedAnswer,
};
use crate::json::{IdText, InstantText};

const NAME: &str = "shop";
const CREATED: InstantText = InstantText(WallMs(1_766_991_600_000));

fn target() -> TargetAnswer {
    TargetAnswer {
        name: NAME.into(),
        state: "active",
        reason: None,
        since: None,
        error: None,
        delivers: vec!["close-review".into()],
        settings: Some(TargetSettingsAnswer {
            url: "https://example.com/hook".into(),
            method: "POST".into(),
            headers: Vec::new(),
            secrets: vec!["LaSw".into()],
            timeout_ms: 30_000,
            concurrency: 10,
            rate: None,
            retry: TargetRetryAnswer::delays(&["5s", "5m", "30m", "2h", "5h", "10h"]),
            max_attempts: 10,
            dead_on: Vec::new(),
            networks: NetworksFields::public(),
            queues: None,
            ca_pem: None,
            client_certificate: false,
        }),
        created_at: CREATED,
        counts: Some(PushCountsAnswer { delivered: 17, ..Default::default() }),
        attempts: None,
    }
}

fn attempt() -> TargetAttemptAnswer {
    TargetAttemptAnswer {
        message: IdText(MessageId(17)),
        queue: "close-review".into(),
        attempt: 1,
        at: CREATED,
        ms: 17,
        status: Some(200),
        class: "status_200".into(),
        answer: "ok".into(),
    }
}

pub(crate) fn put() -> OperationDoc {
    OperationDoc::new(Tag::Operate, "put_target", "Create a target, or give it other settings")
        .takes::<TargetRequest>(
            r#"{"url": "https://example.com/hook", "secrets": ["whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"]}"#,
        )
        .gives(200, "The target.", &target())
        .refuses(&[InUse, OverQuota, DiskFull])
}

pub(crate) fn get() -> OperationDoc {
    OperationDoc::new(Tag::Look, "get_target", "Look at a target")
        .gives(200, "The target.", &TargetAnswer { attempts: Some(vec![attempt()]), ..target() })
        .refuses(&[NotFound])
}

pub(crate) fn list() -> OperationDoc {
    OperationDoc::new(Tag::Look, "list_targets", "List targets by name")
        .query("after", "The `next` of the page before.", |_| json_schema!({"type": "string"}), NAME.into())
        .query(
            "limit",
            "The largest number of targets; 100 by default.",
            |_| json_schema!({"type": "integer", "minimum": 1, "x-limit": "max_page"}),
            100.into(),
        )
        .gives(200, "A page.", &TargetsAnswer { targets: vec![target()], next: None })
}

pub(crate) fn remove() -> OperationDoc {
    OperationDoc::new(Tag::Operate, "remove_target", "Remove a target that no queue is delivered to")
        .gives(200, "The target is removed.", &TargetRemoved { name: NAME.into(), removed: true })
        .refuses(&[NotFound, InUse])
}

pub(crate) fn pause() -> OperationDoc {
    OperationDoc::new(Tag::Operate, "pause_target", "Let the messages of a target wait until it is resumed")
        .may_take::<PauseTargetRequest<'_>>(r#"{"reason": "the shop is being moved"}"#)
        .gives(200, "The target.", &target())
        .refuses(&[NotFound, KeyExists, DiskFull])
}

pub(crate) fn resume() -> OperationDoc {
    OperationDoc::new(Tag::Operate, "resume_target", "Resume deliveries to a paused target")
        .gives(200, "The target.", &target())
        .refuses(&[NotFound, KeyExists, DiskFull])
}

pub(crate) fn test() -> OperationDoc {
    let tested = TestedAnswer {
        at: CREATED,
        delivered: true,
        status: Some(200),
        class: "status_200".into(),
        ms: 17,
        answer: "ok".into(),
        webhook_id: "dw_0f4e2bd1c5a64c0e9a5b3f0e8d7c6b5a_test-5b0e9c2f_0".into(),
    };
    OperationDoc::new(Tag::Operate, "test_target", "Send one signed message now")
        .gives(200, "The answer of the target.", &tested)
        .refuses(&[NotFound, KeyExists, OverQuota, DiskFull])
}
