//! TLS towards others: whose certificates are believed.

use std::sync::Arc;

use rustls::{ClientConfig, RootCertStore};
use tokio_rustls::TlsConnector;

/// The certificates that the system trusts, or those that `SSL_CERT_FILE` and `SSL_CERT_DIR` name.
pub fn system_roots() -> RootCertStore {
    let mut roots = RootCertStore::empty();
    let found = rustls_native_certs::load_native_certs();
    let (_, ignored) = roots.add_parsable_certificates(found.certs);
    if roots.is_empty() {
        tracing::warn!("no trusted certificates found: nothing can be fetched over https (set SSL_CERT_FILE)");
    } else if ignored > 0 {
        tracing::debug!(ignored, "some of the system's certificates are not usable");
    }
    roots
}

/// Makes TLS sessions with whoever one of the roots vouches for.
pub fn connector(roots: RootCertStore) -> Option<TlsConnector> {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    // It fails only for a provider that has no cipher for the default versions, and ring's has.
    let made = ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions().ok()?;
    Some(TlsConnector::from(Arc::new(made.with_root_certificates(roots).with_no_client_auth())))
}
