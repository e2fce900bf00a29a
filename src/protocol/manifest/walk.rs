//! Walking JSON text level by level, straight from the parser: no tree is built, and a level refuses what it does not
//! take before anything is kept of it.
//!
//! Serde's errors carry no code, so the rule that is broken first is put aside in [`Reading`] and the parser stopped.

use std::cell::RefCell;
use std::fmt;

use serde::de::{DeserializeSeed, Deserializer, Error, MapAccess, SeqAccess, Visitor};

use super::error::{ManifestCode, ManifestError};

/// Longest member name that is told apart from others, in bytes. The specification's are far shorter.
const NAME_BYTES: usize = 32;

/// One reading of a text: where the refusal is put aside.
#[derive(Default)]
pub(super) struct Reading {
    refusal: RefCell<Option<ManifestError>>,
}

impl Reading {
    /// Reads the whole of `text` as one `level`, which stands at `spot`.
    pub(super) fn read<'de, L: Level<'de>>(
        &self,
        text: &'de str,
        level: L,
        spot: Spot<'_>,
    ) -> Result<L::Out, ManifestError> {
        let mut parser = serde_json::Deserializer::from_str(text);
        let read = At(level).deserialize(&mut parser).and_then(|out| parser.end().map(|()| out));
        // What no level refused, the parser did.
        read.map_err(|_| match self.refusal.take() {
            Some(refusal) => refusal,
            None => spot.error(ManifestCode::NotJson, "not JSON"),
        })
    }
}

/// A place in the text, for messages: `entries[3].path`.
#[derive(Clone, Copy)]
pub(super) struct Spot<'s> {
    reading: &'s Reading,
    place: Place<'s>,
}

#[derive(Clone, Copy)]
enum Place<'p> {
    Top,
    Member(&'p Place<'p>, &'static str),
    Index(&'p Place<'p>, usize),
}

impl fmt::Display for Place<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Top => Ok(()),
            Self::Member(Self::Top, name) => f.write_str(name),
            Self::Member(parent, name) => write!(f, "{parent}.{name}"),
            Self::Index(parent, index) => write!(f, "{parent}[{index}]"),
        }
    }
}

impl<'s> Spot<'s> {
    pub(super) fn top(reading: &'s Reading) -> Self {
        Self { reading, place: Place::Top }
    }

    pub(super) fn member<'c>(&'c self, name: &'static str) -> Spot<'c> {
        Spot { reading: self.reading, place: Place::Member(&self.place, name) }
    }

    pub(super) fn index<'c>(&'c self, index: usize) -> Spot<'c> {
        Spot { reading: self.reading, place: Place::Index(&self.place, index) }
    }

    /// The refusal of what stands here.
    pub(super) fn error(&self, code: ManifestCode, rule: impl fmt::Display) -> ManifestError {
        match self.place {
            Place::Top => ManifestError::new(code, rule),
            place => ManifestError::new(code, format_args!("{place}: {rule}")),
        }
    }

    /// Puts the refusal aside and stops the parser.
    pub(super) fn refuse<E: Error>(&self, code: ManifestCode, rule: impl fmt::Display) -> E {
        self.reading.refusal.replace(Some(self.error(code, rule)));
        E::custom(code.code())
    }

    /// The name of the next member of the object that stands here, `None` at its end.
    pub(super) fn next_name<'de, A: MapAccess<'de>>(&self, object: &mut A) -> Result<Option<String>, A::Error> {
        object.next_key_seed(At(Name))
    }

    /// The refusal of a member that the specification does not name here.
    pub(super) fn unknown<E: Error>(&self, name: &str) -> E {
        self.refuse(ManifestCode::UnknownField, format_args!("unknown field {name:?}"))
    }

    /// The refusal of a member whose name is there twice: readers would differ in which one counts.
    pub(super) fn twice<E: Error>(&self, name: &str) -> E {
        self.refuse(ManifestCode::NotJson, format_args!("the member {name:?} is there twice"))
    }

    /// Reads the value of the member `name` into `slot`.
    pub(super) fn fill<'de, A: MapAccess<'de>, L: Level<'de>>(
        &self,
        object: &mut A,
        slot: &mut Option<L::Out>,
        level: L,
        name: &'static str,
    ) -> Result<(), A::Error> {
        if slot.is_some() {
            return Err(self.twice(name));
        }
        *slot = Some(object.next_value_seed(At(level))?);
        Ok(())
    }

    /// What `slot` was filled with; a refusal if it never was.
    pub(super) fn require<T, E: Error>(&self, slot: Option<T>, code: ManifestCode, name: &'static str) -> Result<T, E> {
        slot.ok_or_else(|| self.member(name).refuse(code, "missing"))
    }
}

/// A value without parts.
pub(super) enum Scalar<'a> {
    Text(&'a str),
    Number(f64),
    /// An integer that a double may not hold.
    Integer(u64),
    Null,
    Other,
}

/// What may stand at a place.
pub(super) trait Level<'de>: Sized {
    type Out;

    /// The refusal of every shape that this level does not take.
    fn misshapen<E: Error>(self) -> E;

    fn scalar<E: Error>(self, _: Scalar<'_>) -> Result<Self::Out, E> {
        Err(self.misshapen())
    }

    fn array<A: SeqAccess<'de>>(self, _: A) -> Result<Self::Out, A::Error> {
        Err(self.misshapen())
    }

    fn object<A: MapAccess<'de>>(self, _: A) -> Result<Self::Out, A::Error> {
        Err(self.misshapen())
    }
}

/// Hands serde's calls to a level.
pub(super) struct At<L>(pub(super) L);

impl<'de, L: Level<'de>> DeserializeSeed<'de> for At<L> {
    type Value = L::Out;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<L::Out, D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de, L: Level<'de>> Visitor<'de> for At<L> {
    type Value = L::Out;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a value of a manifest")
    }

    fn visit_bool<E: Error>(self, _: bool) -> Result<L::Out, E> {
        self.0.scalar(Scalar::Other)
    }

    fn visit_i64<E: Error>(self, _: i64) -> Result<L::Out, E> {
        self.0.scalar(Scalar::Other) // the parser calls this for negative numbers only
    }

    fn visit_u64<E: Error>(self, number: u64) -> Result<L::Out, E> {
        self.0.scalar(Scalar::Integer(number))
    }

    fn visit_f64<E: Error>(self, number: f64) -> Result<L::Out, E> {
        self.0.scalar(Scalar::Number(number))
    }

    fn visit_unit<E: Error>(self) -> Result<L::Out, E> {
        self.0.scalar(Scalar::Null)
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<L::Out, E> {
        self.0.scalar(Scalar::Text(text))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, array: A) -> Result<L::Out, A::Error> {
        self.0.array(array)
    }

    fn visit_map<A: MapAccess<'de>>(self, object: A) -> Result<L::Out, A::Error> {
        self.0.object(object)
    }
}

/// A member's name, cut where it can no longer be one of the specification's.
struct Name;

impl<'de> Level<'de> for Name {
    type Out = String;

    fn misshapen<E: Error>(self) -> E {
        E::custom("a name is text")
    }

    fn scalar<E: Error>(self, scalar: Scalar<'_>) -> Result<String, E> {
        match scalar {
            Scalar::Text(name) => Ok(name[..name.floor_char_boundary(NAME_BYTES)].to_owned()),
            _ => Err(self.misshapen()),
        }
    }
}

/// A text that `parse` takes.
pub(super) struct Text<'s, F> {
    pub(super) spot: Spot<'s>,
    pub(super) code: ManifestCode,
    /// What the text must be, in words.
    pub(super) rule: &'static str,
    pub(super) parse: F,
}

impl<'de, T, F: FnOnce(&str) -> Option<T>> Level<'de> for Text<'_, F> {
    type Out = T;

    fn misshapen<E: Error>(self) -> E {
        self.spot.refuse(self.code, self.rule)
    }

    fn scalar<E: Error>(self, scalar: Scalar<'_>) -> Result<T, E> {
        let Scalar::Text(text) = scalar else {
            return Err(self.misshapen());
        };
        (self.parse)(text).ok_or_else(|| self.spot.refuse(self.code, self.rule))
    }
}

/// An integer up to `max`. `1.0` and `1e3` are integers, as they are to `JSON.parse`.
pub(super) struct Integer<'s> {
    pub(super) spot: Spot<'s>,
    pub(super) code: ManifestCode,
    pub(super) rule: &'static str,
    pub(super) max: u64,
}

impl<'de> Level<'de> for Integer<'_> {
    type Out = u64;

    fn misshapen<E: Error>(self) -> E {
        self.spot.refuse(self.code, self.rule)
    }

    fn scalar<E: Error>(self, scalar: Scalar<'_>) -> Result<u64, E> {
        let number = match scalar {
            Scalar::Integer(number) => Some(number),
            // Integral, and not beyond what a double counts exactly: the cast cannot change it.
            Scalar::Number(number) if number.fract() == 0.0 && (0.0..=self.max as f64).contains(&number) => {
                Some(number as u64)
            }
            _ => None,
        };
        number.filter(|&number| number <= self.max).ok_or_else(|| self.misshapen())
    }
}
