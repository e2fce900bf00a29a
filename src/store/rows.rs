//! Reading columns as the types they were written from, and short lists of placeholders.

use std::str::FromStr;

use serde::{Deserialize, Serialize};
use sqlx::Row as _;
use sqlx::any::AnyRow;

use crate::protocol::{Chunks, EntryKind, Hasher, Location, LocationKind, Sha256};

type Result<T> = std::result::Result<T, sqlx::Error>;

fn corrupt(error: impl std::error::Error + Send + Sync + 'static) -> sqlx::Error {
    sqlx::Error::Decode(Box::new(error))
}

/// A TEXT column that holds a name.
pub(super) fn parsed<T>(row: &AnyRow, column: &str) -> Result<T>
where
    T: FromStr<Err: std::error::Error + Send + Sync + 'static>,
{
    row.try_get::<String, _>(column)?.parse().map_err(corrupt)
}

/// The same, where it may be NULL.
pub(super) fn parsed_option<T>(row: &AnyRow, column: &str) -> Result<Option<T>>
where
    T: FromStr<Err: std::error::Error + Send + Sync + 'static>,
{
    row.try_get::<Option<String>, _>(column)?.map(|text| text.parse().map_err(corrupt)).transpose()
}

/// A BIGINT column that holds a size or a count.
pub(super) fn unsigned(row: &AnyRow, column: &str) -> Result<u64> {
    row.try_get::<i64, _>(column)?.try_into().map_err(corrupt)
}

/// A size or a count as a BIGINT. What comes from outside is at most 2^53 - 1.
pub(super) fn signed(number: u64) -> Result<i64> {
    number.try_into().map_err(|error| sqlx::Error::Encode(Box::new(error)))
}

/// `$first, …`: `count` placeholders.
pub(super) fn placeholders(first: usize, count: usize) -> String {
    let names: Vec<String> = (first..first + count).map(|n| format!("${n}")).collect();
    names.join(", ")
}

pub(super) fn kind_text(kind: EntryKind) -> &'static str {
    match kind {
        EntryKind::File => "file",
        EntryKind::Manifest => "manifest",
    }
}

pub(super) fn kind(row: &AnyRow) -> Result<EntryKind> {
    match row.try_get::<String, _>("kind")?.as_str() {
        "manifest" => Ok(EntryKind::Manifest),
        _ => Ok(EntryKind::File),
    }
}

/// A chunk list's hashes as one value, 32 bytes each.
pub(super) fn hashes_bytes(chunks: &Chunks) -> Vec<u8> {
    chunks.hashes.iter().map(|hash| hash.0).collect::<Vec<_>>().into_flattened()
}

/// Names a chunk list: two that differ in anything have different names.
pub(super) fn list_name(chunks: &Chunks) -> String {
    let mut hasher = Hasher::default();
    hasher.update(&chunks.chunk_size.to_be_bytes());
    chunks.hashes.iter().for_each(|hash| hasher.update(&hash.0));
    hasher.finish().to_hex()
}

pub(super) fn chunks(row: &AnyRow) -> Result<Option<Chunks>> {
    let Some(bytes) = row.try_get::<Option<Vec<u8>>, _>("chunk_hashes")? else { return Ok(None) };
    let (hashes, _) = bytes.as_chunks::<32>();
    let hashes = hashes.iter().map(|hash| Sha256(*hash)).collect();
    Ok(Some(Chunks { chunk_size: unsigned(row, "chunk_size")?, hashes }))
}

/// A location as it is kept: the kind's name and its one field.
#[derive(Serialize, Deserialize)]
struct Kept(String, String);

pub(super) fn locations_text(locations: Option<&[Location]>) -> Result<Option<String>> {
    let kept = |location: &Location| Kept(location.kind.as_str().to_owned(), location.target.clone());
    locations
        .map(|list| serde_json::to_string(&list.iter().map(kept).collect::<Vec<_>>()))
        .transpose()
        .map_err(|error| sqlx::Error::Encode(Box::new(error)))
}

pub(super) fn locations(row: &AnyRow, column: &str) -> Result<Option<Vec<Location>>> {
    let Some(text) = row.try_get::<Option<String>, _>(column)? else { return Ok(None) };
    let kept: Vec<Kept> = serde_json::from_str(&text).map_err(corrupt)?;
    let location = |Kept(kind, target): Kept| {
        let kind = match kind.as_str() {
            "https" => LocationKind::Https,
            "oci" => LocationKind::Oci,
            "s3" => LocationKind::S3,
            "robutler" => LocationKind::Robutler,
            "relay" => LocationKind::Relay,
            _ => LocationKind::Other(kind),
        };
        Location { kind, target }
    };
    Ok(Some(kept.into_iter().map(location).collect()))
}
