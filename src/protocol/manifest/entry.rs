//! The strict reader's part for entries and their chunks.

use serde::de::{Error, MapAccess, SeqAccess};

use super::error::ManifestCode;
use super::form::EntryForm;
use super::location::LocationList;
use super::walk::{At, Integer, Level, Scalar, Spot, Text};
use super::{Chunks, Entry, EntryKind, path};
use crate::protocol::limits::{CHUNK_SIZE_MAX, CHUNK_SIZE_MIN, MANIFEST_ENTRIES, SAFE_INTEGER};
use crate::protocol::{Sha256, media_type};

/// An entry, and how it was written.
pub(super) struct ReadEntry {
    pub(super) entry: Entry,
    /// Whether `kind` was written out: the canonical form adds nothing.
    kind_written: bool,
}

impl ReadEntry {
    pub(super) fn form(&self) -> EntryForm<'_> {
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

/// A list of at most 10,000 entries.
pub(super) struct EntriesLevel<'s>(pub(super) Spot<'s>);

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
