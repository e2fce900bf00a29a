//! The text of the searches for what somebody may read.
//!
//! Every search by hash starts from the chats of whoever asks: what others announced elsewhere costs it nothing, and so
//! cannot be told from what nobody announced. What an agent announced in a chat again under other tasks is met once.

use sqlx::query::Query;
use sqlx::{Any, AssertSqlSafe};

use super::FileId;
use crate::protocol::{AgentName, ChatId, Principal, Sha256};

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

/// What names an entry's chunk list: a list from before it had a name is another than every other.
const LIST: &str = "COALESCE(e.chunks_sha256, \
    CASE WHEN e.chunk_size IS NULL THEN '' ELSE e.manifest || ':' || CAST(e.position AS TEXT) END)";

/// False, as SQL writes it here.
const NO: &str = "CAST(0 AS BIGINT)";

/// The announcement that a set in a chat is known by: the agent's first of those that are still there. NULL when all have
/// gone.
const EARLIEST: &str = "(SELECT MIN(b.id) FROM announcements b \
    WHERE b.chat = h.chat AND b.manifest = h.manifest AND b.agent = h.agent) AS earliest";

/// What is known of an offer once it has been chosen.
const COLUMNS: &str = "a.agent, a.chat, (SELECT c.created_at FROM chats c WHERE c.id = a.chat) AS made_at, \
    a.expires_at, a.manifest, a.locations AS own_locations, m.producer_task, \
    COALESCE(o.locations, m.locations) AS set_locations, chosen.position, chosen.list, chosen.fails, chosen.others, chosen.contested, \
    e.sha256, e.locations";
/// As the entry says.
const ENTRY: &str = "e.path, e.size, e.media_type, e.kind";
/// As the version says, which has the same bytes.
const VERSION: &str = "chosen.path, e.size, chosen.media_type, chosen.kind";
/// From the chosen ones to the rest. The nested manifest that an entry stands in has the entry's locations.
const REST: &str = "JOIN announcements a ON a.id = chosen.earliest JOIN manifests m ON m.sha256 = a.manifest \
    JOIN entries e ON e.manifest = a.manifest AND e.position = chosen.position \
    LEFT JOIN manifests o ON o.sha256 = e.owner ORDER BY chosen.others, chosen.fails, chosen.since, chosen.earliest";

/// The same for manifests. Their rows are met only then: a hash that is some manifest's costs no more than any other.
const MANIFEST: &str = "a.agent, a.chat, (SELECT c.created_at FROM chats c WHERE c.id = a.chat) AS made_at, \
    a.manifest, m.producer_task, k.size, chosen.others, chosen.fails";
const MANIFEST_REST: &str = "JOIN announcements a ON a.id = chosen.earliest JOIN manifests m ON m.sha256 = a.manifest \
    JOIN manifests k ON k.sha256 = chosen.sha256 ORDER BY chosen.others, chosen.fails, chosen.since, chosen.earliest";

/// The first of those found: narrow rows, so that as many as there are can be put in order. Where they are more than the
/// limit, one agent's many leave room for another's.
fn chosen(found: &str, limit: u32) -> String {
    format!(
        "SELECT hits.*, CAST(CASE WHEN MIN(hits.size) OVER () <> MAX(hits.size) OVER () \
         OR MIN(hits.list) OVER () <> MAX(hits.list) OVER () THEN 1 ELSE 0 END AS BIGINT) AS contested, \
         ROW_NUMBER() OVER (PARTITION BY hits.agent ORDER BY hits.others, hits.fails, hits.since, hits.earliest) AS turn \
         FROM ({found}) hits WHERE hits.earliest IS NOT NULL \
         ORDER BY hits.others, hits.fails, turn, hits.since, hits.earliest LIMIT {limit}"
    )
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

    /// What sorts offers that fail the rule behind those that pass, and the table that it needs.
    fn fails(&mut self, rule: TaskRule<'_>) -> (String, &'static str) {
        let passes = match rule {
            TaskRule::Any => return (NO.to_owned(), ""),
            TaskRule::None => "m.producer_task IS NULL".to_owned(),
            TaskRule::Is(task) => {
                let task = self.value(task);
                format!(
                    "m.producer_task = {task} OR EXISTS (SELECT 1 FROM announcements b WHERE b.agent = h.agent \
                     AND b.task_id = {task} AND b.manifest = h.manifest AND b.chat = h.chat)"
                )
            }
        };
        let fails = format!("CAST(CASE WHEN {passes} THEN 0 ELSE 1 END AS BIGINT)");
        (fails, "JOIN manifests m ON m.sha256 = h.manifest")
    }

    /// The condition that makes what is in a chat the caller's to have.
    fn within(&mut self, scope: Scope<'_>, chat: &str) -> String {
        let principal = self.value(scope.principal.as_str());
        let takes_part =
            format!("{chat} IN (SELECT p.chat FROM participants p WHERE p.principal IN ({principal}, '*'))");
        let Some(chats) = scope.chats else { return takes_part };
        self.is_rare = true;
        let chats: Vec<String> = chats.iter().map(|chat| self.value(chat.as_str())).collect();
        match chats.is_empty() {
            true => "1 = 0".to_owned(),
            false => format!("{takes_part} AND {chat} IN ({})", chats.join(", ")),
        }
    }

    /// Who is asked for.
    fn holder(&mut self, name: &AgentName) -> String {
        let name = self.value(name.as_str());
        format!("(SELECT n.principal FROM agents n WHERE n.name = {name})")
    }

    /// What sorts offers of others behind those of the agent that is asked for.
    fn others(&mut self, agent: Option<&AgentName>) -> String {
        let Some(name) = agent else { return NO.to_owned() };
        format!("CAST(CASE WHEN h.agent = {} THEN 0 ELSE 1 END AS BIGINT)", self.holder(name))
    }

    pub(super) fn query(&self) -> Query<'_, Any, sqlx::any::AnyArguments> {
        let query = sqlx::query(AssertSqlSafe(self.sql.clone())).persistent(!self.is_rare);
        self.values.iter().fold(query, |query, value| query.bind(value.as_str()))
    }
}

/// The agents' announcements of a chat's set that lists a path, oldest first: nobody comes before who was there already.
pub(super) fn file_search(scope: Scope<'_>, chat: &ChatId, manifest: &Sha256, path: &str, limit: u32) -> Search {
    let mut search = Search::default();
    let (chat, manifest, path) = (search.value(chat.as_str()), search.value(manifest.to_hex()), search.value(path));
    let within = search.within(scope, "h.chat");
    let found = format!(
        "SELECT h.agent, e.position, h.since, e.size, {LIST} AS list, {NO} AS fails, {NO} AS others, {EARLIEST} \
         FROM entries e JOIN chat_hashes h ON h.chat = {chat} AND h.sha256 = e.sha256 AND h.manifest = e.manifest \
         WHERE e.manifest = {manifest} AND e.path = {path} AND h.position >= 0 AND {within}"
    );
    search.sql = format!("SELECT {COLUMNS}, {ENTRY} FROM ({}) chosen {REST}", chosen(&found, limit));
    search
}

/// The sets that list a blob: those of the agent that is asked for first, then those that pass, then in the order in
/// which their agents listed it, a task's later state in the place of the earlier one.
pub(super) fn blob_search(
    scope: Scope<'_>,
    agent: Option<&AgentName>,
    blob: &Sha256,
    rule: TaskRule<'_>,
    limit: u32,
) -> Search {
    let mut search = Search::default();
    let (fails, table) = search.fails(rule);
    let others = search.others(agent);
    let blob = search.value(blob.to_hex());
    let within = search.within(scope, "h.chat");
    let found = format!(
        "SELECT h.agent, h.position, h.since, e.size, {LIST} AS list, {fails} AS fails, {others} AS others, {EARLIEST} \
         FROM chat_hashes h JOIN entries e ON e.manifest = h.manifest AND e.position = h.position {table} \
         WHERE h.sha256 = {blob} AND h.position >= 0 AND {within}"
    );
    search.sql = format!("SELECT {COLUMNS}, {ENTRY} FROM ({}) chosen {REST}", chosen(&found, limit));
    search
}

/// The sets of a file's agent in its chat that list the bytes of a version.
pub(super) fn version_search(scope: Scope<'_>, chat: &ChatId, (file, version): (FileId, u32), limit: u32) -> Search {
    let mut search = Search::default();
    let chat = search.value(chat.as_str());
    let FileId(file) = file;
    let [file, version] = [file.to_string(), version.to_string()].map(|number| search.value(number));
    let within = search.within(scope, "f.chat");
    let found = format!(
        "SELECT h.agent, h.position, h.since, v.size, {LIST} AS list, f.path, v.media_type, v.kind, {NO} AS fails, \
         {NO} AS others, {EARLIEST} FROM files f \
         JOIN file_versions v ON v.file = f.id AND v.version = CAST({version} AS BIGINT) \
         JOIN chat_hashes h ON h.chat = f.chat AND h.sha256 = v.sha256 AND h.agent = f.agent AND h.position >= 0 \
         JOIN entries e ON e.manifest = h.manifest AND e.position = h.position AND e.size = v.size \
         WHERE f.id = CAST({file} AS BIGINT) AND f.chat = {chat} AND {within}"
    );
    search.sql = format!("SELECT {COLUMNS}, {VERSION} FROM ({}) chosen {REST}", chosen(&found, limit));
    search
}

/// The agents' announcements of a chat's set, oldest first.
pub(super) fn set_search(scope: Scope<'_>, chat: &ChatId, manifest: &Sha256, limit: u32) -> Search {
    let mut search = Search::default();
    let (chat, manifest) = (search.value(chat.as_str()), search.value(manifest.to_hex()));
    let within = search.within(scope, "h.chat");
    let found = format!(
        "SELECT h.agent, h.sha256, h.since, 0 AS size, {NO} AS others, {NO} AS fails, '' AS list, {EARLIEST} FROM chat_hashes h \
         WHERE h.chat = {chat} AND h.sha256 = {manifest} AND h.manifest = h.sha256 AND h.position = -1 AND {within}"
    );
    search.sql = format!("SELECT {MANIFEST} FROM ({}) chosen {MANIFEST_REST}", chosen(&found, limit));
    search
}

/// The sets that are a manifest or have it nested in them, ordered as for blobs.
pub(super) fn manifest_search(
    scope: Scope<'_>,
    agent: Option<&AgentName>,
    manifest: &Sha256,
    rule: TaskRule<'_>,
    limit: u32,
) -> Search {
    let mut search = Search::default();
    let (fails, table) = search.fails(rule);
    let others = search.others(agent);
    let manifest = search.value(manifest.to_hex());
    let within = search.within(scope, "h.chat");
    let found = format!(
        "SELECT h.agent, h.sha256, h.since, 0 AS size, {others} AS others, {fails} AS fails, '' AS list, {EARLIEST} \
         FROM chat_hashes h {table} \
         WHERE h.sha256 = {manifest} AND h.position = -1 AND {within}"
    );
    search.sql = format!("SELECT {MANIFEST} FROM ({}) chosen {MANIFEST_REST}", chosen(&found, limit));
    search
}

/// The tasks of the announcements of sets that have a hash in them, or are it. As many as there may be are looked at and
/// no more.
pub(super) fn hash_tasks(scope: Scope<'_>, agent: Option<&AgentName>, hash: &Sha256, limit: u32) -> Search {
    let mut search = Search::default();
    let of_agent = agent.map(|name| format!(" AND h.agent = {}", search.holder(name))).unwrap_or_default();
    let hash = search.value(hash.to_hex());
    let within = search.within(scope, "h.chat");
    search.sql = format!(
        "SELECT a.chat, a.manifest, a.agent, a.task_id FROM chat_hashes h JOIN announcements a \
         ON a.chat = h.chat AND a.manifest = h.manifest AND a.agent = h.agent \
         WHERE h.sha256 = {hash}{of_agent} AND {within} AND a.task_id IS NOT NULL LIMIT {limit}"
    );
    search
}

/// The tasks of the announcements of a chat's set.
pub(super) fn set_tasks(chat: &ChatId, set: &Sha256, limit: u32) -> Search {
    let mut search = Search::default();
    let (chat, set) = (search.value(chat.as_str()), search.value(set.to_hex()));
    search.sql = format!(
        "SELECT a.chat, a.manifest, a.agent, a.task_id FROM announcements a \
         WHERE a.chat = {chat} AND a.manifest = {set} AND a.task_id IS NOT NULL LIMIT {limit}"
    );
    search
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
                .map(|(who, hash, task)| manifest_search(free(who), Some(&name), hash, TaskRule::Is(task), 64)),
            [(&principal, &one), (&other, &two)].map(|(who, hash)| hash_tasks(free(who), Some(&name), hash, 64)),
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
