//! What both ends of a connection share, whoever dials: a socket that gives itself up, and whom TLS trusts.

mod socket;
pub mod tls;

pub use socket::Socket;
