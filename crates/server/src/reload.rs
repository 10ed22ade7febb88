//! Files that a running server reads again: the tokens, certificates with their keys, including those of nodes, and the
//! quotas of the configuration.
//!
//! The server reads them at SIGHUP, and when one of the files has changed. A secret that Kubernetes mounts changes by
//! exchanging a link, without a signal; so the files are checked by their names, through all links, and compared by
//! their metadata.

use std::fmt::Display;
use std::fs::metadata;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::SeqCst;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use duewheel::core::engine::{Quota, Resource};
use duewheel::{CertificatePart, Duewheel, PeerCertificates};
use tokio::sync::{mpsc, oneshot};

use crate::auth::Guard;
use crate::config::{ConfigError, PeerFiles, Settings, read_quotas};
use crate::http::act_of_server;
use crate::tls::Tls;
use crate::{private, tls};

/// The interval at which the files are checked for changes.
const LOOK_EVERY: Duration = Duration::from_secs(2);

/// The files that are read again, and their users.
pub(crate) struct Reload {
    guard: Arc<Guard>,
    tls: Vec<Arc<Tls>>,
    /// The certificate files of this node.
    peers: Option<(PeerFiles, PeerCertificates)>,
    /// The configuration file, of which only the quotas are read again.
    file: Option<PathBuf>,
    /// The wheel whose quotas are set, once it is open.
    wheel: OnceLock<Duewheel>,
    /// Set when the quotas were to be read again before the wheel was open.
    missed: AtomicBool,
}

impl Reload {
    /// `peers` are the certificates of these settings as they were read, if there are any.
    pub(crate) fn new(
        settings: &Settings,
        guard: Arc<Guard>,
        tls: Vec<Arc<Tls>>,
        peers: Option<PeerCertificates>,
    ) -> Self {
        let (wheel, missed) = (OnceLock::new(), AtomicBool::new(false));
        let peers = settings.store.peer_files().cloned().zip(peers);
        Reload { guard, tls, peers, file: settings.file.clone(), wheel, missed }
    }

    /// Reads everything again. Content that cannot be read stays as it was. Returns whether tokens were read. A file
    /// system that hangs blocks this call.
    fn reload(&self) -> bool {
        let mut has_tokens = false;
        match self.guard.reload() {
            Ok(Some(tokens)) => {
                has_tokens = true;
                tracing::info!(tokens, "the tokens were read again");
            }
            Ok(None) => {}
            Err(error) => tracing::error!(%error, "the tokens stay as they were"),
        }
        for tls in &self.tls {
            match tls.reload() {
                Ok(()) => tracing::info!("certificate and key were read again"),
                Err(error) => tracing::error!(%error, "certificate and key stay as they were"),
            }
        }
        if let Some((files, peers)) = &self.peers {
            match certificates(files) {
                Ok(fresh) => {
                    peers.replace(&fresh);
                    tracing::info!("the certificate for other nodes was read again; new connections use it");
                }
                Err(error) => tracing::error!(%error, "the certificate for other nodes stays as it was"),
            }
        }
        self.reload_quotas();
        has_tokens
    }

    /// Sets the quotas. Before the store is open this is postponed until [`Reload::opened`].
    fn reload_quotas(&self) {
        let Some(file) = &self.file else { return };
        // Set first: either the task that opens the store sees it, or this sees the store.
        self.missed.store(true, SeqCst);
        let Some(wheel) = self.wheel.get() else { return };
        self.missed.store(false, SeqCst);
        match set_quotas(file, wheel) {
            Ok(quotas) => tracing::info!(quotas, "the quotas were read again"),
            Err(error) => tracing::error!(%error, "the quotas stay as they were"),
        }
    }

    /// Notes that the store is open. Returns whether a reload of the quotas was postponed until now.
    fn opened(&self, wheel: Duewheel) -> bool {
        let _ = self.wheel.set(wheel); // once
        self.missed.load(SeqCst)
    }
}

/// Reads the files again on request, on a thread that may block on a file system; the request never blocks.
pub(crate) struct Reloader {
    reload: Arc<Reload>,
    wanted: mpsc::Sender<()>,
}

impl Reloader {
    /// Must be called within a runtime.
    pub(crate) fn new(reload: Reload) -> Self {
        let reload = Arc::new(reload);
        let (wanted, mut asked) = mpsc::channel(1);
        let works = Arc::clone(&reload);
        tokio::spawn(async move {
            while asked.recv().await.is_some() {
                let works = Arc::clone(&works);
                let read = Arc::clone(&works);
                match on_own_thread(move || read.reload()).await {
                    Ok(has_tokens) => {
                        if let Some(wheel) = works.wheel.get().filter(|_| has_tokens) {
                            act_of_server(wheel.client(), "reloadTokens", "tokens").await;
                        }
                    }
                    Err(error) => tracing::error!(%error, "files could not be read again"),
                }
            }
        });
        Reloader { reload, wanted }
    }

    /// Requests that everything is read again, at once or as soon as the present reload is done.
    pub(crate) fn ask(&self) {
        // A reload that is requested already begins later than now.
        let _ = self.wanted.try_send(());
    }

    /// Notes that the store is open: if the quotas could not be set before, a reload is requested again.
    pub(crate) fn opened(&self, wheel: Duewheel) {
        if self.reload.opened(wheel) {
            self.ask();
        }
    }
}

/// The files that are read again, and their state at the last check.
pub(crate) struct Watched {
    files: Vec<PathBuf>,
    stamps: Vec<Option<Stamp>>,
}

/// Values that change with a file: device, inode, size, and the times of the last changes of content and metadata.
type Stamp = (u64, u64, u64, [i64; 4]);

impl Watched {
    /// The files of these settings in their present state: content that is read afterwards is not older.
    pub(crate) fn of(settings: &Settings) -> Self {
        let tls = settings.tls.iter().flat_map(|files| [&files.cert, &files.key]);
        let peers = settings.store.peer_files();
        let peers = peers.into_iter().flat_map(|files| [&files.own.cert, &files.own.key, &files.ca]);
        let files = settings.tokens.iter().chain(tls).chain(&settings.of_beanstalk.client_ca).chain(peers);
        let files: Vec<PathBuf> = files.chain(&settings.file).cloned().collect();
        let stamps = files.iter().map(|file| stamp(file)).collect();
        Watched { files, stamps }
    }

    /// Whether one of them has changed since the last call.
    fn have_changed(&mut self) -> bool {
        let stamps: Vec<_> = self.files.iter().map(|file| stamp(file)).collect();
        let changed = stamps != self.stamps;
        self.stamps = stamps;
        changed
    }

    /// Reports each change, until there is no receiver any more; none if there is no file. A file system that hangs
    /// blocks only this.
    pub(crate) fn changes(mut self) -> mpsc::Receiver<()> {
        let (tell, changes) = mpsc::channel(1);
        if self.files.is_empty() {
            return changes;
        }
        tokio::spawn(async move {
            loop {
                tokio::select! {
                    () = tokio::time::sleep(LOOK_EVERY) => {}
                    () = tell.closed() => return,
                }
                let looked = on_own_thread(move || {
                    let changed = self.have_changed();
                    (self, changed)
                });
                let Ok((watched, changed)) = looked.await else { return };
                self = watched;
                if changed && tell.send(()).await.is_err() {
                    return;
                }
            }
        });
        changes
    }
}

/// Runs this apart from the runtime's pool of threads, where work of users could be before it.
async fn on_own_thread<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> io::Result<T> {
    let (tell, done) = oneshot::channel();
    let work = move || drop(tell.send(work()));
    std::thread::Builder::new().name("reload".to_owned()).spawn(work)?;
    done.await.map_err(io::Error::other)
}

fn stamp(file: &Path) -> Option<Stamp> {
    let meta = metadata(file).ok()?;
    let times = [meta.mtime(), meta.mtime_nsec(), meta.ctime(), meta.ctime_nsec()];
    Some((meta.dev(), meta.ino(), meta.size(), times))
}

/// Warns of limits that are too small to be shared: some shards then refuse everything of the tenant.
pub(crate) fn warn_of_empty_shares(quotas: &[Quota], shards: u32) {
    for quota in quotas {
        for resource in [Resource::Messages, Resource::Bytes, Resource::Leases, Resource::Answers] {
            if let Some(limit) = quota.limit(resource).filter(|limit| *limit < u64::from(shards)) {
                tracing::warn!(
                    quota = %quota.prefix,
                    %resource,
                    limit,
                    shards,
                    "this limit of a quota is smaller than the number of shards; some of them have no share of it"
                );
            }
        }
    }
}

/// Returns the number of quotas.
fn set_quotas(file: &Path, wheel: &Duewheel) -> Result<usize, ConfigError> {
    let quotas = read_quotas(file)?;
    let n = quotas.len();
    warn_of_empty_shares(&quotas, wheel.client().shards());
    wheel.set_quotas(quotas).map_err(|bad| ConfigError::Value(bad.to_string()))?;
    Ok(n)
}

/// The largest number of bytes of a private key that are read; keys are much shorter.
const MAX_KEY: u64 = 64 * 1024;
/// Reads these files.
///
/// # Errors
/// A file cannot be read, or its content is not valid; the error names the option and the file.
pub(crate) fn certificates(files: &PeerFiles) -> Result<PeerCertificates, ConfigError> {
    let PeerFiles { own: tls::Files { cert, key }, ca } = files;
    let named = |option: &str, file: &Path, why: &dyn Display| {
        ConfigError::Value(format!("--{option} {}: {why}", file.display()))
    };
    let read = |option, file: &Path| std::fs::read(file).map_err(|why| named(option, file, &why));
    let secret = private::read(key, MAX_KEY).map_err(|why| named("peer-key", key, &why))?;
    let secret = secret.map_err(|what| named("peer-key", key, &what))?;
    let pem = (read("peer-cert", cert)?, secret, read("peer-ca", ca)?);
    PeerCertificates::from_pem(&pem.0, &pem.1, &pem.2).map_err(|why| match why.part {
        CertificatePart::Certificate => named("peer-cert", cert, &why),
        CertificatePart::Key => named("peer-key", key, &why),
        CertificatePart::Authority => named("peer-ca", ca, &why),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn watched_file_changes_are_detected() {
        let dir = tempfile::tempdir().unwrap();
        let (first, second, link) = (dir.path().join("1"), dir.path().join("2"), dir.path().join("link"));
        std::fs::write(&first, "a").unwrap();
        std::fs::write(&second, "a").unwrap();
        std::os::unix::fs::symlink(&first, &link).unwrap();
        let mut watched = Watched { files: vec![link.clone()], stamps: vec![stamp(&link)] };
        assert!(!watched.have_changed());
        std::fs::write(&first, "bc").unwrap();
        assert!(watched.have_changed() && !watched.have_changed());
        // Kubernetes replaces the link in this way.
        let next = dir.path().join("next");
        std::os::unix::fs::symlink(&second, &next).unwrap();
        std::fs::rename(&next, &link).unwrap();
        assert!(watched.have_changed() && !watched.have_changed());
        std::fs::remove_file(&second).unwrap();
        assert!(watched.have_changed() && !watched.have_changed());
    }
}
