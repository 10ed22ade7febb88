//! Private: history checker and fault tests.
