//! Structured fields (RFC 9651), stricter than the RFC: what two parsers might read differently is refused.

use std::convert::Infallible;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use sfv::visitor::{DictionaryVisitor, EntryVisitor, InnerListVisitor, ItemVisitor, ParameterVisitor};
use sfv::{
    BareItemFromInput, Dictionary, InnerList, Item, ItemSerializer, KeyRef, ListEntry, ListSerializer, Parameters,
    Parser, Version,
};

/// Longest field that is parsed, in bytes.
const FIELD_BYTES: usize = 8192;
/// Most members of a dictionary.
const MEMBERS: usize = 16;

/// A field that is not read, whichever rule it breaks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("not a structured field of the profile")]
pub(super) struct InvalidField;

impl From<Infallible> for InvalidField {
    fn from(never: Infallible) -> Self {
        match never {}
    }
}

/// A dictionary of at most 16 members, no key twice.
pub(super) fn dictionary(value: &str) -> Result<Dictionary, InvalidField> {
    let mut members = Dictionary::new();
    strict(value)?.parse_dictionary_with_visitor(StrictDictionary(&mut members)).map_err(|_| InvalidField)?;
    Ok(members)
}

/// A single item.
pub(super) fn item(value: &str) -> Result<Item, InvalidField> {
    let mut items = Vec::new();
    strict(value)?.parse_item_with_visitor(StrictItem(&mut items)).map_err(|_| InvalidField)?;
    items.pop().ok_or(InvalidField)
}

/// An item in its one canonical spelling.
pub(super) fn item_text(item: &Item) -> String {
    ItemSerializer::new().bare_item(&item.bare_item).parameters(&item.params).finish()
}

/// An inner list and its parameters in their one canonical spelling.
pub(super) fn inner_list_text(list: &InnerList) -> String {
    let mut text = ListSerializer::new();
    let mut inner = text.inner_list();
    inner.items(&list.items);
    let _ = inner.finish().parameters(&list.params).finish();
    // A list with a member is never empty, and only an empty one has no text.
    text.finish().unwrap_or_default()
}

/// A dictionary member's value in its one canonical spelling.
pub(super) fn member_text(member: &ListEntry) -> String {
    match member {
        ListEntry::Item(item) => item_text(item),
        ListEntry::InnerList(list) => inner_list_text(list),
    }
}

/// A parser that knows neither dates nor display strings, on a field that is short and spells its bytes canonically.
fn strict(value: &str) -> Result<Parser<'_>, InvalidField> {
    if value.len() > FIELD_BYTES || !has_canonical_bytes(value) {
        return Err(InvalidField);
    }
    Ok(Parser::new(value).with_version(Version::Rfc8941))
}

/// Whether every byte sequence is in the one spelling that base64 has for its bytes; the parser takes others too. A
/// byte sequence is between colons, and only the first colon after `=`, `(` or a space begins one: tokens hold colons
/// too, but do not start with one.
fn has_canonical_bytes(value: &str) -> bool {
    let mut rest = value.as_bytes();
    let (mut quoted, mut previous) = (false, b' ');
    while let [byte, after @ ..] = rest {
        rest = after;
        match byte {
            b'\\' if quoted => rest = after.get(1..).unwrap_or_default(),
            b'"' => quoted = !quoted,
            b':' if !quoted && matches!(previous, b'=' | b'(' | b' ') => {
                let Some(end) = rest.iter().position(|&byte| byte == b':') else { return false };
                if STANDARD.decode(&rest[..end]).is_err() {
                    return false;
                }
                rest = &rest[end + 1..];
            }
            _ => {}
        }
        previous = *byte;
    }
    true
}

fn known(value: &BareItemFromInput<'_>) -> Result<(), InvalidField> {
    match value {
        BareItemFromInput::Decimal(_) | BareItemFromInput::Date(_) | BareItemFromInput::DisplayString(_) => {
            Err(InvalidField)
        }
        _ => Ok(()),
    }
}

struct StrictParameters<'a>(&'a mut Parameters);

impl<'de> ParameterVisitor<'de> for StrictParameters<'_> {
    type Out = ();
    type Error = InvalidField;

    fn parameter(&mut self, key: &'de KeyRef, value: BareItemFromInput<'de>) -> Result<(), InvalidField> {
        known(&value)?;
        match self.0.insert(key.to_owned(), value.into()) {
            None => Ok(()),
            Some(_) => Err(InvalidField),
        }
    }

    fn finish(self) -> Result<(), InvalidField> {
        Ok(())
    }
}

/// Puts an item behind others.
struct StrictItem<'a>(&'a mut Vec<Item>);

impl<'de> ItemVisitor<'de> for StrictItem<'_> {
    type Out = ();
    type Error = InvalidField;

    fn bare_item(self, value: BareItemFromInput<'de>) -> Result<impl ParameterVisitor<'de, Out = ()>, InvalidField> {
        known(&value)?;
        self.0.push(Item::new(value));
        self.0.last_mut().map(|item| StrictParameters(&mut item.params)).ok_or(InvalidField)
    }
}

struct StrictInnerList<'a>(&'a mut InnerList);

impl<'de> InnerListVisitor<'de> for StrictInnerList<'_> {
    type Error = InvalidField;

    fn item(&mut self) -> Result<impl ItemVisitor<'de>, InvalidField> {
        Ok(StrictItem(&mut self.0.items))
    }

    fn finish(self) -> Result<impl ParameterVisitor<'de>, InvalidField> {
        Ok(StrictParameters(&mut self.0.params))
    }
}

struct StrictDictionary<'a>(&'a mut Dictionary);

impl<'de> DictionaryVisitor<'de> for StrictDictionary<'_> {
    type Out = ();
    type Error = InvalidField;

    fn entry(&mut self, key: &'de KeyRef) -> Result<impl EntryVisitor<'de>, InvalidField> {
        if self.0.len() == MEMBERS || self.0.contains_key(key) {
            return Err(InvalidField);
        }
        Ok(StrictMember { members: self.0, key })
    }

    fn finish(self) -> Result<(), InvalidField> {
        Ok(())
    }
}

struct StrictMember<'a, 'de> {
    members: &'a mut Dictionary,
    key: &'de KeyRef,
}

impl<'a> StrictMember<'a, '_> {
    fn insert(self, member: ListEntry) -> &'a mut ListEntry {
        self.members.entry(self.key.to_owned()).insert_entry(member).into_mut()
    }
}

impl<'de> ItemVisitor<'de> for StrictMember<'_, 'de> {
    type Out = ();
    type Error = InvalidField;

    fn bare_item(self, value: BareItemFromInput<'de>) -> Result<impl ParameterVisitor<'de, Out = ()>, InvalidField> {
        known(&value)?;
        match self.insert(ListEntry::Item(Item::new(value))) {
            ListEntry::Item(item) => Ok(StrictParameters(&mut item.params)),
            ListEntry::InnerList(_) => Err(InvalidField),
        }
    }
}

impl<'de> EntryVisitor<'de> for StrictMember<'_, 'de> {
    type Error = InvalidField;

    fn item(self) -> Result<impl ItemVisitor<'de>, InvalidField> {
        Ok(self)
    }

    fn inner_list(self) -> Result<impl InnerListVisitor<'de>, InvalidField> {
        match self.insert(ListEntry::InnerList(InnerList::default())) {
            ListEntry::InnerList(list) => Ok(StrictInnerList(list)),
            ListEntry::Item(_) => Err(InvalidField),
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn what_the_profile_sends_is_read() {
        for value in [
            "sig1=:AAAA:",
            "sig1=::",
            "sig1=:AA==:, sig2=:AAE=:",
            "sig1=\"https://a.example\";type=jwks_uri",
            "sig1=(\"@method\" \"x\";key=\"a\");created=1;nonce=\"::=:x\\\":\";tag=a:b:c",
            "a, b=?0,  c=( :AA==: )",
            "a=-999999999999999",
        ] {
            assert!(dictionary(value).is_ok(), "{value}");
        }
        assert!(item("\"https://a.example\"").is_ok());
    }

    #[test]
    fn what_could_be_read_in_two_ways_is_refused() {
        let many: Vec<String> = (0..17).map(|n| format!("k{n}=1")).collect();
        let long = format!("a=\"{}\"", "x".repeat(FIELD_BYTES));
        for value in [
            "a=1, a=2",
            "a=1;p=1;p=2",
            "a=(\"x\";p;p)",
            "a=(1);p;p",
            "a=1.5",
            "a=1;p=1.5",
            "a=(1.5)",
            "a=@1",
            "a=%\"x\"",
            "a=:AA:",
            "a=:AA=:",
            "a=:AB==:",
            "a=1;p=:AB==:",
            "a=(\"x\" :AB==:)",
            "a=:A A=:",
            "a=:AAAA",
            "a=1234567890123456",
            "a=1,",
            "a=1, ",
            "a=1 b=2",
            "A=1",
            "a=\"\u{e9}\"",
            &many.join(", "),
            &long,
        ] {
            assert_eq!(dictionary(value), Err(InvalidField), "{value}");
        }
        assert!(dictionary(&many[..16].join(",")).is_ok());
        assert!(item("\"a\", \"b\"").is_err());
        assert!(item("").is_err());
    }

    proptest! {
        #[test]
        fn any_text_is_a_field_or_an_error(value in "[ -~]{0,60}|[a-c=:;,()\"\\\\ 0-9?@%.-]{0,40}") {
            if let Ok(members) = dictionary(&value) {
                for (key, member) in &members {
                    let text = format!("{}={}", key.as_str(), member_text(member));
                    let again = dictionary(&text).unwrap();
                    prop_assert_eq!(again.get(key), Some(member), "{}", text);
                }
            }
            if let Ok(read) = item(&value) {
                prop_assert_eq!(item(&item_text(&read)), Ok(read));
            }
        }

        #[test]
        fn bytes_have_one_spelling(bytes in prop::collection::vec(any::<u8>(), 0..80)) {
            let value = format!("sig=:{}:", STANDARD.encode(&bytes));
            let members = dictionary(&value).unwrap();
            let ListEntry::Item(item) = &members["sig"] else { panic!("not an item") };
            prop_assert_eq!(item.bare_item.as_byte_sequence(), Some(&bytes[..]));
            prop_assert_eq!(member_text(&members["sig"]), &value[4..]);
        }
    }
}
