//! What the sets of chats list: the hashes of the bytes that somebody may still ask for.

use sqlx::Row as _;
use sqlx::any::AnyRow;

use super::{Store, StoreError, rows};
use crate::protocol::Sha256;

/// Hashes that are read at once, about: chunk lists may be long.
const HASHES: u64 = 64 * 1024;
/// Entries that are looked at at once.
const ENTRIES: i64 = 500;

/// A part of what a set lists.
#[derive(Debug, PartialEq, Eq)]
pub struct Listed {
    /// The hashes of its files and of their chunks.
    pub hashes: Vec<Sha256>,
    /// Where the next part begins; none at the end.
    pub next: Option<i64>,
}

/// Manifests after one, whose set is in a chat and has not expired.
pub(super) const MANIFESTS: &str = "SELECT sha256 FROM manifests WHERE sha256 > $1 AND EXISTS \
    (SELECT 1 FROM announcements a WHERE a.manifest = manifests.sha256 AND a.chat IS NOT NULL \
    AND (a.expires_at IS NULL OR a.expires_at > $2)) ORDER BY sha256 LIMIT $3";
/// How much the entries of a set list.
pub(super) const SIZES: &str =
    "SELECT position, size, chunk_size FROM entries WHERE manifest = $1 AND position >= $2 ORDER BY position LIMIT $3";
pub(super) const LISTS: &str =
    "SELECT sha256, chunk_size, chunk_hashes FROM entries WHERE manifest = $1 AND position BETWEEN $2 AND $3";

impl Store {
    /// Up to `limit` manifests after one, in the order of their hashes, whose sets are in a chat and do not expire by `now`,
    /// Unix milliseconds.
    pub async fn manifests_in_chats(
        &self,
        after: Option<Sha256>,
        now: i64,
        limit: u32,
    ) -> Result<Vec<Sha256>, StoreError> {
        self.bounded(async {
            let after = after.map_or_else(String::new, |after| after.to_hex());
            let query = sqlx::query(MANIFESTS).bind(after).bind(now).bind(i64::from(limit));
            let found = query.fetch_all(&self.0.reader).await?;
            found.iter().map(|row| rows::parsed(row, "sha256")).collect()
        })
        .await
    }

    /// What a set and the manifests nested in it list, from a place on.
    pub async fn listed(&self, manifest: &Sha256, from: i64) -> Result<Listed, StoreError> {
        let manifest = manifest.to_hex();
        let sizes = self.bounded(async {
            let query = sqlx::query(SIZES).bind(&manifest).bind(from).bind(ENTRIES);
            let found = query.fetch_all(&self.0.reader).await?;
            found.iter().map(size).collect::<Result<Vec<_>, _>>()
        });
        let sizes = sizes.await?;
        let (mut hashes, mut last) = (0, None);
        for (position, count) in &sizes {
            // At least one entry, however long its list.
            if last.is_some() && hashes + count > HASHES {
                break;
            }
            (hashes, last) = (hashes + count, Some(*position));
        }
        let (Some(last), Some(end)) = (last, sizes.last()) else {
            return Ok(Listed { hashes: Vec::new(), next: None });
        };
        let lists = self.bounded(async {
            let query = sqlx::query(LISTS).bind(&manifest).bind(from).bind(last);
            let found = query.fetch_all(&self.0.reader).await?;
            let mut hashes = Vec::new();
            for row in &found {
                hashes.push(rows::parsed(row, "sha256")?);
                hashes.extend(rows::chunks(row)?.into_iter().flat_map(|chunks| chunks.hashes));
            }
            Ok(hashes)
        });
        let is_all = end.0 == last && (sizes.len() as i64) < ENTRIES;
        Ok(Listed { hashes: lists.await?, next: (!is_all).then_some(last + 1) })
    }
}

/// Where an entry stands, and how many hashes it lists.
fn size(row: &AnyRow) -> Result<(i64, u64), sqlx::Error> {
    let chunk_size = row.try_get::<Option<i64>, _>("chunk_size")?.and_then(|size| u64::try_from(size).ok());
    let chunks = chunk_size
        .filter(|size| *size > 0)
        .map_or(Ok(0), |chunk_size| rows::unsigned(row, "size").map(|size| size.div_ceil(chunk_size)));
    Ok((row.try_get("position")?, 1 + chunks?))
}
