//! The signatures of a request that count, each under its label.

use ed25519_dalek::Signature;
use http::HeaderName;
use sfv::{InnerList, ListEntry};

use super::base::Component;
use super::request::Request;
use super::{CONTENT_DIGEST, LEEWAY_SECS, SIGNATURE, SIGNATURE_AGENT, SIGNATURE_INPUT, SignatureError, field};

/// Most signatures of the profile on one request: a key, and the one that follows it.
const LABELS: usize = 2;
const TAG: &str = "web-bot-auth";
/// Longest time between `created` and `expires`, in seconds.
const WINDOW_SECS: i64 = 3600;
const NONCE_BYTES: usize = 256;

pub(super) const NO_TAG: SignatureError =
    SignatureError::Malformed("one or two signatures of a request carry tag=\"web-bot-auth\"");
const MALFORMED: SignatureError = SignatureError::Malformed(
    "Signature-Input and Signature are dictionaries with the same labels: lists of strings, and 64-byte signatures",
);

/// One signature, and what it is over.
#[derive(Debug)]
pub(super) struct Label {
    pub(super) input: InnerList,
    pub(super) signature: Signature,
    pub(super) keyid: String,
    pub(super) nonce: String,
    /// In Unix seconds.
    pub(super) expires: i64,
}

/// Reads the labels that count.
pub(super) fn read(request: &Request<'_>, now: i64) -> Result<Vec<Label>, SignatureError> {
    let dictionary = |name: &HeaderName| {
        let value = request.field(name).ok_or(MALFORMED)?;
        field::dictionary(&value).map_err(|_| MALFORMED)
    };
    let (inputs, signatures) = (dictionary(&SIGNATURE_INPUT)?, dictionary(&SIGNATURE)?);
    if inputs.len() != signatures.len() {
        return Err(MALFORMED);
    }
    let mut counted = Vec::new();
    for (label, input) in inputs {
        let signature = match signatures.get(&label) {
            Some(ListEntry::Item(item)) => item.bare_item.as_byte_sequence().ok_or(MALFORMED)?,
            _ => return Err(MALFORMED),
        };
        let ListEntry::InnerList(input) = input else { return Err(MALFORMED) };
        if input.items.iter().any(|item| item.bare_item.as_string().is_none()) {
            return Err(MALFORMED);
        }
        if input.params.get("tag").and_then(|tag| tag.as_string()).is_some_and(|tag| tag.as_str() == TAG) {
            counted.push((input, signature.to_vec()));
        }
    }
    if counted.is_empty() || counted.len() > LABELS {
        return Err(NO_TAG);
    }
    counted.into_iter().map(|(input, signature)| Label::read(input, &signature, now)).collect()
}

impl Label {
    fn read(input: InnerList, signature: &[u8], now: i64) -> Result<Self, SignatureError> {
        let invalid = SignatureError::ParamsInvalid;
        let integer = |name: &str| input.params.get(name).and_then(|value| value.as_integer()).map(i64::from);
        let string =
            |name: &str| input.params.get(name).and_then(|value| value.as_string()).map(|value| value.as_str());
        let created = integer("created").ok_or(invalid("created is required, in whole seconds since the epoch"))?;
        let expires = integer("expires").ok_or(invalid("expires is required, in whole seconds since the epoch"))?;
        let is_thumbprint = |keyid: &&str| {
            keyid.len() == 43 && keyid.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"_-".contains(&byte))
        };
        let keyid = string("keyid").filter(is_thumbprint);
        let keyid = keyid.ok_or(invalid("keyid is the key's RFC 7638 thumbprint: 43 characters of base64url"))?;
        if input.params.contains_key("alg") && string("alg") != Some("ed25519") {
            return Err(invalid("alg is \"ed25519\", or left out"));
        }
        let nonce = string("nonce").filter(|nonce| (1..=NONCE_BYTES).contains(&nonce.len()));
        let nonce = nonce.ok_or(invalid("nonce is required, a string of 1 to 256 characters"))?;
        if expires <= created || expires - created > WINDOW_SECS {
            return Err(invalid("expires is after created, by an hour at most"));
        }
        let (keyid, nonce) = (keyid.to_owned(), nonce.to_owned());
        let signature = Signature::from_slice(signature).map_err(|_| MALFORMED)?;
        if created > now + LEEWAY_SECS || expires < now - LEEWAY_SECS {
            return Err(SignatureError::Expired);
        }
        Ok(Self { input, signature, keyid, nonce, expires })
    }

    /// Checks that everything is covered that must be. The dictionary key that `signature-agent` is covered by, if any.
    pub(super) fn covers(&self, has_body: bool, legacy: bool) -> Result<Option<&str>, SignatureError> {
        let insufficient = SignatureError::CoverageInsufficient;
        let bare = |name: &str| {
            let is = |item: &sfv::Item| {
                item.params.is_empty() && item.bare_item.as_string().is_some_and(|s| s.as_str() == name)
            };
            self.input.items.iter().any(is)
        };
        if !["@method", "@authority", "@path", "@query"].into_iter().all(bare) {
            return Err(insufficient("a signature covers @method, @authority, @path and @query"));
        }
        if has_body && !bare(CONTENT_DIGEST.as_str()) {
            return Err(insufficient("a request with a body sends Content-Digest and covers it"));
        }
        let name = SIGNATURE_AGENT;
        let is_agent =
            |item: &&sfv::Item| item.bare_item.as_string().is_some_and(|text| text.as_str() == name.as_str());
        let mut agents = self.input.items.iter().filter(is_agent);
        let uncovered =
            insufficient("a signature covers its own member of Signature-Agent, once: \"signature-agent\";key");
        let (Some(agent), None) = (agents.next(), agents.next()) else { return Err(uncovered) };
        match (Component::of(agent).map_err(|_| uncovered)?.key, legacy) {
            (None, true) => Ok(None),
            (Some(key), false) => Ok(Some(key)),
            _ => Err(uncovered),
        }
    }

    pub(super) fn covers_digest(&self) -> bool {
        let is =
            |item: &sfv::Item| item.bare_item.as_string().is_some_and(|text| text.as_str() == CONTENT_DIGEST.as_str());
        self.input.items.iter().any(is)
    }
}
