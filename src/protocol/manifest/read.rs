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

use serde::de::{Error, MapAccess, SeqAccess};
use serde_json::value::RawValue;

use super::error::{ManifestCode, ManifestError};
use super::form::{EntryForm, ManifestForm, ProducerForm};
use super::location::LocationList;
use super::walk::{At, Integer, Level, Reading, Scalar, Spot, Text};
use super::{Chunks, Entry, EntryKind, KIND, Location, Manifest, path};
use crate::protocol::limits::{
    CHUNK_SIZE_MAX, CHUNK_SIZE_MIN, MANIFEST_BYTES, MANIFEST_ENTRIES, NESTING_DEPTH, SAFE_INTEGER,
};
use crate::protocol::{Sha256, TaskId, media_type, timestamp};

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
    let members = reading.read(text, MembersLevel(top, text), top)?;
    let kind = required(&top, members.kind, ManifestCode::WrongKind, "kind")?;
    let rule = "must be webagents.artifact-set/v1";
    let is_kind = |text: &str| (text == KIND).then_some(());
    let spot = top.member("kind");
    reading.read(kind, Text { spot, code: ManifestCode::WrongKind, rule, parse: is_kind }, spot)?;
    if let Some(name) = members.unknown {
        return Err(top.error(ManifestCode::UnknownField, format_args!("unknown field {name:?}")));
    }
    let created_at = required(&top, members.created_at, ManifestCode::CreatedAtInvalid, "createdAt")?;
    let spot = top.member("createdAt");
    let (created_at, created_text) =
        reading.read(created_at, timestamp_level(spot, ManifestCode::CreatedAtInvalid), spot)?;
    let spot = top.member("expiresAt");
    let expires = match members.expires_at {
        Some(raw) => {
            Some(reading.read(raw.get(), OrNull(timestamp_level(spot, ManifestCode::ExpiresAtInvalid)), spot)?)
        }
        None => None,
    };
    let producer = required(&top, members.producer, ManifestCode::ProducerInvalid, "producer")?;
    let spot = top.member("producer");
    let producer = reading.read(producer, ProducerLevel(spot), spot)?;
    let locations = match members.locations {
        Some(raw) => Some(read_list(&reading, raw.get())?),
        None => None,
    };
    let entries = required(&top, members.entries, ManifestCode::NotAnObject, "entries")?;
    let spot = top.member("entries");
    let entries = reading.read(entries, EntriesLevel(spot), spot)?;
    check_together(&spot, &entries)?;

    let form = ManifestForm {
        created_at: &created_text,
        entries: entries.iter().map(ReadEntry::form).collect(),
        expires_at: expires.as_ref().map(|expires| expires.as_ref().map(|(_, text)| text.as_str())),
        kind: KIND,
        locations: locations.as_deref(),
        producer: ProducerForm {
            agent: &producer.agent,
            name: producer.name.as_deref(),
            task: producer.task.as_ref().map(TaskId::as_str),
        },
    };
    let mut canonical = Vec::with_capacity(text.len());
    // Texts and integers under fixed names cannot fail to serialise.
    serde_json::to_writer(&mut canonical, &form).map_err(|_| top.error(ManifestCode::NotJson, "has no JSON form"))?;
    if canonical.len() > MANIFEST_BYTES {
        return Err(too_large());
    }
    Ok(Manifest {
        identity: Sha256::of(&canonical),
        canonical: canonical.into(),
        created_at,
        expires_at: expires.flatten().map(|(millis, _)| millis),
        producer_agent: producer.agent,
        producer_task: producer.task,
        producer_name: producer.name,
        entries: entries.into_iter().map(|read| read.entry).collect(),
        locations: locations.unwrap_or_default(),
    })
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

fn required<'de>(
    top: &Spot<'_>,
    member: Option<&'de RawValue>,
    code: ManifestCode,
    name: &'static str,
) -> Result<&'de str, ManifestError> {
    member.map(RawValue::get).ok_or_else(|| top.member(name).error(code, "missing"))
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

fn timestamp_level<'de>(spot: Spot<'_>, code: ManifestCode) -> impl Level<'de, Out = (i64, String)> {
    let parse = |text: &str| timestamp::parse(text).map(|millis| (millis, text.to_owned()));
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

struct ReadEntry {
    entry: Entry,
    /// Whether `kind` was written out: the canonical form adds nothing.
    kind_written: bool,
}

impl ReadEntry {
    fn form(&self) -> EntryForm<'_> {
        let Entry { path, size, sha256, media_type, kind, chunks, locations } = &self.entry;
        EntryForm {
            chunks: chunks.as_ref(),
            kind: self.kind_written.then_some(*kind),
            locations: locations.as_deref(),
            media_type,
            path,
            sha256: *sha256,
            size: *size,
        }
    }
}

struct EntriesLevel<'s>(Spot<'s>);

impl<'de> Level<'de> for EntriesLevel<'_> {
    type Out = Vec<ReadEntry>;

    fn misshapen<E: Error>(self) -> E {
        self.0.refuse(ManifestCode::NotAnObject, "must be a list of objects")
    }

    fn array<A: SeqAccess<'de>>(self, mut array: A) -> Result<Self::Out, A::Error> {
        let mut entries = Vec::new();
        while let Some(entry) = array.next_element_seed(At(EntryLevel {
            spot: self.0.index(entries.len()),
            full: entries.len() == MANIFEST_ENTRIES,
        }))? {
            entries.push(entry);
        }
        Ok(entries)
    }
}

struct EntryLevel<'s> {
    spot: Spot<'s>,
    /// The list holds as many as it may.
    full: bool,
}

impl<'de> Level<'de> for EntryLevel<'_> {
    type Out = ReadEntry;

    fn misshapen<E: Error>(self) -> E {
        if self.full {
            return self.spot.refuse(ManifestCode::TooManyEntries, "more than 10,000 entries");
        }
        self.spot.refuse(ManifestCode::NotAnObject, "must be an object")
    }

    fn object<A: MapAccess<'de>>(self, mut object: A) -> Result<ReadEntry, A::Error> {
        if self.full {
            return Err(self.misshapen());
        }
        let spot = &self.spot;
        let (mut path, mut size, mut sha256, mut media_type) = (None, None, None, None);
        let (mut kind, mut chunks, mut locations) = (None, None, None);
        while let Some(name) = spot.next_name(&mut object)? {
            match name.as_str() {
                "path" => spot.fill(&mut object, &mut path, PathLevel(spot.member("path")), "path")?,
                "size" => {
                    let (code, rule) = (ManifestCode::SizeInvalid, "must be an integer from 0 to 2^53 - 1");
                    let level = Integer { spot: spot.member("size"), code, rule, max: SAFE_INTEGER };
                    spot.fill(&mut object, &mut size, level, "size")?;
                }
                "sha256" => {
                    let level = hash_level(spot.member("sha256"), ManifestCode::Sha256Invalid);
                    spot.fill(&mut object, &mut sha256, level, "sha256")?;
                }
                "mediaType" => {
                    let (code, rule) = (ManifestCode::MediaTypeInvalid, "must be a media type of at most 255 bytes");
                    let parse = |text: &str| media_type::is_valid(text).then(|| text.to_owned());
                    let level = Text { spot: spot.member("mediaType"), code, rule, parse };
                    spot.fill(&mut object, &mut media_type, level, "mediaType")?;
                }
                "kind" => {
                    let (code, rule) = (ManifestCode::KindInvalid, "must be file or manifest");
                    let level = Text { spot: spot.member("kind"), code, rule, parse: EntryKind::parse };
                    spot.fill(&mut object, &mut kind, level, "kind")?;
                }
                "chunks" => spot.fill(&mut object, &mut chunks, ChunksLevel(spot.member("chunks")), "chunks")?,
                "locations" => {
                    spot.fill(&mut object, &mut locations, LocationList(spot.member("locations")), "locations")?;
                }
                _ => return Err(spot.unknown(&name)),
            }
        }
        let entry = Entry {
            path: spot.require(path, ManifestCode::PathInvalid, "path")?,
            size: spot.require(size, ManifestCode::SizeInvalid, "size")?,
            sha256: spot.require(sha256, ManifestCode::Sha256Invalid, "sha256")?,
            media_type: spot.require(media_type, ManifestCode::MediaTypeInvalid, "mediaType")?,
            kind: kind.unwrap_or(EntryKind::File),
            chunks,
            locations,
        };
        if let Some(Chunks { chunk_size, hashes }) = &entry.chunks {
            let (wanted, found) = (entry.size.div_ceil(*chunk_size), hashes.len() as u64);
            if wanted != found {
                let rule = format_args!("{found} hashes for {wanted} chunks");
                return Err(spot.member("chunks").refuse(ManifestCode::ChunkCountMismatch, rule));
            }
        }
        Ok(ReadEntry { entry, kind_written: kind.is_some() })
    }
}

struct PathLevel<'s>(Spot<'s>);

impl<'de> Level<'de> for PathLevel<'_> {
    type Out = String;

    fn misshapen<E: Error>(self) -> E {
        self.0.refuse(ManifestCode::PathInvalid, "must be a text")
    }

    fn scalar<E: Error>(self, scalar: Scalar<'_>) -> Result<String, E> {
        let Scalar::Text(text) = scalar else {
            return Err(self.misshapen());
        };
        path::check(text).map_err(|(code, rule)| self.0.refuse(code, rule))?;
        Ok(text.to_owned())
    }
}

fn hash_level<'de>(spot: Spot<'_>, code: ManifestCode) -> impl Level<'de, Out = Sha256> {
    Text { spot, code, rule: "must be 64 lower-case hex digits", parse: |text: &str| text.parse().ok() }
}

struct ChunksLevel<'s>(Spot<'s>);

impl<'de> Level<'de> for ChunksLevel<'_> {
    type Out = Chunks;

    fn misshapen<E: Error>(self) -> E {
        self.0.refuse(ManifestCode::ChunkSizeInvalid, "must be an object")
    }

    fn object<A: MapAccess<'de>>(self, mut object: A) -> Result<Chunks, A::Error> {
        let spot = &self.0;
        let (mut chunk_size, mut hashes) = (None, None);
        let code = ManifestCode::ChunkSizeInvalid;
        let rule = "must be a multiple of 256 KiB between 256 KiB and 64 MiB";
        while let Some(name) = spot.next_name(&mut object)? {
            match name.as_str() {
                "chunkSize" => {
                    let level = Integer { spot: spot.member("chunkSize"), code, rule, max: CHUNK_SIZE_MAX };
                    spot.fill(&mut object, &mut chunk_size, level, "chunkSize")?;
                }
                "hashes" => spot.fill(&mut object, &mut hashes, HashesLevel(spot.member("hashes")), "hashes")?,
                _ => return Err(spot.unknown(&name)),
            }
        }
        let chunk_size: u64 = spot.require(chunk_size, code, "chunkSize")?;
        if chunk_size < CHUNK_SIZE_MIN || !chunk_size.is_multiple_of(CHUNK_SIZE_MIN) {
            return Err(spot.member("chunkSize").refuse(code, rule));
        }
        Ok(Chunks { chunk_size, hashes: spot.require(hashes, ManifestCode::ChunkHashInvalid, "hashes")? })
    }
}

/// Hashes take less memory than their text, so the manifest's own limit bounds them.
struct HashesLevel<'s>(Spot<'s>);

impl<'de> Level<'de> for HashesLevel<'_> {
    type Out = Vec<Sha256>;

    fn misshapen<E: Error>(self) -> E {
        self.0.refuse(ManifestCode::ChunkHashInvalid, "must be a list")
    }

    fn array<A: SeqAccess<'de>>(self, mut array: A) -> Result<Self::Out, A::Error> {
        let mut hashes = Vec::new();
        while let Some(hash) =
            array.next_element_seed(At(hash_level(self.0.index(hashes.len()), ManifestCode::ChunkHashInvalid)))?
        {
            hashes.push(hash);
        }
        Ok(hashes)
    }
}
