//! The settings of a queue, through the library.

use duewheel::core::policy::QueueSettings;
use duewheel::core::store::Level;
use duewheel::{Duewheel, Policy, SECOND};

/// Story: settings that were refused were told as "no answer: the driver gave another answer", of unknown outcome.
#[tokio::test]
async fn refused_settings_name_field_and_limit() {
    let policy = Policy { max_queues: 1, ..Policy::default() };
    let max = policy.max_lease_ms;
    let wheel = Duewheel::builder().in_memory().policy(policy).open().await.unwrap();
    let with_lease = |ms| QueueSettings { lease_ms: Some(ms), ..QueueSettings::default() };

    let refused = wheel.queue("q").configure(with_lease(max + 1)).await.unwrap_err();
    assert_eq!(refused.to_string(), format!("lease_ms is out of range: at most {max}"));
    let level = wheel.queue("q").configure(with_lease(max)).await.unwrap();
    assert_eq!(level, Level::Memory);
    assert_eq!(wheel.queue("q").pause().await.unwrap(), Level::Memory);
    assert_eq!(wheel.queue("q").resume().await.unwrap(), Level::Memory);

    let too_many = wheel.queue("another").configure(with_lease(1)).await.unwrap_err();
    assert_eq!(too_many.to_string(), wheel.queue("another").pause().await.unwrap_err().to_string());
    let found = wheel.queue("q").info().await.unwrap().unwrap();
    assert_eq!(found.settings, with_lease(max), "what was refused has changed nothing");
    wheel.shutdown(SECOND).await.unwrap();
}
