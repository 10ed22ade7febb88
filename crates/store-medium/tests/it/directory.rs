//! A medium of plain files: one directory for each shard, on a disk that several processes of one machine share.

use std::fs::{self, File, OpenOptions};
use std::io::{self, ErrorKind::NotFound, Write};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::time::{Duration, SystemTime};

use duewheel_core::store::{ErrorKind, Level, StoreError};
use duewheel_core::{Epoch, MessageId};
use duewheel_store_medium::{Acquired, FileId, FileKind, Medium, MediumFiles, NamedFile, Piece, read_clocks};

/// How long an owner keeps the shard without saying so again. Here it is looked up each time, so nothing depends on it.
const LEASE: Duration = Duration::from_secs(5);

/// The files of a shard, for its owner.
#[derive(Debug)]
pub(crate) struct Directory {
    path: PathBuf,
    epoch: Epoch,
    /// Whether what is written to the journal has the clocks of this owner.
    notes: AtomicBool,
    over: OnceLock<StoreError>,
}

fn failed(error: io::Error) -> StoreError {
    let kind = match error.kind() {
        io::ErrorKind::StorageFull => ErrorKind::Full,
        _ => ErrorKind::Unavailable,
    };
    StoreError::new(kind, error)
}

/// Replaces a small file, durably.
fn replace(path: &Path, text: &str) -> io::Result<()> {
    let temporary = path.with_extension("tmp");
    let mut file = File::create(&temporary)?;
    file.write_all(text.as_bytes())?;
    file.sync_all()?;
    fs::rename(&temporary, path)?;
    File::open(path.parent().unwrap_or(path))?.sync_all()
}

/// A text that may not be there.
fn text(path: &Path) -> io::Result<Option<String>> {
    match fs::read_to_string(path) {
        Err(error) if error.kind() == NotFound => Ok(None),
        read => read.map(Some),
    }
}

impl Directory {
    /// Acquires the shard, and deposes the owner before, if there is one.
    pub(crate) fn acquire(path: &Path) -> Result<(Self, Acquired), StoreError> {
        let taken = Self::take(path).map_err(failed)?;
        let noted = fs::metadata(path.join("noted")).and_then(|meta| meta.modified()).ok();
        let ago = |noted| SystemTime::now().duration_since(noted).unwrap_or_default();
        let acquired = Acquired {
            shard: 0,
            shards: 1,
            first_id: 0, // nothing that was acknowledged is ever lost here, so the journal knows all ids
            tokens: 0,
            given_up: Epoch(0),
            noted_ago: noted.map(ago),
            taken: read_clocks(),
        };
        Ok((taken, acquired))
    }

    fn take(path: &Path) -> io::Result<Self> {
        fs::create_dir_all(path.join("names"))?;
        fs::create_dir_all(path.join("files"))?;
        let lock = File::create(path.join("lock"))?;
        lock.lock()?;
        let before = text(&path.join("epoch"))?.and_then(|epoch| epoch.parse().ok()).unwrap_or(0);
        replace(&path.join("epoch"), &(before + 1).to_string())?;
        let medium = Directory {
            path: path.to_owned(),
            epoch: Epoch(before + 1),
            notes: AtomicBool::new(false),
            over: OnceLock::new(),
        };
        // What earlier owners have left without a name.
        let names = medium.list("").map_err(io::Error::other)?;
        let named = names.iter().map(|name| medium.entry(name)).collect::<io::Result<Vec<_>>>()?;
        for file in fs::read_dir(path.join("files"))? {
            let file = file?;
            let id = file.file_name().to_str().and_then(|id| id.parse().ok()).map(FileId);
            if !named.iter().flatten().any(|named| Some(named.id) == id) {
                fs::remove_file(file.path())?;
            }
        }
        Ok(medium)
    }

    fn file(&self, file: FileId) -> PathBuf {
        self.path.join("files").join(file.0.to_string())
    }

    /// Names have one `/` at most.
    fn name(&self, name: &str) -> PathBuf {
        self.path.join("names").join(name.replace('/', "%"))
    }

    fn entry(&self, name: &str) -> io::Result<Option<NamedFile>> {
        let Some(entry) = text(&self.name(name))? else { return Ok(None) };
        let numbers =
            entry.split_once(' ').and_then(|(id, bytes)| Some((id.parse().ok()?, bytes.parse().ok()?)));
        let (id, bytes) = numbers.ok_or_else(|| io::Error::other(format!("{name} is no file: {entry:?}")))?;
        Ok(Some(NamedFile { id: FileId(id), bytes }))
    }

    /// Makes a change while no other owner can begin, if this one is still the last.
    fn change<T>(&self, change: impl FnOnce() -> io::Result<T>) -> Result<T, StoreError> {
        let lock = File::create(self.path.join("lock")).map_err(failed)?;
        lock.lock().map_err(failed)?;
        self.check().map_err(|error| error.with_nothing_from(duewheel_core::Lsn(0)))?;
        change().map_err(failed) // the lock ends with its file
    }

    fn remove_file(&self, file: FileId) -> io::Result<()> {
        match fs::remove_file(self.file(file)) {
            Err(error) if error.kind() == NotFound => Ok(()),
            removed => removed,
        }
    }
}

impl MediumFiles for Directory {
    fn read(&self, file: FileId, at: u64, length: usize) -> Result<Vec<u8>, StoreError> {
        let mut bytes = vec![0; length];
        let from = match File::open(self.file(file)) {
            Err(error) if error.kind() == NotFound => return Ok(bytes), // nothing was written so far
            from => from.map_err(failed)?,
        };
        let mut done = 0;
        while done < length {
            match from.read_at(&mut bytes[done..], at + done as u64).map_err(failed)? {
                0 => break,
                read => done += read,
            }
        }
        Ok(bytes)
    }

    fn find(&self, name: &str) -> Result<Option<NamedFile>, StoreError> {
        self.entry(name).map_err(failed)
    }

    fn list(&self, prefix: &str) -> Result<Vec<String>, StoreError> {
        let mut names = Vec::new();
        for entry in fs::read_dir(self.path.join("names")).map_err(failed)? {
            let name = entry.map_err(failed)?.file_name().to_string_lossy().replace('%', "/");
            if name.starts_with(prefix) && !name.ends_with(".tmp") {
                names.push(name);
            }
        }
        Ok(names)
    }
}

impl Medium for Directory {
    fn epoch(&self) -> Epoch {
        self.epoch
    }

    fn check(&self) -> Result<(), StoreError> {
        if let Some(why) = self.over.get() {
            return Err(why.clone());
        }
        let last = text(&self.path.join("epoch")).map_err(failed)?;
        if last == Some(self.epoch.0.to_string()) {
            return Ok(());
        }
        let _ = self.over.set(StoreError::new(ErrorKind::Fenced, "another owner has the shard"));
        self.check()
    }

    fn lease_left(&self) -> Duration {
        LEASE
    }

    fn lease(&self) -> Duration {
        LEASE
    }

    fn write(&self, file: FileId, kind: FileKind, pieces: Vec<Piece>) -> Result<Level, StoreError> {
        self.change(|| {
            let to = OpenOptions::new().write(true).create(true).truncate(false).open(self.file(file))?;
            for piece in &pieces {
                to.write_all_at(&piece.bytes, piece.at)?;
            }
            to.sync_data()?;
            let noted = self.path.join("noted");
            match kind {
                FileKind::Journal if self.notes.load(SeqCst) || !noted.exists() => {
                    File::create(noted).map(drop)
                }
                FileKind::Journal | FileKind::Blob => Ok(()),
            }
        })?;
        Ok(Level::Fsync)
    }

    fn give_name(&self, name: &str, file: FileId, _: FileKind, bytes: u64) -> Result<(), StoreError> {
        self.change(|| {
            let old = self.entry(name)?;
            replace(&self.name(name), &format!("{} {bytes}", file.0))?;
            match old.filter(|old| old.id != file) {
                Some(old) => self.remove_file(old.id),
                None => Ok(()),
            }
        })
    }

    fn remove(&self, name: &str) -> Result<bool, StoreError> {
        self.change(|| {
            let Some(old) = self.entry(name)? else { return Ok(false) };
            fs::remove_file(self.name(name))?;
            File::open(self.path.join("names"))?.sync_all()?;
            self.remove_file(old.id).map(|()| true)
        })
    }

    fn discard(&self, file: FileId) -> Result<(), StoreError> {
        self.change(|| self.remove_file(file))
    }

    fn level(&self) -> Level {
        Level::Fsync
    }

    fn note_clocks(&self) {
        self.notes.store(true, SeqCst);
    }

    fn give_back(&self, _: Option<MessageId>) -> Result<(), StoreError> {
        Ok(()) // nobody waits for a lease
    }

    fn ended(&self, why: StoreError) {
        let _ = self.over.set(why); // the first reason counts
    }
}
