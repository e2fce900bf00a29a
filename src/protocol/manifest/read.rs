//! The strict reader (specification section 1): a manifest is input from another party, refused by the first rule that
//! it breaks.
//!
//! Where the specification leaves room:
//! - `entries` that are missing or no list, and an entry that is no object, are `not_an_object`: there is no code of
//!   their own. Every other missing member is refused by its own code.
//! - Null stands for `expiresAt` only, where it is kept in the canonical form as received.
//! - `1.0` and `1e3` are integers, as they are to `JSON.parse`; integers above 2^53 - 1 are not.
//! - A member that is there twice is `not_json` (RFC 7493 section 2.3), as are unpaired surrogates.
//! - Chunks must be one hash for every started chunk, also where the file is no longer than one (none for an empty
//!   file); without chunks a file of any length is taken.
//! - The sizes of all entries together are a safe integer too, so that no sum of them overflows.

use serde::de::{Error, MapAccess};
use serde_json::value::RawValue;

use super::entry::{EntriesLevel, ReadEntry};
use super::error::{ManifestCode, ManifestError};
use super::form::{ManifestForm, ProducerForm};
use super::location::LocationList;
use super::walk::{Level, Reading, Scalar, Spot, Text};
use super::{KIND, Location, Manifest, path};
use crate::protocol::limits::{MANIFEST_BYTES, NESTING_DEPTH, SAFE_INTEGER};
use crate::protocol::{Sha256, TaskId, timestamp};

/// Longest `producer.agent` and `producer.name`, in bytes.
const PRODUCER_TEXT_BYTES: usize = 2048;

/// Reads a manifest from the JSON text of its value, exactly as received.
///
/// # Errors
/// The first rule that is broken. The text's size is checked before anything is read, then that all of it is JSON, then
/// the members in the order `kind`, unknown members, times, producer, locations, entries.
pub fn read(text: &str) -> Result<Manifest, ManifestError> {
    let reading = Reading::default();
    let top = Spot::top(&reading);
    let too_large = || top.error(ManifestCode::ManifestTooLarge, "a manifest is at most 16 MiB");
    if text.len() > MANIFEST_BYTES {
        return Err(too_large());
    }
    let parts = reading.read(text, MembersLevel(top, text), top)?.read(&reading)?;
    let mut canonical = Vec::with_capacity(text.len());
    // Texts and integers under fixed names cannot fail to serialise.
    serde_json::to_writer(&mut canonical, &parts.form())
        .map_err(|_| top.error(ManifestCode::NotJson, "has no JSON form"))?;
    if canonical.len() > MANIFEST_BYTES {
        return Err(too_large());
    }
    Ok(Manifest {
        identity: Sha256::of(&canonical),
        canonical: canonical.into(),
        created_at: parts.created_at.millis,
        expires_at: parts.expires_at.flatten().map(|at| at.millis),
        producer_agent: parts.producer.agent,
        producer_task: parts.producer.task,
        producer_name: parts.producer.name,
        entries: parts.entries.into_iter().map(|read| read.entry).collect(),
        locations: parts.locations.unwrap_or_default(),
    })
}

/// Reads a manifest from its bytes.
///
/// # Errors
/// As [`read`]; bytes that are not UTF-8 are `not_json`.
pub fn read_bytes(bytes: &[u8]) -> Result<Manifest, ManifestError> {
    let text = std::str::from_utf8(bytes).map_err(|_| ManifestError::new(ManifestCode::NotJson, "not UTF-8"))?;
    read(text)
}

/// Reads a list of locations that stands outside a manifest, such as an announcement's own.
///
/// # Errors
/// As for a list within a manifest.
pub fn read_locations(text: &str) -> Result<Vec<Location>, ManifestError> {
    read_list(&Reading::default(), text)
}

/// Checks how many manifests lie around one that is to be read: 0 for a set's own, 1 for one that it lists.
///
/// # Errors
/// `nesting_too_deep` above 8.
pub fn check_depth(depth: usize) -> Result<(), ManifestError> {
    if depth > NESTING_DEPTH {
        return Err(ManifestError::new(ManifestCode::NestingTooDeep, "manifests nest more than 8 deep"));
    }
    Ok(())
}

fn read_list(reading: &Reading, text: &str) -> Result<Vec<Location>, ManifestError> {
    let top = Spot::top(reading);
    let spot = top.member("locations");
    reading.read(text, LocationList(spot), spot)
}

/// What holds between entries.
fn check_together(spot: &Spot<'_>, entries: &[ReadEntry]) -> Result<(), ManifestError> {
    let total = entries.iter().fold(0_u64, |total, read| total.saturating_add(read.entry.size));
    if total > SAFE_INTEGER {
        return Err(spot.error(ManifestCode::SizeInvalid, "the sizes are more than 2^53 - 1 together"));
    }
    path::check_together(entries.iter().map(|read| read.entry.path.as_str())).map_err(|clash| {
        let rule = match clash.code {
            ManifestCode::PathDuplicate => "the same path as",
            _ => "a file and a directory at once, with",
        };
        let first = clash.first;
        spot.index(clash.second).member("path").error(clash.code, format_args!("{rule} entries[{first}]"))
    })
}

/// The manifest's members, each still text: so that all of it is known to be JSON before a rule is applied, and the
/// order of members decides nothing.
#[derive(Default)]
struct Members<'de> {
    kind: Option<&'de RawValue>,
    created_at: Option<&'de RawValue>,
    expires_at: Option<&'de RawValue>,
    producer: Option<&'de RawValue>,
    entries: Option<&'de RawValue>,
    locations: Option<&'de RawValue>,
    /// The first member of another name.
    unknown: Option<String>,
}

impl Members<'_> {
    /// Applies the rules, one member after another.
    fn read(self, reading: &Reading) -> Result<Parts, ManifestError> {
        let top = Spot::top(reading);
        let spot = top.member("kind");
        let kind = required(&spot, self.kind, ManifestCode::WrongKind)?;
        reading.read(kind, kind_level(spot), spot)?;
        if let Some(name) = self.unknown {
            return Err(top.error(ManifestCode::UnknownField, format_args!("unknown field {name:?}")));
        }
        let spot = top.member("createdAt");
        let created_at = required(&spot, self.created_at, ManifestCode::CreatedAtInvalid)?;
        let created_at = reading.read(created_at, time_level(spot, ManifestCode::CreatedAtInvalid), spot)?;
        let spot = top.member("expiresAt");
        let expires_at = self
            .expires_at
            .map(|raw| reading.read(raw.get(), OrNull(time_level(spot, ManifestCode::ExpiresAtInvalid)), spot));
        let expires_at = expires_at.transpose()?;
        let spot = top.member("producer");
        let producer = required(&spot, self.producer, ManifestCode::ProducerInvalid)?;
        let producer = reading.read(producer, ProducerLevel(spot), spot)?;
        let locations = self.locations.map(|raw| read_list(reading, raw.get())).transpose()?;
        let spot = top.member("entries");
        let entries = required(&spot, self.entries, ManifestCode::NotAnObject)?;
        let entries = reading.read(entries, EntriesLevel(spot), spot)?;
        check_together(&spot, &entries)?;
        Ok(Parts { created_at, expires_at, producer, entries, locations })
    }
}

fn required<'de>(
    spot: &Spot<'_>,
    member: Option<&'de RawValue>,
    code: ManifestCode,
) -> Result<&'de str, ManifestError> {
    member.map(RawValue::get).ok_or_else(|| spot.error(code, "missing"))
}

/// A manifest's parts as they were written.
struct Parts {
    created_at: Time,
    /// The inner `None` is an explicit null.
    expires_at: Option<Option<Time>>,
    producer: Producer,
    entries: Vec<ReadEntry>,
    locations: Option<Vec<Location>>,
}

impl Parts {
    fn form(&self) -> ManifestForm<'_> {
        ManifestForm {
            created_at: &self.created_at.text,
            entries: self.entries.iter().map(ReadEntry::form).collect(),
            expires_at: self.expires_at.as_ref().map(|at| at.as_ref().map(|at| at.text.as_str())),
            kind: KIND,
            locations: self.locations.as_deref(),
            producer: ProducerForm {
                agent: &self.producer.agent,
                name: self.producer.name.as_deref(),
                task: self.producer.task.as_ref().map(TaskId::as_str),
            },
        }
    }
}

struct Time {
    millis: i64,
    /// Kept for the canonical form: a time can be spelled in several ways.
    text: String,
}

/// The text is needed to tell what is no object from what is no JSON.
struct MembersLevel<'s>(Spot<'s>, &'s str);

impl<'de> Level<'de> for MembersLevel<'_> {
    type Out = Members<'de>;

    fn misshapen<E: Error>(self) -> E {
        match serde_json::from_str::<serde::de::IgnoredAny>(self.1) {
            Ok(_) => self.0.refuse(ManifestCode::NotAnObject, "a manifest is a JSON object"),
            Err(_) => self.0.refuse(ManifestCode::NotJson, "not JSON"),
        }
    }

    fn object<A: MapAccess<'de>>(self, mut object: A) -> Result<Members<'de>, A::Error> {
        let mut members = Members::default();
        while let Some(name) = self.0.next_name(&mut object)? {
            let value: &'de RawValue = object.next_value()?;
            let slot = match name.as_str() {
                "kind" => &mut members.kind,
                "createdAt" => &mut members.created_at,
                "expiresAt" => &mut members.expires_at,
                "producer" => &mut members.producer,
                "entries" => &mut members.entries,
                "locations" => &mut members.locations,
                _ => {
                    members.unknown.get_or_insert(name);
                    continue;
                }
            };
            if slot.replace(value).is_some() {
                return Err(self.0.twice(&name));
            }
        }
        Ok(members)
    }
}

fn kind_level<'de>(spot: Spot<'_>) -> impl Level<'de, Out = ()> {
    let parse = |text: &str| (text == KIND).then_some(());
    Text { spot, code: ManifestCode::WrongKind, rule: "must be webagents.artifact-set/v1", parse }
}

fn time_level<'de>(spot: Spot<'_>, code: ManifestCode) -> impl Level<'de, Out = Time> {
    let parse = |text: &str| timestamp::parse(text).map(|millis| Time { millis, text: text.to_owned() });
    Text { spot, code, rule: "must be an ISO 8601 time in UTC with Z", parse }
}

/// What `L` takes, or null.
struct OrNull<L>(L);

impl<'de, L: Level<'de>> Level<'de> for OrNull<L> {
    type Out = Option<L::Out>;

    fn misshapen<E: Error>(self) -> E {
        self.0.misshapen()
    }

    fn scalar<E: Error>(self, scalar: Scalar<'_>) -> Result<Self::Out, E> {
        match scalar {
            Scalar::Null => Ok(None),
            scalar => self.0.scalar(scalar).map(Some),
        }
    }
}

struct Producer {
    agent: String,
    name: Option<String>,
    task: Option<TaskId>,
}

struct ProducerLevel<'s>(Spot<'s>);

impl<'de> Level<'de> for ProducerLevel<'_> {
    type Out = Producer;

    fn misshapen<E: Error>(self) -> E {
        self.0.refuse(ManifestCode::ProducerInvalid, "must be an object")
    }

    fn object<A: MapAccess<'de>>(self, mut object: A) -> Result<Producer, A::Error> {
        let spot = &self.0;
        let (mut agent, mut name, mut task) = (None, None, None);
        while let Some(member) = spot.next_name(&mut object)? {
            let code = ManifestCode::ProducerInvalid;
            let (rule, parse) = ("must be 1 to 2048 bytes, printable", printable);
            match member.as_str() {
                "agent" => {
                    let level = Text { spot: spot.member("agent"), code, rule, parse };
                    spot.fill(&mut object, &mut agent, level, "agent")?;
                }
                "name" => {
                    let level = Text { spot: spot.member("name"), code, rule, parse };
                    spot.fill(&mut object, &mut name, level, "name")?;
                }
                "task" => {
                    let rule = "must be 1 to 256 bytes, printable";
                    let level = Text { spot: spot.member("task"), code, rule, parse: |text: &str| text.parse().ok() };
                    spot.fill(&mut object, &mut task, level, "task")?;
                }
                _ => return Err(spot.unknown(&member)),
            }
        }
        let agent = spot.require(agent, ManifestCode::ProducerInvalid, "agent")?;
        Ok(Producer { agent, name, task })
    }
}

fn printable(text: &str) -> Option<String> {
    let valid = (1..=PRODUCER_TEXT_BYTES).contains(&text.len()) && !text.chars().any(char::is_control);
    valid.then(|| text.to_owned())
}
