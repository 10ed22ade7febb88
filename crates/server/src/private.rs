//! Files with secrets: their required permissions.
//!
//! The tokens and the keys of a server may belong to its user, or be mounted by an operator: Kubernetes provides files
//! that belong to root and may be read by a group of the process. So such a file must belong to root or to this user,
//! only its owner may write to it, and only its owner and a group of this process may read it. Its name may be a
//! symbolic link; the permissions are those of the file at its end.
//!
//! A credential of systemd (below `$CREDENTIALS_DIRECTORY`) may belong to root and be open to the server's user by an
//! access list. Its mode then shows the list's mask in the place of the group's permissions, so the group is not checked.

use std::fs::{File, Metadata};
use std::io::{self, Read as _};
use std::os::unix::fs::MetadataExt;
use std::path::{Component, Path};

use rustix::process::{getegid, geteuid, getgroups};

/// The user and the groups of this process.
struct ProcessUser {
    user: u32,
    groups: Vec<u32>,
}

/// How a file came here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum SecretSource {
    /// By any other way.
    Folder,
    /// A credential of the service manager.
    Credential,
}

impl SecretSource {
    /// The source of a file, with the folder of credentials if there is one.
    fn of(file: &Path, credentials: Option<&Path>) -> SecretSource {
        let inside = credentials.filter(|folder| folder.is_absolute() && file.starts_with(folder));
        // A name that leads out again would be another file.
        match inside.is_some() && !file.components().any(|part| part == Component::ParentDir) {
            true => SecretSource::Credential,
            false => SecretSource::Folder,
        }
    }
}

impl ProcessUser {
    fn now() -> ProcessUser {
        // If the groups of the process cannot be read, only its first one counts.
        let more = getgroups().unwrap_or_default();
        let groups = std::iter::once(getegid()).chain(more).map(|group| group.as_raw()).collect();
        ProcessUser { user: geteuid().as_raw(), groups }
    }
}

/// Checks the permissions of a secret file.
///
/// # Errors
/// A phrase that fits after the name of the file.
fn check(meta: &Metadata, source: SecretSource) -> Result<(), String> {
    judge(&ProcessUser::now(), source, meta.uid(), meta.gid(), meta.mode() & 0o777)
}

/// Checks that the file belongs to its owner alone, for a command that writes to the file of a server that runs as
/// another user.
///
/// # Errors
/// See [`check`].
pub fn check_for_owner(meta: &Metadata) -> Result<(), String> {
    let owner = ProcessUser { user: meta.uid(), groups: vec![meta.gid()] };
    judge(&owner, SecretSource::Folder, meta.uid(), meta.gid(), meta.mode() & 0o777)
}

fn judge(us: &ProcessUser, source: SecretSource, owner: u32, group: u32, mode: u32) -> Result<(), String> {
    if owner != 0 && owner != us.user {
        return Err(format!(
            "belongs to user {owner}; it must belong to root or to the server's user, {}",
            us.user
        ));
    }
    if mode & 0o022 != 0 {
        return Err(format!("may be changed by others than its owner (mode {mode:03o}); chmod 600 it"));
    }
    if mode & 0o007 != 0 {
        return Err(format!("may be read by others than its owner (mode {mode:03o}); chmod 600 it"));
    }
    if mode & 0o070 != 0 && source == SecretSource::Folder && !us.groups.contains(&group) {
        return Err(format!(
            "may be read by group {group}, which is none of the server's (mode {mode:03o}); chmod 600 it"
        ));
    }
    Ok(())
}

/// Reads a secret file, of at most `most` bytes and one more. The permissions are those of the opened file, whatever
/// its name refers to by now.
///
/// # Errors
/// The outer error if the file cannot be read; the inner one if its permissions are wrong.
pub(crate) fn read(file: &Path, most: u64) -> io::Result<Result<Vec<u8>, String>> {
    let opened = File::open(file)?;
    let credentials = std::env::var_os("CREDENTIALS_DIRECTORY");
    let source = SecretSource::of(file, credentials.as_deref().map(Path::new));
    if let Err(what) = check(&opened.metadata()?, source) {
        return Ok(Err(what));
    }
    let mut bytes = Vec::new();
    opened.take(most.saturating_add(1)).read_to_end(&mut bytes)?;
    Ok(Ok(bytes))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn secret_file_permissions_are_enforced() {
        let us = ProcessUser { user: 1000, groups: vec![1000, 2000] };
        for (owner, group, mode, says) in [
            (1000, 1000, 0o600, None),
            (1000, 1000, 0o400, None),
            (1000, 9, 0o600, None),
            (0, 0, 0o400, None),
            // As Kubernetes mounts it, with `fsGroup: 2000` and `defaultMode: 0440`.
            (0, 2000, 0o440, None),
            (0, 1000, 0o640, None),
            (1000, 2000, 0o640, None),
            (0, 9, 0o440, Some("may be read by group 9")),
            (1000, 9, 0o640, Some("may be read by group 9")),
            (0, 2000, 0o460, Some("may be changed by others")),
            (1000, 1000, 0o620, Some("may be changed by others")),
            (1000, 1000, 0o602, Some("may be changed by others")),
            (0, 2000, 0o444, Some("may be read by others")),
            (1000, 1000, 0o604, Some("may be read by others")),
            (1001, 2000, 0o440, Some("belongs to user 1001")),
            (1001, 1001, 0o600, Some("belongs to user 1001")),
        ] {
            match (judge(&us, SecretSource::Folder, owner, group, mode), says) {
                (Ok(()), None) => {}
                (Err(what), Some(says)) => assert!(what.contains(says), "{owner}:{group} {mode:03o}: {what}"),
                (got, says) => panic!("{owner}:{group} {mode:03o}: {got:?}, not {says:?}"),
            }
        }
    }

    /// Story: systemd makes credentials with an access list where the folder's file system has them: for root, and its
    /// user by name.
    #[test]
    fn credential_acl_mask_is_no_group() {
        let us = ProcessUser { user: 1000, groups: vec![1000] };
        let folder = Path::new("/run/credentials/duewheel.service");
        let source = |file: &str| SecretSource::of(Path::new(file), Some(folder));
        let of_ours = source("/run/credentials/duewheel.service/tokens.toml");
        assert_eq!(judge(&us, of_ours, 0, 0, 0o440), Ok(()));
        assert!(judge(&us, of_ours, 0, 0, 0o444).is_err_and(|what| what.contains("read by others")));
        assert!(judge(&us, of_ours, 0, 0, 0o460).is_err_and(|what| what.contains("changed by others")));
        assert!(judge(&us, of_ours, 1001, 0, 0o440).is_err_and(|what| what.contains("user 1001")));
        for other in [
            "/run/credentials/other.service/tokens.toml",
            "/run/credentials/duewheel.service/../x",
            "tokens.toml",
        ] {
            assert!(judge(&us, source(other), 0, 0, 0o440).is_err(), "{other}");
        }
        assert_eq!(SecretSource::of(Path::new("/x"), None), SecretSource::Folder);
    }
}
