//! Ids of events: the places from which a reader can go on.

use std::fmt;
use std::str::FromStr;

/// A place in the events of a chat: whoever has it was told everything up to there. Readers take it as it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct EventId {
    /// Which history it is a place of: none of those before a restart, on another node, or given up meanwhile.
    pub(super) history: u64,
    /// How many events that history had told.
    pub(super) position: u64,
}

/// The text is no id of an event.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("an event's id is one that a stream gave")]
pub struct InvalidEventId;

impl fmt::Display for EventId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016x}-{}", self.history, self.position)
    }
}

impl FromStr for EventId {
    type Err = InvalidEventId;

    /// Takes the one spelling that [`Display`](fmt::Display) gives.
    fn from_str(text: &str) -> Result<Self, InvalidEventId> {
        let (history, position) = text.split_once('-').ok_or(InvalidEventId)?;
        let history = u64::from_str_radix(history, 16).map_err(|_| InvalidEventId)?;
        let position = position.parse().map_err(|_| InvalidEventId)?;
        let id = Self { history, position };
        if id.to_string() == text { Ok(id) } else { Err(InvalidEventId) }
    }
}

/// From where on a reader wants to be told.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Since {
    /// From now on.
    Now,
    /// From a place on.
    Place(EventId),
    /// From something on that is no place here.
    Unknown,
}

impl Since {
    /// What a `Last-Event-ID` says (HTML Standard, "server-sent events"). Whatever is not understood is no error: the
    /// reader is told that it missed something.
    pub fn of(last_event_id: &[u8]) -> Self {
        match std::str::from_utf8(last_event_id) {
            Ok("") => Self::Now,
            Ok(text) => text.parse().map_or(Self::Unknown, Self::Place),
            Err(_) => Self::Unknown,
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn an_id_has_one_spelling() {
        let id = EventId { history: 0xabc, position: 7 };
        assert_eq!(id.to_string(), "0000000000000abc-7");
        assert_eq!(Since::of(b"0000000000000abc-7"), Since::Place(id));
        assert_eq!(Since::of(b""), Since::Now);
        for text in [
            &b"abc-7"[..],
            b"0000000000000ABC-7",
            b"0000000000000abc-07",
            b"0000000000000abc-+7",
            b"+000000000000abc-7",
            b"0000000000000abc--7",
            b"0000000000000abc-",
            b"0000000000000abc",
            b" 0000000000000abc-7",
            b"0000000000000abc-7 ",
            b"0000000000000abc-99999999999999999999",
            b"7",
            b"-",
            b"\xff",
        ] {
            assert_eq!(Since::of(text), Since::Unknown, "{text:?}");
        }
    }

    proptest! {
        #[test]
        fn an_id_comes_back_as_it_went(history in any::<u64>(), position in any::<u64>()) {
            let id = EventId { history, position };
            prop_assert_eq!(Since::of(id.to_string().as_bytes()), Since::Place(id));
        }

        #[test]
        fn whatever_is_sent_is_read(bytes in prop::collection::vec(any::<u8>(), 0..80)) {
            if let Since::Place(id) = Since::of(&bytes) {
                prop_assert_eq!(id.to_string().into_bytes(), bytes);
            }
        }

        #[test]
        fn what_looks_like_an_id_is_one_or_none(text in "[0-9a-fA-F+-]{0,20}-[0-9+-]{0,22}") {
            if let Since::Place(id) = Since::of(text.as_bytes()) {
                prop_assert_eq!(id.to_string(), text);
            }
        }
    }
}
