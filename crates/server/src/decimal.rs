//! Numbers as decimal digits, without the detour through a string: most replies are made of little else.

/// Writes a number.
pub(crate) fn digits(out: &mut Vec<u8>, mut n: u64) {
    let mut digits = [0; 20];
    let mut start = digits.len();
    loop {
        start -= 1;
        digits[start] = b"0123456789"[usize::try_from(n % 10).unwrap_or(0)];
        n /= 10;
        if n == 0 {
            break;
        }
    }
    out.extend_from_slice(&digits[start..]);
}

#[cfg(test)]
mod tests {
    #[test]
    fn as_the_library_writes_them() {
        for n in [0, 9, 10, 12_345, u64::MAX] {
            let mut out = b"x".to_vec();
            super::digits(&mut out, n);
            assert_eq!(out, format!("x{n}").into_bytes());
        }
    }
}
