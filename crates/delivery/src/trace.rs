//! The context of a span, as headers have it.

use duewheel::core::message::Headers;

/// The header of a message, and of a request, that says to which span it belongs.
pub const TRACEPARENT: &str = "traceparent";
/// The header that accompanies `traceparent`, with fields that tracing systems add.
pub const TRACESTATE: &str = "tracestate";
/// The longest `tracestate` that is kept, in bytes: what W3C Trace Context asks everybody to pass on.
const MAX_STATE: usize = 512;

/// A span that others belong to, as W3C Trace Context writes it.
///
/// ```
/// use duewheel_delivery::TraceContext;
/// let text = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";
/// let context = TraceContext::new(text, None).unwrap();
/// assert!(context.is_sampled());
/// assert_eq!(context.traceparent(), text);
/// assert_eq!(TraceContext::new("nonsense", None), None);
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TraceContext {
    /// In version 00.
    parent: Box<str>,
    state: Option<Box<str>>,
}

impl TraceContext {
    /// The context that these headers name; `None` if `traceparent` names none. A `tracestate` that is too long or has
    /// other characters than visible ones is left out. Of a later version than 00, the part that version 00 has is read.
    pub fn new(traceparent: &str, tracestate: Option<&str>) -> Option<Self> {
        let parent = version_00(traceparent.trim())?;
        let state = tracestate.map(str::trim).filter(|state| is_state(state)).map(Box::from);
        Some(TraceContext { parent, state })
    }

    /// The context in these headers of a message.
    pub fn of_headers(headers: &Headers) -> Option<Self> {
        TraceContext::among(headers.iter().map(|(name, value)| (&**name, &**value)))
    }

    pub(crate) fn among<'a>(headers: impl Iterator<Item = (&'a str, &'a str)> + Clone) -> Option<Self> {
        let named = |wanted: &str| {
            headers.clone().find(|(name, _)| name.eq_ignore_ascii_case(wanted)).map(|(_, value)| value)
        };
        TraceContext::new(named(TRACEPARENT)?, named(TRACESTATE))
    }

    /// The value of `traceparent`.
    pub fn traceparent(&self) -> &str {
        &self.parent
    }

    /// The value of `tracestate`.
    pub fn tracestate(&self) -> Option<&str> {
        self.state.as_deref()
    }

    /// Whether the span is recorded, as far as its maker knows.
    pub fn is_sampled(&self) -> bool {
        self.parent
            .as_bytes()
            .last()
            .is_some_and(|digit| matches!(digit, b'1' | b'3' | b'5' | b'7' | b'9' | b'b' | b'd' | b'f'))
    }
}

/// The first four parts as version 00, which has no others.
fn version_00(text: &str) -> Option<Box<str>> {
    let hex = |part: &str, length: usize| {
        part.len() == length && part.bytes().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f'))
    };
    let some = |part: &str| part.bytes().any(|b| b != b'0');
    let parts: Vec<&str> = text.splitn(5, '-').collect();
    let (version, trace, span, flags) = match *parts.as_slice() {
        ["00", trace, span, flags] => ("00", trace, span, flags),
        [version, trace, span, flags, ..] if version != "00" => (version, trace, span, flags),
        _ => return None,
    };
    let is_good = hex(version, 2)
        && version != "ff"
        && hex(trace, 32)
        && some(trace)
        && hex(span, 16)
        && some(span)
        && hex(flags, 2);
    is_good.then(|| format!("00-{trace}-{span}-{flags}").into())
}

fn is_state(state: &str) -> bool {
    !state.is_empty() && state.len() <= MAX_STATE && state.bytes().all(|b| matches!(b, b' '..=b'~'))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const TRACE: &str = "4bf92f3577b34da6a3ce929d0e0e4736";
    const SPAN: &str = "00f067aa0ba902b7";

    fn parent(text: &str) -> Option<String> {
        TraceContext::new(text, None).map(|context| context.traceparent().to_owned())
    }

    #[test]
    fn traceparent_parsing_follows_w3c() {
        for (flags, sampled) in [("00", false), ("01", true), ("02", false), ("03", true), ("ff", true)] {
            let text = format!("00-{TRACE}-{SPAN}-{flags}");
            let context = TraceContext::new(&text, None).unwrap();
            assert_eq!((context.traceparent(), context.is_sampled()), (&*text, sampled), "{flags}");
        }
        // Later versions begin like version 00, and may go on.
        for later in [format!("01-{TRACE}-{SPAN}-01"), format!("cc-{TRACE}-{SPAN}-01-what-the-future-has")] {
            assert_eq!(parent(&later), Some(format!("00-{TRACE}-{SPAN}-01")), "{later}");
        }
        for bad in [
            String::new(),
            format!("00-{TRACE}-{SPAN}"),
            format!("00-{TRACE}-{SPAN}-01-more"),
            format!("ff-{TRACE}-{SPAN}-01"),
            format!("0-{TRACE}-{SPAN}-01"),
            format!("00-{}-{SPAN}-01", TRACE.to_uppercase()),
            format!("00-{}-{SPAN}-01", "0".repeat(32)),
            format!("00-{TRACE}-{}-01", "0".repeat(16)),
            format!("00-{TRACE}-{SPAN}-1"),
            format!("00-{TRACE}-{SPAN}-0é"),
        ] {
            assert_eq!(parent(&bad), None, "{bad}");
        }
    }

    #[test]
    fn unforwardable_tracestate_is_omitted() {
        let text = format!("00-{TRACE}-{SPAN}-01");
        let state =
            |state: &str| TraceContext::new(&text, Some(state)).unwrap().tracestate().map(ToOwned::to_owned);
        assert_eq!(state("a=1,b=2"), Some("a=1,b=2".into()));
        assert_eq!(state(&"x".repeat(512)), Some("x".repeat(512)));
        for bad in ["", " ", "a=\nb=2", "a=é", &"x".repeat(513)] {
            assert_eq!(state(bad), None, "{bad}");
        }
    }

    proptest! {
        #[test]
        fn nothing_panics(text in "\\PC{0,60}", state in "\\PC{0,20}") {
            let _ = TraceContext::new(&text, Some(&state));
        }
    }
}
