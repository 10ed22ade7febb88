//! Quotas of the library.

use duewheel::core::engine::{EnqueueRefusal, Quota};
use duewheel::{Duewheel, EnqueueError, SECOND};

#[tokio::test]
async fn library_quotas_can_be_changed() {
    let few = Quota { prefix: "few".into(), messages: Some(1), ..Quota::default() };
    let bad = Quota { messages: Some(0), ..few.clone() };
    let error = Duewheel::builder().in_memory().quotas([bad.clone()]).open().await.unwrap_err();
    assert!(error.to_string().contains("messages: must be from 1"), "{error}");
    let wheel = Duewheel::builder().in_memory().quotas([few.clone()]).open().await.unwrap();
    wheel.queue("few").body("a").enqueue().await.unwrap();
    let refused = wheel.queue("few").body("b").enqueue().await.unwrap_err();
    assert!(matches!(&refused, EnqueueError::Refused(EnqueueRefusal::OverQuota(_))), "{refused}");
    assert_eq!(refused.to_string(), r#"refused: quota "few": 1 of 1 messages are used"#);
    assert!(wheel.set_quotas(vec![bad]).is_err());
    assert_eq!(wheel.quotas().await.unwrap()[0].quota, few, "those before go on");
    wheel.set_quotas(vec![Quota { messages: Some(2), ..few }]).unwrap();
    wheel.queue("few").body("b").enqueue().await.unwrap();
    assert_eq!(wheel.quotas().await.unwrap()[0].used, [2, 2, 0, 0, 0]);
    wheel.shutdown(SECOND).await.unwrap();
}
