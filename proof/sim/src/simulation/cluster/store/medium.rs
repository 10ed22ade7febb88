//! The medium of a shard on the simulated server: what the store of a node is given.

use super::*;

/// How often a write to the journal is sent until its owner ends, on a medium where it is sent again.
const ATTEMPTS: u32 = 4;

/// The files of a shard, for its owner.
#[derive(Debug)]
pub(in super::super) struct SimMedium {
    pub(super) world: World,
    pub(super) reign: Arc<Mutex<Reign>>,
}

impl SimMedium {
    fn reign(&self) -> Result<MutexGuard<'_, Reign>, StoreError> {
        let mut reign = lock(&self.reign);
        reign.check(&self.world)?;
        Ok(reign)
    }

    /// Sends a change. Without an answer it is sent again or the owner ends: what it was may have been done, or will be.
    fn change(&self, change: Change) -> Result<Met, StoreError> {
        let mut reign = self.reign()?;
        let behind = reign.behind(&change);
        let is_repeated =
            matches!(change, Change::Write { journal: Some(_), .. }) && self.world.state().repeats;
        let mut met = None;
        for attempt in 0..if is_repeated { ATTEMPTS } else { 1 } {
            self.world.state().facts.writes_repeated += u64::from(attempt > 0);
            met = self.attempt(&mut reign, &change, behind);
            if met.is_some() {
                break;
            }
        }
        let Some(met) = met else {
            reign.end(away());
            return Err(away());
        };
        if met == Met::Fenced {
            reign.end(fenced("another owner has the shard"));
            return Err(fenced("another owner has the shard").with_nothing_from(Lsn(0)));
        }
        reign.count(&change);
        Ok(met)
    }

    /// Sends a change once; `None` without an answer.
    fn attempt(&self, reign: &mut Reign, change: &Change, behind: Behind) -> Option<Met> {
        let mut state = self.world.state();
        let place = reign.place;
        let is_lost = |state: &mut State| match state.links[place] {
            Link::Fine => false,
            Link::Cut => true,
            Link::Lossy(percent) => state.rng.percent(percent),
        };
        let bug = state.bug;
        if is_lost(&mut state) {
            // It may be on its way still, and arrive when the cut ends.
            let arrives = state.links[place] == Link::Cut || state.rng.percent(50);
            drop(state);
            match (change, bug) {
                (Change::Write { journal: Some(_), .. }, Some(WorldBug::LostWriteAcked))
                | (Change::Write { journal: None, .. }, Some(WorldBug::LostBlobAcked)) => {
                    return Some(Met::Done);
                }
                _ => {}
            }
            if arrives {
                reign.send(&self.world, Ask::Change(change.clone(), behind));
                // Some calls come so late that another node has the shard.
                let mut state = self.world.state();
                if let Some((at, _)) = reign.there.back_mut().filter(|_| state.rng.percent(50)) {
                    *at += state.rng.range(300, 3_000) * MS;
                }
            }
            self.world.state().facts.unanswered_writes += 1;
            return None;
        }
        if let (Change::Write { file, journal: None, .. }, Some(WorldBug::NameFirst)) = (change, bug) {
            // Its pieces come a little later.
            state.shards[reign.shard.0 as usize].files.bytes.entry(*file).or_default();
            drop(state);
            reign.send(&self.world, Ask::Change(change.clone(), behind));
            return Some(Met::Done);
        }
        // The answer may be lost, too.
        let is_heard = !is_lost(&mut state);
        let met = match is_heard || bug != Some(WorldBug::RetryWithOtherBytes) {
            true => state.apply(reign, change.clone(), behind),
            false => state.apply(reign, change.clone().shortened(), behind),
        };
        state.facts.unanswered_writes += u64::from(!is_heard);
        state.facts.late_writes += u64::from(!is_heard && met == Met::Done);
        state.facts.stale_writes_refused += u64::from(met == Met::Fenced);
        is_heard.then_some(met)
    }

    /// Reads what the server has.
    fn look<T>(&self, read: impl FnOnce(&Files, Option<WorldBug>) -> T) -> Result<T, StoreError> {
        let mut reign = self.reign()?;
        let mut state = self.world.state();
        if let Err(error) = state.reaches(reign.place) {
            drop(state);
            reign.end(error.clone());
            return Err(error);
        }
        Ok(read(&state.shards[reign.shard.0 as usize].files, state.bug))
    }
}

impl MediumFiles for SimMedium {
    fn read(&self, file: FileId, at: u64, length: usize) -> Result<Vec<u8>, StoreError> {
        self.look(|kept, _| {
            let mut bytes = vec![0; length];
            let written =
                kept.bytes.get(&file).map_or(&[][..], |bytes| &bytes[as_index(at).min(bytes.len())..]);
            let there = written.len().min(length);
            bytes[..there].copy_from_slice(&written[..there]);
            bytes
        })
    }

    fn find(&self, name: &str) -> Result<Option<NamedFile>, StoreError> {
        self.look(|kept, bug| {
            let stale = kept.former.get(name).filter(|_| bug == Some(WorldBug::StaleNames));
            stale.or(kept.names.get(name)).copied()
        })
    }

    fn list(&self, prefix: &str) -> Result<Vec<String>, StoreError> {
        self.look(|kept, _| kept.names.keys().filter(|name| name.starts_with(prefix)).cloned().collect())
    }
}

impl Medium for SimMedium {
    fn epoch(&self) -> Epoch {
        lock(&self.reign).owner.epoch
    }

    fn check(&self) -> Result<(), StoreError> {
        self.reign().map(drop)
    }

    fn lease_left(&self) -> Duration {
        let reign = lock(&self.reign);
        reign.until.saturating_sub(reign.clock.running())
    }

    fn lease(&self) -> Duration {
        LEASE
    }

    fn write(&self, file: FileId, kind: FileKind, pieces: Vec<Piece>) -> Result<Level, StoreError> {
        let journal = match kind {
            FileKind::Journal => Some(lock(&self.reign).journal),
            FileKind::Blob => None,
        };
        self.change(Change::Write { file, journal, pieces })?;
        if journal.is_some() {
            lock(&self.reign).journal += 1;
        }
        Ok(Level::Buffered)
    }

    fn give_name(&self, name: &str, file: FileId, _: FileKind, bytes: u64) -> Result<(), StoreError> {
        let file = NamedFile { id: file, bytes };
        self.change(Change::Name { name: name.to_owned(), file }).map(drop)
    }

    fn remove(&self, name: &str) -> Result<bool, StoreError> {
        Ok(self.change(Change::Remove(name.to_owned()))? == Met::Done)
    }

    fn discard(&self, file: FileId) -> Result<(), StoreError> {
        self.change(Change::Discard(file)).map(drop)
    }

    fn level(&self) -> Level {
        Level::Buffered
    }

    fn unique(&self) -> Result<u64, StoreError> {
        Ok(self.world.state().rng.bits())
    }

    fn note_clocks(&self) {
        lock(&self.reign).notes = true;
    }

    fn give_back(&self, _next_id: Option<MessageId>) -> Result<(), StoreError> {
        let reign = self.reign()?;
        let mut state = self.world.state();
        state.reaches(reign.place)?;
        let kept = &mut state.shards[reign.shard.0 as usize];
        if kept.is_of(&reign) {
            kept.lease = None;
        }
        Ok(())
    }

    fn ended(&self, why: StoreError) {
        // The lease is not renewed any more; earlier calls may still arrive.
        let mut reign = lock(&self.reign);
        reign.hands = None;
        reign.end(why);
    }
}
