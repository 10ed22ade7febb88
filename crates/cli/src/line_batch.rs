//! Messages that are sent as the lines of one request.

use duewheel_client::Error;
use serde_json::Value;

use super::failure::refusal_in;
use super::remote::Remote;

/// Largest number of lines of one request.
const MOST_LINES: usize = 1_000;
/// Approximate largest size of one request in bytes.
const MOST_BYTES: usize = 4 * 1024 * 1024;

/// Lines that wait to be sent.
#[derive(Debug, Default)]
pub(super) struct LineBatch {
    /// The number of each line in its source, and its request.
    lines: Vec<(u64, String)>,
    bytes: usize,
}

impl LineBatch {
    pub(super) fn add(&mut self, number: u64, request: String) {
        self.bytes += request.len() + 1;
        self.lines.push((number, request));
    }

    pub(super) fn is_full(&self) -> bool {
        self.lines.len() >= MOST_LINES || self.bytes >= MOST_BYTES
    }

    pub(super) fn len(&self) -> usize {
        self.lines.len()
    }

    /// The number of the first line.
    pub(super) fn first(&self) -> Option<u64> {
        self.lines.first().map(|(number, _)| *number)
    }

    /// Sends the lines once. `each` gets the answer of each line, or its refusal. Lines of which the refusal `may_pass` wait
    /// on; the last such refusal is returned.
    pub(super) fn send(
        &mut self,
        remote: &Remote,
        path: &str,
        may_pass: fn(&Error) -> bool,
        mut each: impl FnMut(u64, Result<Value, Error>),
    ) -> Result<Option<Error>, Error> {
        let results = match remote.post_lines(path, self.lines.iter().map(|(_, request)| &**request)) {
            Err(trouble) if may_pass(&trouble) => return Ok(Some(trouble)),
            answer => answer?,
        };
        let mut trouble = None;
        for ((number, request), result) in std::mem::take(self).lines.into_iter().zip(results) {
            match result.get("id").is_none().then(|| refusal_in(&result)) {
                None => each(number, Ok(result)),
                Some(refusal) if may_pass(&refusal) => {
                    self.add(number, request);
                    trouble = Some(refusal);
                }
                Some(refusal) => each(number, Err(refusal)),
            }
        }
        Ok(trouble)
    }
}
