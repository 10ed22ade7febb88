//! Tests of the driver, stepped by hand, in one binary.
#![allow(unreachable_pub)] // one binary of several modules
#![allow(clippy::unwrap_used, clippy::cast_possible_truncation)] // a panic is a failed test; numbers are small

/// Methods of a [`Store`](duewheel_core::store::Store) that a wrapper passes on to the store in its field:
/// `pass_on!(store: append sync);`
macro_rules! pass_on {
    ($field:tt: $($method:ident)*) => { $(pass_on!(@$method $field);)* };
    (@recovered $field:tt) => {
        fn recovered(&mut self) -> duewheel_core::store::Recovered {
            self.$field.recovered()
        }
    };
    (@append $field:tt) => {
        fn append(&mut self, group: &duewheel_core::record::Group) -> Result<(), duewheel_core::store::StoreError> {
            self.$field.append(group)
        }
    };
    (@sync $field:tt) => {
        fn sync(&mut self) -> Result<(), duewheel_core::store::StoreError> {
            self.$field.sync()
        }
    };
    (@progress $field:tt) => {
        fn progress(&mut self) -> Result<duewheel_core::store::Progress, duewheel_core::store::StoreError> {
            self.$field.progress()
        }
    };
    (@room $field:tt) => {
        fn room(&mut self) -> duewheel_core::store::Capacity {
            self.$field.room()
        }
    };
    (@find_many $field:tt) => {
        fn find_many(&mut self, lookups: &duewheel_core::store::Lookups, found: &mut duewheel_core::store::Found) -> Result<(), duewheel_core::store::StoreError> {
            self.$field.find_many(lookups, found)
        }
    };
    (@load $field:tt) => {
        fn load(&mut self, load: duewheel_core::store::Load) -> Result<(), duewheel_core::store::StoreError> {
            self.$field.load(load)
        }
    };
    (@loaded $field:tt) => {
        fn loaded(&mut self) -> Option<Result<duewheel_core::store::Loaded, duewheel_core::store::StoreError>> {
            self.$field.loaded()
        }
    };
    (@idle $field:tt) => {
        fn idle(&mut self, clock: duewheel_core::record::ClockPair) -> Result<(), duewheel_core::store::StoreError> {
            self.$field.idle(clock)
        }
    };
    (@close $field:tt) => {
        fn close(&mut self, clock: duewheel_core::record::ClockPair) -> Result<duewheel_core::store::Progress, duewheel_core::store::StoreError> {
            self.$field.close(clock)
        }
    };
    (@level $field:tt) => {
        fn level(&self) -> duewheel_core::store::Level {
            self.$field.level()
        }
    };
    (@figures $field:tt) => {
        fn figures(&self) -> Vec<(&'static str, u64)> {
            self.$field.figures()
        }
    };
}

mod driver;
mod groups;
mod pages;
mod parked;
mod parts;
mod quotas;
mod refused;
mod stuck;
