//! The log store from outside: what it promises, on the real file system and on a simulated disk.

mod backup;
mod conformance;
mod crash;
mod damage;
mod failure;
mod flush;
mod folder;
mod full;
mod golden;
mod golden_folders;
mod keys;
mod rig;
mod room;
mod salvage;
mod turns;
mod verify;
