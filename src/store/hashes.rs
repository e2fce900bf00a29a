//! What a hash stands for in each chat, so that a search by hash starts from the chats of whoever asks.

use sqlx::AnyConnection;

use crate::protocol::{ChatId, Principal, Sha256};

/// A set of a chat.
pub(super) struct InChat<'a> {
    pub(super) announcement: i64,
    pub(super) chat: &'a ChatId,
    pub(super) agent: &'a Principal,
    pub(super) manifest: &'a Sha256,
}

/// Another announcement of the same set by the same agent in the same chat.
pub(super) const OTHER: &str = "SELECT 1 FROM announcements \
    WHERE chat = $1 AND manifest = $2 AND agent = $3 AND id <> $4 LIMIT 1";

/// Whether a set of an agent is listed in a chat, by its own manifest: what it brings comes and goes together.
pub(super) const LISTED: &str = "SELECT 1 FROM chat_hashes \
    WHERE chat = $1 AND sha256 = $2 AND manifest = $2 AND agent = $3 AND position = -1";

/// The blobs of a set, in the order of the index that they go into, and the manifests of its tree.
pub(super) const BLOBS: &str = "INSERT INTO chat_hashes (chat, sha256, manifest, agent, position, since) \
    SELECT $1, e.sha256, e.manifest, $3, e.position, CAST($4 AS BIGINT) FROM entries e \
    WHERE e.manifest = $2 AND e.leads = 1 ORDER BY e.sha256";
/// The same where some of them may have another place than the announcement's own.
pub(super) const RANKED_BLOBS: &str = "INSERT INTO chat_hashes (chat, sha256, manifest, agent, position, since) \
    SELECT $1, e.sha256, e.manifest, $3, e.position, COALESCE(r.since, CAST($4 AS BIGINT)) FROM entries e \
    LEFT JOIN ranks r ON r.announcement = $4 AND r.position = e.position WHERE e.manifest = $2 AND e.leads = 1 \
    ORDER BY e.sha256";
pub(super) const MANIFESTS: &str = "INSERT INTO chat_hashes (chat, sha256, manifest, agent, position, since) \
    SELECT $1, t.manifest, t.root, $3, -1, CAST($4 AS BIGINT) FROM manifest_trees t WHERE t.root = $2";

/// What is there is from before, and counts no more.
pub(super) const ANEW: &str =
    " ON CONFLICT (chat, sha256, manifest, agent, position) DO UPDATE SET since = excluded.since";
/// What is there stays, unless it came later.
pub(super) const EARLIER: &str = " ON CONFLICT (chat, sha256, manifest, agent, position) \
    DO UPDATE SET since = excluded.since WHERE chat_hashes.since > excluded.since";

/// Lists what a new announcement brings to its chat. Its place is an earlier one than those of announcements that came
/// before when it is `late`, and that of a part of it when ranks were `carried` over to it by [`super::ranks::carry`].
pub(super) async fn list(
    conn: &mut AnyConnection,
    set: &InChat<'_>,
    late: bool,
    carried: bool,
) -> Result<(), sqlx::Error> {
    let other = sqlx::query(OTHER)
        .bind(set.chat.as_str())
        .bind(set.manifest.to_hex())
        .bind(set.agent.as_str())
        .bind(set.announcement)
        .fetch_optional(&mut *conn)
        .await?;
    let blobs = if carried { RANKED_BLOBS } else { BLOBS };
    match (other.is_some(), late || carried) {
        (false, _) => put(conn, set, blobs, ANEW).await,
        (true, true) => put(conn, set, blobs, EARLIER).await,
        (true, false) => Ok(()),
    }
}

/// Lists what an announcement has, and leaves what stands there in an earlier place.
pub(super) async fn add(conn: &mut AnyConnection, set: &InChat<'_>) -> Result<(), sqlx::Error> {
    put(conn, set, RANKED_BLOBS, EARLIER).await
}

/// `otherwise` is for rows that are there. Where there are none nothing is said of them: a database that has to look out
/// for them writes more. Others who would list the same wait for the agent's lock.
async fn put(conn: &mut AnyConnection, set: &InChat<'_>, blobs: &str, otherwise: &str) -> Result<(), sqlx::Error> {
    let listed = sqlx::query(LISTED).bind(set.chat.as_str()).bind(set.manifest.to_hex()).bind(set.agent.as_str());
    let otherwise = if listed.fetch_optional(&mut *conn).await?.is_some() { otherwise } else { "" };
    for insert in [blobs, MANIFESTS] {
        sqlx::query(sqlx::AssertSqlSafe(format!("{insert}{otherwise}")))
            .bind(set.chat.as_str())
            .bind(set.manifest.to_hex())
            .bind(set.agent.as_str())
            .bind(set.announcement)
            .execute(&mut *conn)
            .await?;
    }
    Ok(())
}

/// With the chat.
pub(super) async fn forget_chat(conn: &mut AnyConnection, chat: &ChatId) -> Result<(), sqlx::Error> {
    sqlx::query(OF_CHAT).bind(chat.as_str()).execute(conn).await.map(drop)
}

/// With the manifest.
pub(super) async fn forget_manifest(conn: &mut AnyConnection, manifest: &str) -> Result<(), sqlx::Error> {
    sqlx::query(OF_MANIFEST).bind(manifest).execute(conn).await.map(drop)
}

pub(super) const OF_CHAT: &str = "DELETE FROM chat_hashes WHERE chat = $1";
pub(super) const OF_MANIFEST: &str = "DELETE FROM chat_hashes WHERE manifest = $1";
