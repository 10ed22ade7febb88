//! Patches: the changes of a message whose other content is in an older table.

use duewheel_core::message::{Lease, Life, Row, Stage};

/// The changes of a message that is in an older table.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Patch {
    pub(super) life: Option<Life>,
    pub(super) grant: Option<(u32, Lease)>,
}

impl Patch {
    /// Applies the change to what was known before.
    pub(crate) fn apply(self, row: &mut Row) {
        if let Some(life) = self.life {
            row.life = life;
        }
        if let Some((attempt, lease)) = self.grant {
            row.life.attempt = attempt;
            row.life.stage = Stage::Leased(lease);
        }
    }

    /// This change applied after an older one.
    pub(crate) fn on(self, older: Patch) -> Patch {
        match self.life {
            Some(_) => self,
            None => Patch { life: older.life, grant: self.grant.or(older.grant) },
        }
    }
}
