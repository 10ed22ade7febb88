//! Stores around other stores.

/// Implements methods of a [`Store`](crate::store::Store) that wraps another one, by calls of the same methods there.
///
/// The first word names the store within: `store:` is the field of this name. `in called:` is a method of the wrapper,
/// `fn called<T>(&mut self, call: impl FnOnce(&mut Within) -> T) -> T`, around each call; `T` may be a result. It is
/// for methods that take `&mut self`.
///
/// ```
/// # use duewheel_core::store::{Capacity, MemoryStore, Store};
/// struct Full(MemoryStore);
///
/// impl Store for Full {
///     duewheel_core::pass_on!(0: recovered append sync sync_here progress room_error terms find_many ask arrived);
///     duewheel_core::pass_on!(0: idle close figures);
///     fn room(&mut self) -> Capacity {
///         Capacity::SettleOnly
///     }
/// }
/// ```
#[macro_export]
macro_rules! pass_on {
    (@recovered $s:ident $to:tt) => { $crate::pass_on!(@mut $s $to recovered() -> $crate::store::Recovered); };
    (@append $s:ident $to:tt) => { $crate::pass_on!(@mut $s $to append(group: &$crate::record::Group)); };
    (@sync $s:ident $to:tt) => { $crate::pass_on!(@mut $s $to sync()); };
    (@sync_here $s:ident $to:tt) => { $crate::pass_on!(@mut $s $to sync_here()); };
    (@progress $s:ident $to:tt) => {
        $crate::pass_on!(@mut $s $to progress() -> Result<$crate::store::Progress, $crate::store::StoreError>);
    };
    (@room $s:ident $to:tt) => { $crate::pass_on!(@mut $s $to room() -> $crate::store::Capacity); };
    (@room_error $s:ident $to:tt) => {
        $crate::pass_on!(@ref $s $to room_error() -> Option<$crate::store::StoreError>);
    };
    (@terms $s:ident $to:tt) => { $crate::pass_on!(@ref $s $to terms() -> $crate::store::StoreTerms); };
    (@find_many $s:ident $to:tt) => {
        $crate::pass_on!(@mut $s $to find_many(lookups: &$crate::store::Lookups, found: &mut $crate::store::Found)
            -> Result<$crate::store::AtHand, $crate::store::StoreError>);
    };
    (@ask $s:ident $to:tt) => { $crate::pass_on!(@mut $s $to ask(request: $crate::store::StoreRequest)); };
    (@arrived $s:ident $to:tt) => {
        $crate::pass_on!(@mut $s $to arrived()
            -> Option<Result<$crate::store::StoreArrival, $crate::store::StoreError>>);
    };
    (@idle $s:ident $to:tt) => {
        $crate::pass_on!(@mut $s $to
            idle(clock: $crate::record::ClockPair, anchor: Option<$crate::record::BootAnchor>));
    };
    (@close $s:ident $to:tt) => {
        $crate::pass_on!(@mut $s $to close(clock: $crate::record::ClockPair)
            -> Result<$crate::store::Progress, $crate::store::StoreError>);
    };
    (@figures $s:ident $to:tt) => { $crate::pass_on!(@ref $s $to figures() -> Vec<(&'static str, u64)>); };
    (@mut $s:ident $to:tt $name:ident($($arg:ident: $of:ty),*)) => {
        $crate::pass_on!(@mut $s $to $name($($arg: $of),*) -> Result<(), $crate::store::StoreError>);
    };
    (@mut $s:ident $to:tt $name:ident($($arg:ident: $of:ty),*) -> $result:ty) => {
        fn $name(&mut $s, $($arg: $of),*) -> $result {
            $crate::pass_on!(@call $s $to $name($($arg),*))
        }
    };
    (@ref $s:ident $to:tt $name:ident() -> $result:ty) => {
        fn $name(&$s) -> $result {
            $crate::pass_on!(@call $s $to $name())
        }
    };
    (@call $s:ident (*) $($call:tt)*) => { (**$s).$($call)* };
    (@call $s:ident (in $around:ident) $($call:tt)*) => { $s.$around(|store| store.$($call)*) };
    (@call $s:ident ($field:tt) $($call:tt)*) => { $s.$field.$($call)* };
    (in $around:ident: $($method:ident)*) => { $($crate::pass_on!(@$method self (in $around));)* };
    ($field:tt: $($method:ident)*) => { $($crate::pass_on!(@$method self ($field));)* };
}
