#![no_main]
libfuzzer_sys::fuzz_target!(|data: &[u8]| duewheel_fuzz::cron(data));
