//! Bugs on demand, for tests of what a bug does.
//!
//! Without the feature `testing`, which only tests turn on, there is nothing here but a function that does nothing.

/// A place that a test may have panic: if the environment says `DUEWHEEL_TEST_PANIC=place:/path/to/file`, and the file is there.
/// With `place,stuck` the driver hangs from then on, too.
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

/// A place that a test may have panic. Not in this build.
#[cfg(not(feature = "testing"))]
#[inline(always)]
pub fn place(_name: &str) {}
