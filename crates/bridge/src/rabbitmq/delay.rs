//! When a message is due: `x-delay` as the delayed-message plugin reads it, and `x-duewheel-at`.

use duewheel::core::engine::{Past, When};
use duewheel::core::time::WallMs;
use lapin::types::{AMQPValue, FieldTable};

/// The header of the plugin, in ms.
pub(super) const X_DELAY: &str = "x-delay";
/// The header of an instant: RFC 3339, or ms since 1970.
pub(super) const X_AT: &str = "x-duewheel-at";
/// The longest delay of the plugin, in ms. It delivers a message with a longer one at once; here that is refused.
const MOST: i128 = u32::MAX as i128;

/// When a message with these headers is due; `None`: they do not say.
pub(super) fn when(headers: &FieldTable) -> Result<Option<When>, String> {
    if let Some(at) = headers.inner().get(X_AT) {
        let due_at = instant(at).ok_or(format!("{X_AT} must be an RFC 3339 instant or ms since 1970"))?;
        return Ok(Some(When::At { due_at, past: Past::Fire }));
    }
    match delay_ms(headers)? {
        Some(ms) if ms > MOST => {
            Err(format!("{X_DELAY} is more than {MOST} ms, the most of the plugin; {X_AT} can be later"))
        }
        ms => Ok(ms.map(|ms| When::After(u64::try_from(ms).unwrap_or(0)))),
    }
}

/// The value of `x-delay`, if it is of a type that the plugin reads: an integer, a text of one, or a fraction, which is
/// cut off.
fn delay_ms(headers: &FieldTable) -> Result<Option<i128>, String> {
    let Some(value) = headers.inner().get(X_DELAY) else { return Ok(None) };
    let float = |float: f64| {
        // Far beyond both ends a number is only large or small.
        #[allow(clippy::cast_possible_truncation)]
        let ms = float.trunc() as i128;
        if float.is_finite() { Ok(Some(ms)) } else { Err(format!("{X_DELAY} is no number")) }
    };
    match value {
        AMQPValue::LongString(text) => {
            let text = std::str::from_utf8(text.as_bytes()).ok();
            let ms = text.and_then(|text| text.parse().ok());
            ms.map(Some).ok_or(format!("{X_DELAY} is a text that is no integer"))
        }
        AMQPValue::Float(value) => float(f64::from(*value)),
        AMQPValue::Double(value) => float(*value),
        AMQPValue::DecimalValue(decimal) => {
            let scale = 10_i128.checked_pow(u32::from(decimal.scale));
            Ok(Some(scale.map_or(0, |scale| i128::from(decimal.value) / scale)))
        }
        other => Ok(integer(other).map(i128::from)),
    }
}

fn integer(value: &AMQPValue) -> Option<i64> {
    Some(match value {
        AMQPValue::ShortShortInt(value) => i64::from(*value),
        AMQPValue::ShortShortUInt(value) => i64::from(*value),
        AMQPValue::ShortInt(value) => i64::from(*value),
        AMQPValue::ShortUInt(value) => i64::from(*value),
        AMQPValue::LongInt(value) => i64::from(*value),
        AMQPValue::LongUInt(value) => i64::from(*value),
        AMQPValue::LongLongInt(value) => *value,
        _ => return None,
    })
}

fn instant(value: &AMQPValue) -> Option<WallMs> {
    if let AMQPValue::LongString(text) = value {
        let text = std::str::from_utf8(text.as_bytes()).ok()?;
        return text.parse().map(WallMs).ok().or_else(|| duewheel_api::rfc3339::parse(text).ok());
    }
    integer(value).and_then(|ms| u64::try_from(ms).ok()).map(WallMs)
}

/// `x-delay` of a delivered message: negated, if the message was delayed. Where the plugin's 32 bits do not hold it, it
/// has 64.
pub(super) fn negated(headers: &FieldTable) -> Option<AMQPValue> {
    let ms = delay_ms(headers).ok()??;
    let negated = i64::try_from(-ms).ok().filter(|ms| *ms < 0)?;
    Some(i32::try_from(negated).map_or(AMQPValue::LongLongInt(negated), AMQPValue::LongInt))
}

#[cfg(test)]
mod tests {
    use lapin::types::DecimalValue;

    use super::*;

    fn headers(name: &str, value: AMQPValue) -> FieldTable {
        let mut headers = FieldTable::default();
        headers.insert(name.into(), value);
        headers
    }

    #[test]
    fn delays_are_read_as_by_the_plugin() {
        let text = |text: &str| AMQPValue::LongString(text.into());
        let after = |ms| Ok(Some(When::After(ms)));
        for (value, due, gives) in [
            (AMQPValue::ShortShortInt(100), after(100), Some(-100)),
            (AMQPValue::ShortShortUInt(200), after(200), Some(-200)),
            (AMQPValue::ShortInt(300), after(300), Some(-300)),
            (AMQPValue::ShortUInt(60_000), after(60_000), Some(-60_000)),
            (AMQPValue::LongInt(70_000), after(70_000), Some(-70_000)),
            (AMQPValue::LongUInt(u32::MAX), after(u64::from(u32::MAX)), Some(-4_294_967_295)),
            (AMQPValue::LongLongInt(5), after(5), Some(-5)),
            (text("1500"), after(1_500), Some(-1_500)),
            (AMQPValue::Float(1.9), after(1), Some(-1)),
            (AMQPValue::Double(2_500.7), after(2_500), Some(-2_500)),
            (AMQPValue::DecimalValue(DecimalValue { scale: 1, value: 125 }), after(12), Some(-12)),
            (AMQPValue::LongInt(0), after(0), None),
            (AMQPValue::LongInt(-7), after(0), None),
            (AMQPValue::Double(0.9), after(0), None),
            (AMQPValue::Boolean(true), Ok(None), None),
            (AMQPValue::Void, Ok(None), None),
        ] {
            let headers = headers(X_DELAY, value.clone());
            assert_eq!(when(&headers), due, "{value:?}");
            let negated = negated(&headers).and_then(|value| integer(&value));
            assert_eq!(negated, gives, "{value:?}");
        }
        assert_eq!(when(&FieldTable::default()), Ok(None));
        for bad in [text("soon"), text("1.5"), AMQPValue::LongLongInt(1 << 32), AMQPValue::Double(f64::NAN)] {
            assert!(when(&headers(X_DELAY, bad.clone())).is_err(), "{bad:?}");
        }
    }

    #[test]
    fn instants_win_over_delays() {
        let at = |ms| Ok(Some(When::At { due_at: WallMs(ms), past: Past::Fire }));
        for value in [
            AMQPValue::LongString("1970-01-01T00:00:07Z".into()),
            AMQPValue::LongString("7000".into()),
            AMQPValue::LongLongInt(7_000),
        ] {
            let mut headers = headers(X_AT, value);
            headers.insert(X_DELAY.into(), AMQPValue::LongInt(5));
            assert_eq!(when(&headers), at(7_000));
        }
        assert!(when(&headers(X_AT, AMQPValue::Boolean(true))).is_err());
    }
}
