//! The places of jobs on a node.

use std::sync::Arc;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// The place of a run among the steps that its node does at a time. A run that waits has none.
#[derive(Debug)]
pub(super) struct BulkPlace {
    pub(super) all: Arc<Semaphore>,
    pub(super) taken: Option<OwnedSemaphorePermit>,
}

#[cfg(test)]
mod tests {
    use duewheel::core::{MessageId, Policy};
    use duewheel::{Duewheel, VirtualClock};
    use tokio::sync::watch;
    use tokio::time::Instant;

    use super::*;
    use crate::bulk::record::BulkRecord;
    use crate::bulk::run::BulkRun;
    use crate::limits::BULK_TURN_LOOK;
    use crate::{BulkAction, BulkFilter, BulkJobs, BulkTenant};

    impl BulkPlace {
        /// A place for one run alone.
        pub(in crate::bulk) fn alone() -> Self {
            BulkPlace { all: Arc::new(Semaphore::new(1)), taken: None }
        }
    }

    #[tokio::test]
    async fn waiting_run_releases_its_slot() {
        let wheel = Duewheel::builder().in_memory().clock(VirtualClock::at_2026()).open().await.unwrap();
        let jobs = BulkJobs::new(&wheel, &Policy::default()).unwrap();
        let (filter, action) = (BulkFilter::default(), BulkAction::Cancel);
        let record = BulkRecord::new(BulkTenant::Common, "orders".into(), filter, action, None, 0);
        let (stop, stopped) = watch::channel(false);
        let BulkPlace { all, .. } = BulkPlace::alone();
        let taken = Some(all.clone().acquire_owned().await.unwrap());
        let place = BulkPlace { all: all.clone(), taken };
        let mut run = BulkRun::new(&jobs, "job", (MessageId(1), 1), record, place, stopped);
        let mut resting = Box::pin(run.rest(Instant::now() + BULK_TURN_LOOK));
        tokio::select! {
            biased;
            _ = &mut resting => panic!("it does not wait"),
            () = std::future::ready(()) => assert_eq!(all.available_permits(), 1),
        }
        stop.send(true).unwrap();
        resting.await.unwrap();
        assert_eq!(all.available_permits(), 0);
    }
}
