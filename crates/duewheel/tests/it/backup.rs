//! Copies of a folder in use, and back.

use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::time::Duration;

use duewheel::core::State;
use duewheel::store_log::verify;
use duewheel::{
    BackupError, Duewheel, FolderProblem, HOUR, MINUTE, QueueError, SECOND, VirtualClock, restore,
};

use crate::virtual_wheel;

async fn open(dir: &Path, clock: &VirtualClock) -> Duewheel {
    Duewheel::builder().data(dir).clock(clock.clone()).seed(1).open().await.unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn restored_copy_refuses_original_tokens() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    let clock = VirtualClock::at_2026();
    let wheel = open(&dir.join("data"), &clock).await;
    let queue = wheel.queue("q");
    queue.body("ran out").key("expired").enqueue().await.unwrap();
    let expired = queue.reserve(1, Duration::ZERO).await.unwrap().remove(0);
    // The holder of a lease whose end was the death may still ack it, or bring the message back.
    let last = wheel.queue("last");
    let draft = last.body("ran out for good").key("dead");
    draft.max_attempts(1).enqueue().await.unwrap();
    let dead = last.reserve(1, Duration::ZERO).await.unwrap().remove(0);
    clock.advance(MINUTE); // a lease is 30 s
    while queue.get_key("expired").await.unwrap().unwrap().state != State::Ready
        || last.get_key("dead").await.unwrap().unwrap().state != State::Dead
    {
        tokio::task::yield_now().await;
    }
    // Another queue, or this one would be reserved again.
    let other = wheel.queue("other");
    other.body("in hand").key("leased").enqueue().await.unwrap();
    let leased = other.reserve(1, Duration::ZERO).await.unwrap().remove(0);
    queue.body("later").key("scheduled").delay(HOUR).enqueue().await.unwrap();
    queue.body("at").key("instant").at(clock.now() + HOUR).enqueue().await.unwrap();
    queue.body("gone").key("cancelled").delay(HOUR).enqueue().await.unwrap();
    assert!(matches!(queue.cancel_key("cancelled").await.unwrap(), duewheel::Cancel::Cancelled(_)));

    let copied = wheel.backup(dir.join("copy")).await.unwrap();
    assert!(copied.files > 1 && copied.bytes > 0, "{copied:?}");
    queue.body("too late").key("after").delay(HOUR).enqueue().await.unwrap();
    let seen = queue.get_key("scheduled").await.unwrap().unwrap();
    assert_eq!(verify(dir.join("copy")).unwrap().problems, []);

    let restored = restore(dir.join("copy"), dir.join("restored")).unwrap();
    assert_eq!((restored.messages, restored.tokens_ended), (5, 3));
    let second = open(&dir.join("restored"), &clock).await;
    let queue2 = second.queue("q");
    let there = queue2.get_key("scheduled").await.unwrap().unwrap();
    assert_eq!((&there.message, there.due_at, there.state), (&seen.message, seen.due_at, State::Scheduled));
    assert_eq!(queue2.get_key("instant").await.unwrap().unwrap().due_at, seen.due_at);
    for key in ["cancelled", "after"] {
        assert!(queue2.get_key(key).await.unwrap().is_none(), "{key}");
    }
    for (queue, message) in [("q", &expired), ("other", &leased), ("last", &dead)] {
        let returned = second.queue(queue).not_yet(message, Duration::ZERO, "").await.map(|_| ());
        assert!(matches!(returned, Err(QueueError::LeaseLost)), "{queue}: {returned:?}");
        let refused = second.queue(queue).ack(message).await;
        assert!(matches!(refused, Err(QueueError::LeaseLost)), "{queue}: {refused:?}");
    }
    let still = second.queue("last").get_key("dead").await.unwrap().unwrap();
    assert_eq!(still.dead, last.get_key("dead").await.unwrap().unwrap().dead);
    // The original's own go on, and the copy's leases run out by themselves.
    queue.ack(&expired).await.unwrap();
    other.ack(&leased).await.unwrap();
    last.ack(&dead).await.unwrap();
    assert_eq!(second.queue("other").get_key("leased").await.unwrap().unwrap().state, State::Leased);
    clock.advance(MINUTE);
    for (queue, token) in [("q", expired.lease_token()), ("other", leased.lease_token())] {
        let again = second.queue(queue).reserve(1, SECOND).await.unwrap().remove(0);
        assert_eq!(again.attempt(), 2, "{queue}");
        assert!(again.lease_token() > token, "{queue}");
        second.queue(queue).ack(&again).await.unwrap();
    }
    second.shutdown(SECOND).await.unwrap();
    wheel.shutdown(SECOND).await.unwrap();
    assert_eq!(verify(dir.join("restored")).unwrap().messages, 3);
}

#[tokio::test(flavor = "multi_thread")]
async fn failed_backup_or_restore_is_explained() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    let wheel = open(&dir.join("data"), &VirtualClock::at_2026()).await;
    std::fs::write(dir.join("file"), "x").unwrap();
    let set_mode = |mode| std::fs::set_permissions(dir, PermissionsExt::from_mode(mode)).unwrap();
    set_mode(0o755);
    let shared = wheel.backup(dir).await.unwrap_err();
    assert!(
        matches!(shared, BackupError::Folder { what: FolderProblem::Shared { mode: 0o755 }, .. }),
        "{shared:?}"
    );
    set_mode(0o700);
    for (to, what) in
        [("", "not empty"), ("data/copy", "inside of the data folder"), ("file", "not a directory")]
    {
        let refused = wheel.backup(dir.join(to)).await.unwrap_err();
        assert!(matches!(refused, BackupError::Folder { .. }), "{refused:?}");
        assert!(refused.to_string().contains(what), "{refused}");
    }
    wheel.backup(dir.join("copy")).await.unwrap();
    let twice = wheel.backup(dir.join("copy")).await.unwrap_err();
    assert!(matches!(twice, BackupError::Folder { what: FolderProblem::NotEmpty(_), .. }), "{twice:?}");
    wheel.shutdown(SECOND).await.unwrap();
    let late = wheel.backup(dir.join("late")).await;
    assert!(matches!(late, Err(BackupError::Closed)), "{late:?}");

    let full = restore(dir.join("copy"), dir).unwrap_err().to_string();
    assert!(full.contains("not empty"), "{full}");
    let no_copy = restore(dir.join("nothing"), dir.join("new")).unwrap_err().to_string();
    assert!(no_copy.contains("nothing"), "{no_copy}");
    assert!(!dir.join("new").exists());
    assert_eq!(restore(dir.join("copy"), dir.join("new")).unwrap().messages, 0, "an empty one");
    open(&dir.join("new"), &VirtualClock::at_2026()).await.shutdown(SECOND).await.unwrap();

    let (in_memory, _) = virtual_wheel().await;
    let nothing = in_memory.backup(dir.join("memory")).await;
    assert!(matches!(nothing, Err(BackupError::InMemory)), "{nothing:?}");
}
