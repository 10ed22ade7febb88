//! What a machine must permit for a stage, and a disk of its own for a test.

use std::path::PathBuf;
use std::process::Command;

/// The variable that names the mounted folder to a test that runs in a namespace.
const INSIDE: &str = "DUEWHEEL_TMPFS";

/// Who a test is in the namespace in which it mounts a disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NamespaceUser {
    /// Itself, as root of a user namespace, or as root.
    Any,
    /// Root, as which other users' processes can be started.
    Root,
}

/// Runs a test again where it may mount a tmpfs of this size (`16m`), in a namespace of its own, which takes the mount
/// with it when it ends. Returns the mounted folder within, and nothing outside, when the test has passed or is left out.
///
/// # Panics
/// When the test fails within, or when the machine does not permit it and `stage` is not left out.
pub fn on_a_small_disk(stage: &str, test: &str, size: &str, user: NamespaceUser) -> Option<PathBuf> {
    if let Some(mount) = std::env::var_os(INSIDE) {
        return Some(mount.into());
    }
    let folder = tempfile::Builder::new().prefix("duewheel-tmpfs-").tempdir().expect("a temporary folder");
    let mount = folder.path().to_owned();
    let try_out = format!("mount -t tmpfs -o size={size} none '{}'", mount.display());
    let ways: &[&str] = match user {
        NamespaceUser::Any => &["-rm", "-m"],
        NamespaceUser::Root => &["-m"],
    };
    let permitted = |options: &str| run(Command::new("unshare").args([options, "sh", "-c", &try_out]));
    let mut refusal = String::new();
    let way = ways.iter().find(|way| permitted(way).map_err(|why| refusal = why).is_ok());
    let Some(options) = way else {
        not_permitted(stage, &refusal);
        return None;
    };
    let program = std::env::current_exe().expect("this test");
    let script = format!("{try_out} && exec '{}' --exact --nocapture {test}", program.display());
    let status = Command::new("unshare").args([options, "sh", "-c", &script]).env(INSIDE, &mount).status();
    assert!(status.expect("unshare").success(), "see above");
    None
}

/// Runs a program to its end; what it said, if it succeeded.
pub fn run(command: &mut Command) -> Result<String, String> {
    let output = command.output().map_err(|e| format!("{command:?}: {e}"))?;
    let said =
        format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    if output.status.success() { Ok(said) } else { Err(format!("{command:?}: {}: {said}", output.status)) }
}

/// The variable that lists the stages which this machine need not run, with commas between them.
const LEAVE_OUT: &str = "DUEWHEEL_LEAVE_OUT";

/// A stage that this machine does not permit fails its test, unless `DUEWHEEL_LEAVE_OUT` names it.
///
/// # Panics
/// When the stage is not to be left out.
#[track_caller]
pub fn not_permitted(stage: &str, why: &str) {
    let listed = std::env::var(LEAVE_OUT).unwrap_or_default();
    if let Err(what) = left_out(stage, &listed) {
        panic!("{what}: {why}");
    }
    println!("\nLEFT OUT: {stage}, as {LEAVE_OUT} asks: {why}\n");
}

/// Whether a list of stages names this one.
fn left_out(stage: &str, listed: &str) -> Result<(), String> {
    if listed.split(',').any(|name| name.trim() == stage) {
        return Ok(());
    }
    Err(format!("the stage {stage} cannot be run here ({LEAVE_OUT}={stage} leaves it out)"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stage_is_skipped_by_exact_name() {
        for listed in ["fulldisk", "syscalls,fulldisk", " syscalls , fulldisk "] {
            assert_eq!(left_out("fulldisk", listed), Ok(()), "{listed:?}");
        }
        for listed in ["", "1", "all", "full", "fulldisks", "syscalls", ","] {
            let what = left_out("fulldisk", listed).expect_err(listed);
            assert!(what.contains("DUEWHEEL_LEAVE_OUT=fulldisk"), "{what}");
        }
    }

    /// Story: a stage that could not mount its disk printed `NOT RUN` and passed, so a machine without mounts showed a
    /// green full-disk test that had never seen a full disk.
    #[test]
    #[should_panic(expected = "the stage no-such-stage cannot be run here")]
    fn unrunnable_stage_fails() {
        not_permitted("no-such-stage", "this machine has no such thing");
    }
}
