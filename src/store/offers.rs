use sqlx::Row as _;
use sqlx::any::AnyRow;

use super::search::{self, Scope, Search, TaskRule};
use super::{FileId, Store, StoreError, rows};
use crate::protocol::{AgentName, ChatId, Chunks, EntryKind, Location, Principal, Sha256};

/// A chat, as it was made: one of the same name that is made after this one was deleted is another.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Place {
    /// The chat.
    pub chat: ChatId,
    /// When it was made, Unix milliseconds.
    pub made_at: i64,
}

/// An entry that the searcher may see, of a set that an agent announced in a chat: once, under however many tasks.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Offer {
    /// Who announced it.
    pub agent: Principal,
    /// Where, which is why the searcher may see it.
    pub place: Place,
    /// The manifest that lists it.
    pub manifest: Sha256,
    /// Its place in the manifest: names the entry for [`Store::chunks`].
    pub position: i64,
    /// Its path in the manifest.
    pub path: String,
    /// In bytes.
    pub size: u64,
    /// Of its bytes.
    pub sha256: Sha256,
    /// Attacker controlled.
    pub media_type: String,
    /// A file, or a nested manifest.
    pub kind: EntryKind,
    /// The manifest's `producer.task`.
    pub producer_task: Option<String>,
    /// Where the bytes can be fetched, in order: the entry's own list or else the set's, then the first
    /// announcement's.
    pub locations: Vec<Location>,
    /// When the set expires, Unix milliseconds.
    pub expires_at: Option<i64>,
    /// Names the entry's chunk list; empty where it has none. Two that differ have different names.
    pub list: String,
    /// Whether its agent is the one that was asked for, where one was. Those come first.
    pub of_agent: bool,
    /// Whether it passes the task rule. Those that pass come first.
    pub passes: bool,
    /// Whether the offers of the blob that the searcher may see, counting those past the limit, disagree on its size or
    /// its chunk list.
    pub contested: bool,
}

/// A set that an agent announced in a chat, which makes a manifest the searcher's to have.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ManifestOffer {
    /// Who announced it.
    pub agent: Principal,
    /// Where, which is why the searcher may see it.
    pub place: Place,
    /// Bytes of the manifest's canonical form.
    pub size: u64,
    /// The announced set.
    pub set: Sha256,
    /// The announced set's `producer.task`.
    pub producer_task: Option<String>,
    /// Whether its agent is the one that was asked for, where one was.
    pub of_agent: bool,
    /// Whether it passes the task rule.
    pub passes: bool,
}

/// A task under which an agent announced a set in a chat.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct TaskOffer {
    /// Where.
    pub chat: ChatId,
    /// Who.
    pub agent: Principal,
    /// The set.
    pub set: Sha256,
    /// The task.
    pub task: String,
}

fn task_offer(row: &AnyRow) -> Result<TaskOffer, sqlx::Error> {
    Ok(TaskOffer {
        chat: rows::parsed(row, "chat")?,
        agent: rows::parsed(row, "agent")?,
        set: rows::parsed(row, "manifest")?,
        task: row.try_get("task_id")?,
    })
}

fn offer(row: &AnyRow) -> Result<Offer, sqlx::Error> {
    let of_entry = match rows::locations(row, "locations")? {
        Some(list) => Some(list),
        None => rows::locations(row, "set_locations")?,
    };
    let mut locations = of_entry.unwrap_or_default();
    locations.extend(rows::locations(row, "own_locations")?.unwrap_or_default());
    Ok(Offer {
        agent: rows::parsed(row, "agent")?,
        place: Place { chat: rows::parsed(row, "chat")?, made_at: row.try_get("made_at")? },
        manifest: rows::parsed(row, "manifest")?,
        position: row.try_get("position")?,
        path: row.try_get("path")?,
        size: rows::unsigned(row, "size")?,
        sha256: rows::parsed(row, "sha256")?,
        media_type: row.try_get("media_type")?,
        kind: rows::kind(row)?,
        producer_task: row.try_get("producer_task")?,
        locations,
        expires_at: row.try_get("expires_at")?,
        list: row.try_get("list")?,
        of_agent: row.try_get::<i64, _>("others")? == 0,
        passes: row.try_get::<i64, _>("fails")? == 0,
        contested: row.try_get::<i64, _>("contested")? != 0,
    })
}

fn manifest_offer(row: &AnyRow) -> Result<ManifestOffer, sqlx::Error> {
    Ok(ManifestOffer {
        agent: rows::parsed(row, "agent")?,
        place: Place { chat: rows::parsed(row, "chat")?, made_at: row.try_get("made_at")? },
        size: rows::unsigned(row, "size")?,
        set: rows::parsed(row, "manifest")?,
        producer_task: row.try_get("producer_task")?,
        of_agent: row.try_get::<i64, _>("others")? == 0,
        passes: row.try_get::<i64, _>("fails")? == 0,
    })
}

impl Store {
    /// The announcements of a chat's set that list a path, oldest first. Nothing when the set is unknown, has no such
    /// path, or is in a chat that the scope does not cover: the three are one question.
    pub async fn offers_of_file(
        &self,
        scope: Scope<'_>,
        chat: &ChatId,
        manifest: &Sha256,
        path: &str,
        limit: u32,
    ) -> Result<Vec<Offer>, StoreError> {
        self.offers(search::file_search(scope, chat, manifest, path, limit)).await
    }

    /// The announcements of a file's agent in its chat that list the bytes of a version, oldest first, under the file's
    /// path. Nothing when there is no such version, or the chat is outside the scope: one query.
    pub async fn offers_of_version(
        &self,
        scope: Scope<'_>,
        chat: &ChatId,
        (file, version): (FileId, u32),
        limit: u32,
    ) -> Result<Vec<Offer>, StoreError> {
        self.offers(search::version_search(scope, chat, (file, version), limit)).await
    }

    /// The announcements that list a blob: `agent`'s first when it is named, then those that pass `rule`, then in the
    /// order in which their agents first listed it. Nothing when the blob is unknown or outside the scope: the two are
    /// one question.
    pub async fn offers_of_blob(
        &self,
        scope: Scope<'_>,
        agent: Option<&AgentName>,
        blob: &Sha256,
        rule: TaskRule<'_>,
        limit: u32,
    ) -> Result<Vec<Offer>, StoreError> {
        self.offers(search::blob_search(scope, agent, blob, rule, limit)).await
    }

    /// The announcements of a chat's set, oldest first. Nothing when there is no such set, or the scope does not cover
    /// its chat: the two are one question.
    pub async fn offers_of_set(
        &self,
        scope: Scope<'_>,
        chat: &ChatId,
        manifest: &Sha256,
        limit: u32,
    ) -> Result<Vec<ManifestOffer>, StoreError> {
        self.manifest_offers(search::set_search(scope, chat, manifest, limit)).await
    }

    /// The sets that are a manifest or have it nested in them: `agent`'s first when it is named, then those that pass
    /// `rule`, then in the order in which their agents first announced them. Nothing when it is not announced, or only
    /// outside the scope: the two are one question.
    pub async fn offers_of_manifest(
        &self,
        scope: Scope<'_>,
        agent: Option<&AgentName>,
        manifest: &Sha256,
        rule: TaskRule<'_>,
        limit: u32,
    ) -> Result<Vec<ManifestOffer>, StoreError> {
        self.manifest_offers(search::manifest_search(scope, agent, manifest, rule, limit)).await
    }

    /// The tasks of the announcements of sets that have a hash in them, or are it: those of `agent` when it is named.
    pub async fn tasks_of_hash(
        &self,
        scope: Scope<'_>,
        agent: Option<&AgentName>,
        hash: &Sha256,
        limit: u32,
    ) -> Result<Vec<TaskOffer>, StoreError> {
        self.task_offers(search::hash_tasks(scope, agent, hash, limit)).await
    }

    /// The tasks of the announcements of a chat's set. The scope is not asked: whoever asks has found the set.
    pub async fn tasks_of_set(&self, chat: &ChatId, set: &Sha256, limit: u32) -> Result<Vec<TaskOffer>, StoreError> {
        self.task_offers(search::set_tasks(chat, set, limit)).await
    }

    /// The chunk list of one entry, when it has one.
    pub async fn chunks(&self, manifest: &Sha256, position: i64) -> Result<Option<Chunks>, StoreError> {
        self.bounded(async {
            let sql = "SELECT chunk_size, chunk_hashes FROM entries WHERE manifest = $1 AND position = $2";
            let query = sqlx::query(sql).bind(manifest.to_hex()).bind(position);
            let found = query.fetch_optional(&self.0.reader).await?;
            found.map_or(Ok(None), |row| rows::chunks(&row))
        })
        .await
    }

    async fn manifest_offers(&self, search: Search) -> Result<Vec<ManifestOffer>, StoreError> {
        self.bounded(async {
            let found = search.query().fetch_all(&self.0.reader).await?;
            found.iter().map(manifest_offer).collect()
        })
        .await
    }

    async fn task_offers(&self, search: Search) -> Result<Vec<TaskOffer>, StoreError> {
        self.bounded(async {
            let found = search.query().fetch_all(&self.0.reader).await?;
            found.iter().map(task_offer).collect()
        })
        .await
    }

    async fn offers(&self, search: Search) -> Result<Vec<Offer>, StoreError> {
        self.bounded(async {
            let found = search.query().fetch_all(&self.0.reader).await?;
            found.iter().map(offer).collect()
        })
        .await
    }
}
