//! The signature base (RFC 9421 section 2.5): the text that was signed.

use http::HeaderName;
use sfv::{InnerList, Item};

use super::SignatureError;
use super::field::{self, inner_list_text, item_text, member_text};
use super::request::Request;

const NOT_BUILT: SignatureError =
    SignatureError::Malformed("a signature covers a component that is unknown, absent, repeated or not printable");

/// A covered component: its name, and the dictionary key that it is narrowed to.
pub(super) struct Component<'a> {
    pub(super) name: &'a str,
    pub(super) key: Option<&'a str>,
}

impl<'a> Component<'a> {
    /// Reads an identifier. Parameters other than `key`, which only fields have, are refused.
    pub(super) fn of(item: &'a Item) -> Result<Self, SignatureError> {
        let name = item.bare_item.as_string().ok_or(NOT_BUILT)?.as_str();
        let mut key = None;
        for (parameter, value) in &item.params {
            match value.as_string() {
                Some(value) if parameter.as_str() == "key" && !name.starts_with('@') => key = Some(value.as_str()),
                _ => return Err(NOT_BUILT),
            }
        }
        Ok(Self { name, key })
    }
}

/// Builds the base of one signature. `scheme` is the one that the verifier is reached by.
pub(super) fn build(request: &Request<'_>, scheme: &str, input: &InnerList) -> Result<String, SignatureError> {
    let mut base = String::new();
    let mut seen = Vec::with_capacity(input.items.len());
    for item in &input.items {
        let identifier = item_text(item);
        if seen.contains(&identifier) {
            return Err(NOT_BUILT);
        }
        let value = value(request, scheme, &Component::of(item)?)?;
        base.push_str(&identifier);
        base.push_str(": ");
        base.push_str(&value);
        base.push('\n');
        seen.push(identifier);
    }
    base.push_str("\"@signature-params\": ");
    base.push_str(&inner_list_text(input));
    Ok(base)
}

fn value(request: &Request<'_>, scheme: &str, component: &Component<'_>) -> Result<String, SignatureError> {
    let url = || request.url(scheme).ok_or(NOT_BUILT);
    match component.name {
        "@method" => Ok(request.method.to_owned()),
        "@authority" => request.authority().ok_or(NOT_BUILT),
        "@scheme" => Ok(scheme.to_owned()),
        "@target-uri" => url().map(String::from),
        "@path" => url().map(|url| url.path().to_owned()),
        "@query" => url().map(|url| format!("?{}", url.query().unwrap_or_default())),
        name if name.starts_with('@') => Err(NOT_BUILT),
        name => {
            let header = HeaderName::from_bytes(name.as_bytes()).map_err(|_| NOT_BUILT)?;
            // Names are covered in lower case (RFC 9421 section 2.1).
            if header.as_str() != name {
                return Err(NOT_BUILT);
            }
            let value = request.field(&header).ok_or(NOT_BUILT)?;
            match component.key {
                None => Ok(value),
                Some(key) => {
                    let members = field::dictionary(&value).map_err(|_| NOT_BUILT)?;
                    members.get(key).map(member_text).ok_or(NOT_BUILT)
                }
            }
        }
    }
}
