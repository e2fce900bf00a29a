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

/// An announcement that makes a manifest the searcher's to have.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ManifestOffer {
    /// Who announced it.
    pub agent: Principal,
    /// Where, which is why the searcher may see it.
    pub place: Place,
    /// Bytes of the manifest's canonical form.
    pub size: u64,
    /// The announcement's task.
    pub task: Option<String>,
    /// The announced manifest's `producer.task`.
    pub producer_task: Option<String>,
    /// Whether its agent is the one that was asked for, where one was.
    pub of_agent: bool,
    /// Whether it passes the task rule.
    pub passes: bool,
}

/// What names an entry's chunk list: a list from before it had a name is another than every other.
const LIST: &str = "COALESCE(e.chunks_sha256, \
    CASE WHEN e.chunk_size IS NULL THEN '' ELSE e.manifest || ':' || CAST(e.position AS TEXT) END)";

/// Since when an announcement's entry stands among those of its blob.
const RANK: &str = "COALESCE(r.since, a.id)";
/// Where that is written, unless it is the announcement's id.
const RANKS: &str = "LEFT JOIN ranks r ON r.announcement = a.id AND r.position = e.position";

/// False, as SQL writes it here.
const NO: &str = "CAST(0 AS BIGINT)";

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
        task: row.try_get("task_id")?,
        producer_task: row.try_get("producer_task")?,
        of_agent: row.try_get::<i64, _>("others")? == 0,
        passes: row.try_get::<i64, _>("fails")? == 0,
    })
}

/// A query in the making: text whose variable parts are placeholders, and the values to bind, in order.
#[derive(Default)]
pub(super) struct Search {
    pub(super) sql: String,
    pub(super) values: Vec<String>,
    /// The text depends on who asks, so a connection that remembered it would forget others for it.
    pub(super) is_rare: bool,
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
            TaskRule::Any => return NO.to_owned(),
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
        self.is_rare = true;
        let chats: Vec<String> = chats.iter().map(|chat| self.value(chat.as_str())).collect();
        self.sql +=
            &if chats.is_empty() { " AND 1 = 0".to_owned() } else { format!(" AND a.chat IN ({})", chats.join(", ")) };
    }

    /// What sorts offers of others behind those of the agent that is asked for.
    fn others(&mut self, agent: Option<&AgentName>) -> String {
        let Some(name) = agent else { return NO.to_owned() };
        let name = self.value(name.as_str());
        format!(
            "CAST(CASE WHEN a.agent = (SELECT n.principal FROM agents n WHERE n.name = {name}) THEN 0 ELSE 1 END AS BIGINT)"
        )
    }

    fn query(&self) -> Query<'_, Any, sqlx::any::AnyArguments> {
        let query = sqlx::query(AssertSqlSafe(self.sql.clone())).persistent(!self.is_rare);
        self.values.iter().fold(query, |query, value| query.bind(value.as_str()))
    }
}

/// The announcements of a chat's set that list a path, oldest first: nobody comes before who was there already.
pub(super) fn file_search(scope: Scope<'_>, chat: &ChatId, manifest: &Sha256, path: &str, limit: u32) -> Search {
    let mut search = Search::default();
    let fails = search.fails(TaskRule::Any);
    let (chat, manifest, path) = (search.value(chat.as_str()), search.value(manifest.to_hex()), search.value(path));
    search.sql = format!(
        "SELECT {COLUMNS}, {LIST} AS list, {fails} AS fails, {NO} AS others, {NO} AS contested \
         FROM announcements a JOIN manifests m ON m.sha256 = a.manifest \
         JOIN entries e ON e.manifest = a.manifest AND e.path = {path} {OWNER} {RANKS} \
         WHERE a.chat = {chat} AND a.manifest = {manifest}"
    );
    search.within(scope);
    search.sql += &format!(" ORDER BY {RANK}, a.id LIMIT {limit}");
    search
}

/// The announcements that list a blob: those of the agent that is asked for first, then those that pass, then in the
/// order in which they listed it, a task's later state in the place of the earlier one.
pub(super) fn blob_search(
    scope: Scope<'_>,
    agent: Option<&AgentName>,
    blob: &Sha256,
    rule: TaskRule<'_>,
    limit: u32,
) -> Search {
    let mut search = Search::default();
    let fails = search.fails(rule);
    let others = search.others(agent);
    let blob = search.value(blob.to_hex());
    search.sql = format!(
        "SELECT {COLUMNS}, {LIST} AS list, {fails} AS fails, {others} AS others, \
         CAST(CASE WHEN MIN(e.size) OVER () <> MAX(e.size) OVER () \
         OR MIN({LIST}) OVER () <> MAX({LIST}) OVER () THEN 1 ELSE 0 END AS BIGINT) AS contested \
         FROM entries e JOIN announcements a ON a.manifest = e.manifest \
         JOIN manifests m ON m.sha256 = e.manifest {OWNER} {RANKS} WHERE e.sha256 = {blob} AND e.leads = 1"
    );
    search.within(scope);
    search.sql += &format!(" ORDER BY others, fails, {RANK}, a.id LIMIT {limit}");
    search
}

/// The announcements of a file's agent in its chat that list the bytes of a version.
pub(super) fn version_search(scope: Scope<'_>, chat: &ChatId, (file, version): (FileId, u32), limit: u32) -> Search {
    let mut search = Search::default();
    let fails = search.fails(TaskRule::Any);
    let chat = search.value(chat.as_str());
    let FileId(file) = file;
    let [file, version] = [file.to_string(), version.to_string()].map(|number| search.value(number));
    search.sql = format!(
        "SELECT {VERSION_COLUMNS}, {LIST} AS list, {fails} AS fails, {NO} AS others, {NO} AS contested FROM files f \
         JOIN file_versions v ON v.file = f.id AND v.version = CAST({version} AS BIGINT) \
         JOIN entries e ON e.sha256 = v.sha256 AND e.leads = 1 AND e.size = v.size \
         JOIN announcements a ON a.manifest = e.manifest AND a.chat = f.chat AND a.agent = f.agent \
         JOIN manifests m ON m.sha256 = a.manifest {OWNER} WHERE f.id = CAST({file} AS BIGINT) AND f.chat = {chat}"
    );
    search.within(scope);
    search.sql += &format!(" ORDER BY a.id LIMIT {limit}");
    search
}

/// The announcements of a chat's set, oldest first.
pub(super) fn set_search(scope: Scope<'_>, chat: &ChatId, manifest: &Sha256, limit: u32) -> Search {
    let mut search = Search::default();
    let (chat, manifest) = (search.value(chat.as_str()), search.value(manifest.to_hex()));
    search.sql = format!(
        "SELECT a.agent, a.chat, (SELECT c.created_at FROM chats c WHERE c.id = a.chat) AS made_at, a.task_id, \
         m.producer_task, m.size, {NO} AS others, {NO} AS fails \
         FROM announcements a JOIN manifests m ON m.sha256 = a.manifest \
         WHERE a.chat = {chat} AND a.manifest = {manifest}"
    );
    search.within(scope);
    search.sql += &format!(" ORDER BY a.id LIMIT {limit}");
    search
}

/// One announcement of a manifest, by itself or nested in a set: of the agent that is asked for if there is one, and that
/// passes if any does.
pub(super) fn manifest_search(
    scope: Scope<'_>,
    agent: Option<&AgentName>,
    manifest: &Sha256,
    rule: TaskRule<'_>,
) -> Search {
    let mut search = Search::default();
    let fails = search.fails(rule);
    let others = search.others(agent);
    let manifest = search.value(manifest.to_hex());
    search.sql = format!(
        "SELECT a.agent, a.chat, (SELECT c.created_at FROM chats c WHERE c.id = a.chat) AS made_at, a.task_id, \
         m.producer_task, k.size, {others} AS others, {fails} AS fails \
         FROM manifest_trees t JOIN manifests k ON k.sha256 = t.manifest JOIN announcements a ON a.manifest = t.root \
         JOIN manifests m ON m.sha256 = a.manifest WHERE t.manifest = {manifest}"
    );
    search.within(scope);
    search.sql += " ORDER BY others, fails, a.id LIMIT 1";
    search
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
        self.offers(blob_search(scope, agent, blob, rule, limit)).await
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
        let search = set_search(scope, chat, manifest, limit);
        self.bounded(async {
            let found = search.query().fetch_all(&self.0.reader).await?;
            found.iter().map(manifest_offer).collect()
        })
        .await
    }

    /// An announcement of a manifest, by itself or nested in a set: `agent`'s if there is one, and one that passes `rule`
    /// if any does. None when it is not announced, or only outside the scope: the two are one question.
    pub async fn offer_of_manifest(
        &self,
        scope: Scope<'_>,
        agent: Option<&AgentName>,
        manifest: &Sha256,
        rule: TaskRule<'_>,
    ) -> Result<Option<ManifestOffer>, StoreError> {
        let search = manifest_search(scope, agent, manifest, rule);
        self.bounded(async {
            let found = search.query().fetch_optional(&self.0.reader).await?;
            found.as_ref().map(manifest_offer).transpose()
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

#[cfg(test)]
mod tests {
    use super::*;

    /// A connection remembers a hundred statements: those whose text is another for every question would have it forget
    /// the others.
    #[test]
    fn questions_share_their_statements() {
        let (principal, other): (Principal, Principal) = ("user:a".parse().unwrap(), "user:b".parse().unwrap());
        let (chat, name) = ("c1".parse().unwrap(), "n".parse().unwrap());
        let free = |principal| Scope { principal, chats: None };
        let (one, two) = (Sha256::of(b"1"), Sha256::of(b"2"));
        let pairs = [
            [(1, 1), (i64::MAX, u32::MAX)]
                .map(|(file, version)| version_search(free(&principal), &chat, (FileId(file), version), 64)),
            [(&principal, &one, "a"), (&other, &two, "b")]
                .map(|(who, hash, path)| file_search(free(who), &chat, hash, path, 64)),
            [(&principal, &one), (&other, &two)].map(|(who, hash)| set_search(free(who), &chat, hash, 64)),
            [(&principal, &one, "t"), (&other, &two, "u")]
                .map(|(who, hash, task)| blob_search(free(who), Some(&name), hash, TaskRule::Is(task), 64)),
            [(&principal, &one, "t"), (&other, &two, "u")]
                .map(|(who, hash, task)| manifest_search(free(who), Some(&name), hash, TaskRule::Is(task))),
        ];
        for [first, second] in pairs {
            assert_eq!(first.sql, second.sql);
            assert!(!first.is_rare);
        }
        // A credential's chats are as many as they are.
        for chats in [vec![], vec![chat.clone()], vec![chat.clone(); 200]] {
            let scope = Scope { principal: &principal, chats: Some(&chats) };
            assert!(blob_search(scope, None, &one, TaskRule::Any, 64).is_rare);
            assert!(version_search(scope, &chat, (FileId(1), 1), 64).is_rare);
        }
    }
}
