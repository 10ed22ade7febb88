//! Deliberate panics, for tests of their consequences.
//!
//! Without the feature `testing`, which only tests enable, this contains only a function that does nothing.

/// A place at which a test can make the process panic: if the environment has
/// `DUEWHEEL_TEST_PANIC=place:/path/to/file`, and the file exists. With `place,stuck` the driver also hangs from then
/// on.
#[cfg(feature = "testing")]
pub fn place(name: &str) {
    use std::sync::OnceLock;
    static WANTED: OnceLock<Option<(String, std::path::PathBuf)>> = OnceLock::new();
    let wanted = WANTED.get_or_init(|| {
        let said = std::env::var("DUEWHEEL_TEST_PANIC").ok()?;
        let (place, file) = said.split_once(':')?;
        Some((place.to_owned(), file.into()))
    });
    let Some((places, file)) = wanted else { return };
    let mut places = places.split(',');
    let is_here = places.next() == Some(name);
    let is_stuck = name == "driver" && places.next() == Some("stuck");
    if (is_here || is_stuck) && file.exists() {
        if !is_stuck {
            panic!("the test wants it");
        }
        loop {
            std::thread::park();
        }
    }
}

/// A place at which a test can make the process panic; not in this build.
#[cfg(not(feature = "testing"))]
#[inline(always)]
pub fn place(_name: &str) {}
