//! What the integration tests share: sample content and an agent that does as it is told.
#![allow(dead_code, unused_imports, reason = "each test crate uses a part")]
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a helper of tests fails the test")]

pub mod agent;
pub mod behaviour;
pub mod db;
pub mod disk;
pub mod gateway;
pub mod log;
pub mod origin;
pub mod platform;
pub mod proxy;
pub mod requests;
pub mod running;
pub mod sample;
pub mod signer;
pub mod stream;
pub mod wire;

mod socket;

pub use agent::{Agent, AgentBuilder, ConnectError};
pub use behaviour::{Behaviour, Fault};
pub use disk::Disk;
pub use gateway::{Answer, Client, Download, Gateway, eventually, set_file, span};
pub use log::{Event, Kind, What};
pub use origin::Origin;
pub use sample::{SampleSet, bytes, sha256};
pub use signer::{SigningAgent, key_set};
pub use stream::{EventStream, Told, bearer};
pub use wire::Wire;
