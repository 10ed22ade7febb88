//! Look-ups of the owner, and what is fetched for them.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use duewheel_core::store::{AtHand, ErrorKind, Found, Left, Lookups, StoreError};

use super::LogStore;
use crate::background::{self, PoisonOnPanic};
use crate::fault::ReadFault;
use crate::find::Finder;
use crate::options::WorkMode;
use crate::readers::ReadPriority;
use crate::run::Blocking;

impl LogStore {
    /// Finds what was asked for, as of now.
    pub(super) fn find(&self, lookups: &Lookups, found: &mut Found) -> Result<AtHand, StoreError> {
        self.check()?;
        let view = self.shared.view();
        let finder = Finder {
            view: &view,
            active: Some(&self.active),
            readers: &self.shared.readers,
            whom: ReadPriority::Owner,
            blocking: if lookups.at_hand { Blocking::Never } else { Blocking::Allowed },
        };
        let before = (found.rows.len(), found.answers.len());
        let take_back = |found: &mut Found| {
            found.rows.truncate(before.0);
            found.answers.truncate(before.1);
            found.left = Left::default();
        };
        match finder.find(lookups, found) {
            Ok(()) => Ok(AtHand::Yes),
            Err(ReadFault::NotAtHand) => {
                take_back(found);
                Ok(AtHand::No)
            }
            Err(fault) => {
                let error = StoreError::from(fault);
                // The disk would not give a block. Nothing has been changed, and nothing that is asked for elsewhere
                // is in doubt.
                if error.kind() == ErrorKind::Unavailable {
                    take_back(found);
                    return Err(error);
                }
                self.or_poison(Err(error))
            }
        }
    }

    /// Lets a reader fetch what a look-up needs.
    pub(super) fn begin_fetch(&self, ticket: u64, lookups: Lookups) {
        self.shared.fetches.ask(ticket, lookups);
        if self.shared.options.workers == WorkMode::ByHand {
            return;
        }
        // A job that is left over when the store is dropped must not keep it.
        let shared = Arc::downgrade(&self.shared);
        self.shared.readers.spawn(ReadPriority::Fetch, move || {
            if let Some(shared) = shared.upgrade() {
                // A panic ends the store, and no thread that others use.
                let _ = catch_unwind(AssertUnwindSafe(|| {
                    let _guard = PoisonOnPanic(&shared, "duewheel-read");
                    background::fetch_step(&shared);
                }));
            }
        });
    }
}
