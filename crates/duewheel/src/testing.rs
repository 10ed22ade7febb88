//! Bugs on demand, for tests of what a bug does.
//!
//! Without the feature `testing`, which only tests turn on, there is nothing here but a function that does nothing.

/// A place that a test may have panic: if the environment says `DUEWHEEL_TEST_PANIC=place:/path/to/file`, and the file is there.
#[cfg(feature = "testing")]
pub fn place(name: &str) {
    use std::sync::OnceLock;
    static WANTED: OnceLock<Option<(String, std::path::PathBuf)>> = OnceLock::new();
    let wanted = WANTED.get_or_init(|| {
        let said = std::env::var("DUEWHEEL_TEST_PANIC").ok()?;
        let (place, file) = said.split_once(':')?;
        Some((place.to_owned(), file.into()))
    });
    if let Some((place, file)) = wanted
        && place == name
        && file.exists()
    {
        panic!("the test wants it");
    }
}

/// A place that a test may have panic. Not in this build.
#[cfg(not(feature = "testing"))]
#[inline(always)]
pub fn place(_name: &str) {}
