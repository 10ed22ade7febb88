//! Random numbers of the system.

use ring::rand::{SecureRandom, SystemRandom};

use crate::error::{Code, Error};

/// An id that nobody else makes.
pub(crate) fn id() -> Result<String, Error> {
    let mut bytes = [0; 16];
    let filled = SystemRandom::new().fill(&mut bytes);
    filled.map_err(|_| {
        Error::new(Code::Other("no_random".to_owned()), "this system gives no random numbers")
    })?;
    Ok(format!("{:032x}", u128::from_be_bytes(bytes)))
}

/// A number from 0 up to 1.
pub(crate) fn fraction() -> f64 {
    let mut bytes = [0; 4];
    match SystemRandom::new().fill(&mut bytes) {
        Ok(()) => f64::from(u32::from_be_bytes(bytes)) / f64::from(u32::MAX),
        Err(_) => 0.5,
    }
}
