//! The control plane: configuration, cores, sockets, the control thread's reactor and its
//! JSON-RPC, and the two programs `polluxd` (the appliance) and `pollux` (the operator's tool).

pub mod appliance;
pub mod bounce;
pub mod cli;
pub mod config;
pub mod core_lock;
pub mod cores;
pub mod demo;
pub mod doctor;
pub mod exit;
pub mod gateway;
pub mod hist;
pub mod host;
pub mod log;
pub mod measure;
pub mod nearest;
pub mod plane;
pub mod probe;
pub mod reactor;
pub mod rpc;
pub mod runtime_dir;
mod spare;
pub mod start;
pub mod syn_marks;
mod throttle;
pub mod unix_socket;
pub mod view;
mod words;
