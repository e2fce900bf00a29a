use sqlx::any::AnyRow;
use sqlx::query::Query;
use sqlx::{Any, AssertSqlSafe, Row as _};

use super::{FileId, Store, StoreError, rows};
use crate::protocol::{AgentName, ChatId, Chunks, EntryKind, Location, Principal, Sha256};

/// Whose announcements a search may see: those in the chats that the principal takes part in, and of these only the
/// listed ones when a list is given.
#[derive(Debug, Clone, Copy)]
pub struct Scope<'a> {
    /// Who asks.
    pub principal: &'a Principal,
    /// The only chats that may be seen.
    pub chats: Option<&'a [ChatId]>,
}

/// What a set's task must be for it to pass.
#[derive(Debug, Clone, Copy)]
pub enum TaskRule<'a> {
    /// Anything.
    Any,
    /// The manifest's `producer.task` or the announcement's task is this one.
    Is(&'a str),
    /// The manifest names no `producer.task`.
    None,
}

/// A chat, as it was made: one of the same name that is made after this one was deleted is another.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Place {
    /// The chat.
    pub chat: ChatId,
    /// When it was made, Unix milliseconds.
    pub made_at: i64,
}

/// An announcement's entry that the searcher may see.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Offer {
    /// The announcement, growing with time.
    pub id: i64,
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
    /// The announcement's task.
    pub task: Option<String>,
    /// The manifest's `producer.task`.
    pub producer_task: Option<String>,
    /// Where the bytes can be fetched, in order: the entry's own list or else the set's, then the announcement's.
    pub locations: Vec<Location>,
    /// When the set expires, Unix milliseconds.
    pub expires_at: Option<i64>,
    /// Whether it passes the task rule. Those that pass come first.
    pub passes: bool,
}

const COLUMNS: &str = "a.id, a.agent, a.chat, \
    (SELECT c.created_at FROM chats c WHERE c.id = a.chat) AS made_at, a.expires_at, a.manifest, a.task_id, \
    a.locations AS own_locations, m.producer_task, \
    COALESCE(o.locations, m.locations) AS set_locations, e.position, e.path, e.size, e.sha256, e.media_type, e.kind, e.locations";

/// The same with the path, media type and kind that the version has.
const VERSION_COLUMNS: &str = "a.id, a.agent, a.chat, \
    (SELECT c.created_at FROM chats c WHERE c.id = a.chat) AS made_at, a.expires_at, a.manifest, a.task_id, \
    a.locations AS own_locations, m.producer_task, \
    COALESCE(o.locations, m.locations) AS set_locations, e.position, f.path, v.size, e.sha256, v.media_type, v.kind, \
    e.locations";

/// The nested manifest that an entry stands in, whose locations are the entry's.
const OWNER: &str = "LEFT JOIN manifests o ON o.sha256 = e.owner";

fn offer(row: &AnyRow) -> Result<Offer, sqlx::Error> {
    let of_entry = match rows::locations(row, "locations")? {
        Some(list) => Some(list),
        None => rows::locations(row, "set_locations")?,
    };
    let mut locations = of_entry.unwrap_or_default();
    locations.extend(rows::locations(row, "own_locations")?.unwrap_or_default());
    Ok(Offer {
        id: row.try_get("id")?,
        agent: rows::parsed(row, "agent")?,
        place: Place { chat: rows::parsed(row, "chat")?, made_at: row.try_get("made_at")? },
        manifest: rows::parsed(row, "manifest")?,
        position: row.try_get("position")?,
        path: row.try_get("path")?,
        size: rows::unsigned(row, "size")?,
        sha256: rows::parsed(row, "sha256")?,
        media_type: row.try_get("media_type")?,
        kind: rows::kind(row)?,
        task: row.try_get("task_id")?,
        producer_task: row.try_get("producer_task")?,
        locations,
        expires_at: row.try_get("expires_at")?,
        passes: row.try_get::<i64, _>("fails")? == 0,
    })
}

/// A query in the making: text whose variable parts are placeholders, and the values to bind, in order.
#[derive(Default)]
pub(super) struct Search {
    pub(super) sql: String,
    pub(super) values: Vec<String>,
}

impl Search {
    /// Remembers a value and names its placeholder.
    fn value(&mut self, value: impl Into<String>) -> String {
        self.values.push(value.into());
        format!("${}", self.values.len())
    }

    /// What sorts offers that fail the rule behind those that pass.
    fn fails(&mut self, rule: TaskRule<'_>) -> String {
        let passes = match rule {
            TaskRule::Any => return "CAST(0 AS BIGINT)".to_owned(),
            TaskRule::None => "m.producer_task IS NULL".to_owned(),
            TaskRule::Is(task) => {
                let task = self.value(task);
                format!("m.producer_task = {task} OR a.task_id = {task}")
            }
        };
        format!("CAST(CASE WHEN {passes} THEN 0 ELSE 1 END AS BIGINT)")
    }

    /// Adds the condition that makes an answer the caller's to have.
    fn within(&mut self, scope: Scope<'_>) {
        let principal = self.value(scope.principal.as_str());
        self.sql += &format!(
            " AND EXISTS (SELECT 1 FROM participants p WHERE p.chat = a.chat AND p.principal IN ({principal}, '*'))"
        );
        let Some(chats) = scope.chats else { return };
        let chats: Vec<String> = chats.iter().map(|chat| self.value(chat.as_str())).collect();
        self.sql +=
            &if chats.is_empty() { " AND 1 = 0".to_owned() } else { format!(" AND a.chat IN ({})", chats.join(", ")) };
    }

    fn of_agent(&mut self, agent: Option<&AgentName>) {
        if let Some(name) = agent {
            let name = self.value(name.as_str());
            self.sql += &format!(" AND a.agent = (SELECT n.principal FROM agents n WHERE n.name = {name})");
        }
    }

    fn query(&self) -> Query<'_, Any, sqlx::any::AnyArguments> {
        self.values.iter().fold(sqlx::query(AssertSqlSafe(self.sql.clone())), |query, value| query.bind(value.as_str()))
    }
}

/// The announcements of a chat's set that list a path, oldest first: nobody comes before who was there already.
pub(super) fn file_search(scope: Scope<'_>, chat: &ChatId, manifest: &Sha256, path: &str, limit: u32) -> Search {
    let mut search = Search::default();
    let fails = search.fails(TaskRule::Any);
    let (chat, manifest, path) = (search.value(chat.as_str()), search.value(manifest.to_hex()), search.value(path));
    search.sql = format!(
        "SELECT {COLUMNS}, {fails} AS fails FROM announcements a JOIN manifests m ON m.sha256 = a.manifest \
         JOIN entries e ON e.manifest = a.manifest AND e.path = {path} {OWNER} \
         WHERE a.chat = {chat} AND a.manifest = {manifest}"
    );
    search.within(scope);
    search.sql += &format!(" ORDER BY a.id LIMIT {limit}");
    search
}

/// The announcements that list a blob, those that pass first and then oldest first.
pub(super) fn blob_search(
    scope: Scope<'_>,
    agent: Option<&AgentName>,
    blob: &Sha256,
    rule: TaskRule<'_>,
    limit: u32,
) -> Search {
    let mut search = Search::default();
    let fails = search.fails(rule);
    let blob = search.value(blob.to_hex());
    search.sql = format!(
        "SELECT {COLUMNS}, {fails} AS fails FROM entries e JOIN announcements a ON a.manifest = e.manifest \
         JOIN manifests m ON m.sha256 = e.manifest {OWNER} WHERE e.sha256 = {blob} AND e.leads = 1"
    );
    search.of_agent(agent);
    search.within(scope);
    search.sql += &format!(" ORDER BY fails, a.id LIMIT {limit}");
    search
}

/// The announcements of a file's agent in its chat that list the bytes of a version.
pub(super) fn version_search(scope: Scope<'_>, chat: &ChatId, (file, version): (FileId, u32), limit: u32) -> Search {
    let mut search = Search::default();
    let fails = search.fails(TaskRule::Any);
    let chat = search.value(chat.as_str());
    // Numbers, so nothing that could be more than that.
    let FileId(file) = file;
    search.sql = format!(
        "SELECT {VERSION_COLUMNS}, {fails} AS fails FROM files f \
         JOIN file_versions v ON v.file = f.id AND v.version = {version} \
         JOIN entries e ON e.sha256 = v.sha256 AND e.leads = 1 AND e.size = v.size \
         JOIN announcements a ON a.manifest = e.manifest AND a.chat = f.chat AND a.agent = f.agent \
         JOIN manifests m ON m.sha256 = a.manifest {OWNER} WHERE f.id = {file} AND f.chat = {chat}"
    );
    search.within(scope);
    search.sql += &format!(" ORDER BY a.id LIMIT {limit}");
    search
}

/// One announcement of a manifest, by itself or nested in a set, that passes if any does.
pub(super) fn manifest_search(
    scope: Scope<'_>,
    agent: Option<&AgentName>,
    manifest: &Sha256,
    rule: TaskRule<'_>,
) -> Search {
    let mut search = Search::default();
    let fails = search.fails(rule);
    let manifest = search.value(manifest.to_hex());
    search.sql = format!(
        "SELECT {fails} AS fails FROM manifest_trees t JOIN announcements a ON a.manifest = t.root \
         JOIN manifests m ON m.sha256 = a.manifest WHERE t.manifest = {manifest}"
    );
    search.of_agent(agent);
    search.within(scope);
    search.sql += " ORDER BY fails LIMIT 1";
    search
}

impl Store {
    /// The announcements of a chat's set that list a path, oldest first. Nothing when the set is unknown, has no such
    /// path, or is in a chat that the scope does not cover: one query, so the three take the same time.
    pub async fn offers_of_file(
        &self,
        scope: Scope<'_>,
        chat: &ChatId,
        manifest: &Sha256,
        path: &str,
        limit: u32,
    ) -> Result<Vec<Offer>, StoreError> {
        self.offers(file_search(scope, chat, manifest, path, limit)).await
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
        self.offers(version_search(scope, chat, (file, version), limit)).await
    }

    /// The announcements that list a blob, those that pass `rule` first and then newest first; only `agent`'s when it
    /// is named. Nothing when the blob is unknown or outside the scope: one query, so the two take the same time.
    pub async fn offers_of_blob(
        &self,
        scope: Scope<'_>,
        agent: Option<&AgentName>,
        blob: &Sha256,
        rule: TaskRule<'_>,
        limit: u32,
    ) -> Result<Vec<Offer>, StoreError> {
        self.offers(blob_search(scope, agent, blob, rule, limit)).await
    }

    /// Whether a manifest is announced within the scope, by itself or nested in a set, and if so whether some announcement of it passes `rule`.
    pub async fn manifest_announced(
        &self,
        scope: Scope<'_>,
        agent: Option<&AgentName>,
        manifest: &Sha256,
        rule: TaskRule<'_>,
    ) -> Result<Option<bool>, StoreError> {
        let search = manifest_search(scope, agent, manifest, rule);
        self.bounded(async {
            let found = search.query().fetch_optional(&self.0.reader).await?;
            found.map(|row| Ok(row.try_get::<i64, _>("fails")? == 0)).transpose()
        })
        .await
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

    async fn offers(&self, search: Search) -> Result<Vec<Offer>, StoreError> {
        self.bounded(async {
            let found = search.query().fetch_all(&self.0.reader).await?;
            found.iter().map(offer).collect()
        })
        .await
    }
}
