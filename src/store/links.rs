//! Links to one file each, with what is kept of their secret.

use sqlx::any::AnyRow;
use sqlx::{AssertSqlSafe, Row as _};

use super::{Page, Store, StoreError, rows};
use crate::protocol::{ChatId, Principal, Sha256};

/// A link that somebody made.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LinkRecord {
    /// Names it to its maker and to operators, and opens nothing.
    pub id: String,
    /// Who made it, and as whom it reads.
    pub principal: Principal,
    /// The chat it reads in.
    pub chat: ChatId,
    /// The set.
    pub manifest: Sha256,
    /// The file in it.
    pub path: String,
    /// Unix milliseconds.
    pub created_at: i64,
    /// Unix milliseconds.
    pub expires_at: i64,
}

/// Which links an operator wants to see.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct LinkFilter {
    /// Made by whom.
    pub principal: Option<Principal>,
    /// Into which chat.
    pub chat: Option<ChatId>,
}

/// What became of a new link.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LinkAdded {
    /// It is there.
    Added,
    /// Its maker has as many as one may have.
    TooMany,
    /// There is no such chat.
    NoSuchChat,
}

impl Store {
    /// Keeps a link, unless its maker has `limit` of them.
    pub async fn add_link(&self, hash: &str, link: &LinkRecord, limit: u32) -> Result<LinkAdded, StoreError> {
        let (store, hash, link) = (self.clone(), hash.to_owned(), link.clone());
        self.note(async move {
            let mut tx = store.begin().await?;
            // Links of one maker that come at once are counted one after the other.
            store.0.dialect.lock_agent(&mut tx, &link.principal).await?;
            let held: i64 = sqlx::query(LINKS_HELD)
                .bind(link.principal.as_str())
                .bind(store.0.clock.unix_millis())
                .fetch_one(&mut *tx)
                .await?
                .try_get(0)?;
            if held >= i64::from(limit) {
                return Ok(LinkAdded::TooMany);
            }
            let added = sqlx::query(
                "INSERT INTO links (id, hash, principal, chat, manifest, path, created_at, expires_at) \
                 SELECT $1, $2, $3, id, $4, $5, CAST($6 AS BIGINT), CAST($7 AS BIGINT) FROM chats WHERE id = $8",
            )
            .bind(&link.id)
            .bind(&hash)
            .bind(link.principal.as_str())
            .bind(link.manifest.to_hex())
            .bind(&link.path)
            .bind(link.created_at)
            .bind(link.expires_at)
            .bind(link.chat.as_str())
            .execute(&mut *tx)
            .await?;
            tx.commit().await?;
            Ok(if added.rows_affected() > 0 { LinkAdded::Added } else { LinkAdded::NoSuchChat })
        })
        .await
    }

    /// The link with this hash; it may have had its time.
    pub async fn link(&self, hash: &str) -> Result<Option<LinkRecord>, StoreError> {
        self.bounded(async {
            let query = sqlx::query("SELECT * FROM links WHERE hash = $1").bind(hash);
            query.fetch_optional(&self.0.reader).await?.as_ref().map(record).transpose()
        })
        .await
    }

    /// The links that a principal made in a chat and that still lead somewhere, newest first.
    pub async fn links(&self, principal: &Principal, chat: &ChatId) -> Result<Vec<LinkRecord>, StoreError> {
        self.bounded(async {
            let query = sqlx::query(LINKS).bind(principal.as_str()).bind(chat.as_str());
            let found = query.bind(self.0.clock.unix_millis()).fetch_all(&self.0.reader).await?;
            found.iter().map(record).collect()
        })
        .await
    }

    /// The links of everybody that still lead somewhere, by their ids, after one of an earlier page.
    pub async fn all_links(
        &self,
        filter: &LinkFilter,
        after: Option<&str>,
        limit: u32,
    ) -> Result<Page<LinkRecord, String>, StoreError> {
        let (sql, values) = link_search(filter);
        self.bounded(async {
            let query = sqlx::query(AssertSqlSafe(sql)).bind(after.unwrap_or_default());
            let mut query = query.bind(self.0.clock.unix_millis()).bind(i64::from(limit) + 1);
            for value in &values {
                query = query.bind(value.as_str());
            }
            let found = query.fetch_all(&self.0.reader).await?;
            let items = found.iter().map(record).collect::<Result<Vec<_>, _>>()?;
            Ok(Page::cut(items, limit, |link| link.id.clone()))
        })
        .await
    }

    /// Ends a link, whoever made it. False when there is none.
    pub async fn end_link(&self, id: &str) -> Result<bool, StoreError> {
        let (store, id) = (self.clone(), id.to_owned());
        let end = async move {
            let ended = sqlx::query("DELETE FROM links WHERE id = $1").bind(&id).execute(&store.0.writer).await?;
            Ok(ended.rows_affected() > 0)
        };
        self.withdraw(end, |ended| *ended).await
    }

    /// Ends a link of this principal in this chat. False when there is none.
    pub async fn remove_link(&self, principal: &Principal, chat: &ChatId, id: &str) -> Result<bool, StoreError> {
        let (store, principal, chat, id) = (self.clone(), principal.clone(), chat.clone(), id.to_owned());
        let remove = async move {
            let removed = sqlx::query("DELETE FROM links WHERE id = $1 AND principal = $2 AND chat = $3")
                .bind(&id)
                .bind(principal.as_str())
                .bind(chat.as_str())
                .execute(&store.0.writer)
                .await?;
            Ok(removed.rows_affected() > 0)
        };
        self.withdraw(remove, |removed| *removed).await
    }
}

pub(super) const LINKS_HELD: &str = "SELECT count(*) FROM links WHERE principal = $1 AND expires_at > $2";
pub(super) const LINKS: &str = "SELECT * FROM links WHERE principal = $1 AND chat = $2 AND expires_at > $3 \
    ORDER BY created_at DESC, id";

/// A statement, and its values after the id to go on from, the time and the limit.
pub(super) fn link_search(filter: &LinkFilter) -> (String, Vec<String>) {
    let mut sql = "SELECT * FROM links WHERE id > $1 AND expires_at > $2".to_owned();
    let mut values = Vec::new();
    let principal = filter.principal.as_ref().map(|principal| ("principal", principal.as_str()));
    let chat = filter.chat.as_ref().map(|chat| ("chat", chat.as_str()));
    for (column, value) in principal.into_iter().chain(chat) {
        values.push(value.to_owned());
        sql.push_str(&format!(" AND {column} = ${}", values.len() + 3));
    }
    sql.push_str(" ORDER BY id LIMIT $3");
    (sql, values)
}

fn record(row: &AnyRow) -> Result<LinkRecord, sqlx::Error> {
    Ok(LinkRecord {
        id: row.try_get("id")?,
        principal: rows::parsed(row, "principal")?,
        chat: rows::parsed(row, "chat")?,
        manifest: rows::parsed(row, "manifest")?,
        path: row.try_get("path")?,
        created_at: row.try_get("created_at")?,
        expires_at: row.try_get("expires_at")?,
    })
}
