//! The opening handshake of a WebSocket (RFC 6455 section 4): how either side shows that it speaks the protocol.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use sha1::{Digest as _, Sha1};

/// What a key is hashed with (RFC 6455 section 1.3).
const GUID: &str = "258EAFA5-E914-47DA-95CA-C5AB0DC85B11";

/// The `Sec-WebSocket-Key` for these random bytes, which nobody else has asked with.
pub fn key(nonce: [u8; 16]) -> String {
    STANDARD.encode(nonce)
}

/// The `Sec-WebSocket-Accept` that answers a `Sec-WebSocket-Key` (RFC 6455 section 4.2.2).
pub fn accept(key: &[u8]) -> String {
    STANDARD.encode(Sha1::new().chain_update(key).chain_update(GUID).finalize())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// RFC 6455 section 1.3.
    #[test]
    fn the_specifications_example_comes_out() {
        let key = key(*b"the sample nonce");
        assert_eq!(
            (key.as_str(), accept(key.as_bytes()).as_str()),
            ("dGhlIHNhbXBsZSBub25jZQ==", "s3pPLMBiTxaQ9kYGzzhZRbK+xOo=")
        );
    }
}
