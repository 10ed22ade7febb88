//! The log store from outside: what it promises, on the real file system and on a simulated disk.

mod answers;
mod at_hand;
mod backup;
mod budget;
mod conformance;
mod counting;
mod crash;
mod damage;
mod events;
mod failure;
mod flush;
mod folder;
mod full;
mod golden;
mod golden_folders;
mod keys;
mod later;
mod pool;
mod rig;
mod room;
mod run_files;
mod salvage;
mod seed;
mod sizes;
mod turns;
mod verify;
