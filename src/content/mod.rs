//! Bytes at rest, by their hash: chunks and files that were verified while they streamed, kept on disk and read again.
//!
//! A [`Cache`] is a folder of bounded size. Nothing becomes visible in it before its hash was found right, and nothing is
//! served from it in this process's life before it was hashed once more: so it needs no fsync, and whatever a crash or a
//! full disk leaves behind is thrown away or found out. Whatever goes wrong here costs a transfer nothing but a read of
//! its agent.
//!
//! A hash alone grants nothing: with every object stand the agents that have served these very bytes ([`Vouchers`]),
//! and a caller gets them only through an announcement of one of those.
//!
//! It must not know who may read what, nor where bytes come from.

mod buffers;
mod cache;
mod folder;
mod index;
mod stored;
#[cfg(test)]
mod tests;
mod underway;
mod vouchers;
mod waiting;
mod writer;

pub use cache::{Cache, Wanted};
pub use folder::OpenError;
pub use stored::Stored;
pub use vouchers::{Voucher, Vouchers};
pub use waiting::Waiting;
pub use writer::Writer;
