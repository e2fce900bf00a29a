use std::collections::{HashMap, HashSet};

use sqlx::any::AnyRow;
use sqlx::{AnyConnection, AssertSqlSafe, Row as _};

use super::dialect::Dialect;
use super::{Page, Place, Store, StoreError, endpoints, hashes, rows, versions};
use crate::protocol::{AgentName, ChatId, Principal};

/// A chat and who takes part in it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Chat {
    /// As the platform names it.
    pub id: ChatId,
    /// For people.
    pub title: Option<String>,
    /// Unix milliseconds.
    pub created_at: i64,
    /// In no order that means anything.
    pub participants: Vec<Principal>,
}

/// A chat in a list of all.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ListedChat {
    /// As the platform names it.
    pub id: ChatId,
    /// For people.
    pub title: Option<String>,
    /// Unix milliseconds.
    pub created_at: i64,
    /// How many take part in it.
    pub participants: u64,
}

/// What became of a new participant.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Added {
    /// A participant now, or already.
    Participant,
    /// There is no such chat.
    NoSuchChat,
}

impl Store {
    /// Creates a chat, or replaces the title and the participants of one that exists. True when it is new.
    pub async fn put_chat(
        &self,
        chat: &ChatId,
        title: Option<&str>,
        participants: &[Principal],
    ) -> Result<bool, StoreError> {
        let (store, chat, title) = (self.clone(), chat.clone(), title.map(str::to_owned));
        let mut participants = participants.to_vec();
        participants.sort();
        participants.dedup();
        self.revoke(async move {
            let mut tx = store.begin().await?;
            let inserted = sqlx::query(
                "INSERT INTO chats (id, title, created_at) VALUES ($1, $2, $3) ON CONFLICT (id) DO NOTHING",
            )
            .bind(chat.as_str())
            .bind(&title)
            .bind(store.0.clock.unix_millis())
            .execute(&mut *tx)
            .await?
            .rows_affected();
            if inserted == 0 {
                // Also takes the row's lock, so that two replacements cannot mix their participants.
                sqlx::query("UPDATE chats SET title = $2 WHERE id = $1")
                    .bind(chat.as_str())
                    .bind(&title)
                    .execute(&mut *tx)
                    .await?;
                sqlx::query("DELETE FROM participants WHERE chat = $1").bind(chat.as_str()).execute(&mut *tx).await?;
            }
            insert_participants(&mut tx, &chat, &participants, store.now()).await?;
            tx.commit().await?;
            Ok(inserted > 0)
        })
        .await
    }

    /// A chat, with its participants.
    pub async fn chat(&self, chat: &ChatId) -> Result<Option<Chat>, StoreError> {
        self.bounded(async {
            let sql = "SELECT c.title, c.created_at, p.principal FROM chats c \
                       LEFT JOIN participants p ON p.chat = c.id WHERE c.id = $1 ORDER BY p.principal";
            let found = sqlx::query(sql).bind(chat.as_str()).fetch_all(&self.0.reader).await?;
            let Some(first) = found.first() else { return Ok(None) };
            let participants = found.iter().filter_map(|row| rows::parsed_option(row, "principal").transpose());
            Ok(Some(Chat {
                id: chat.clone(),
                title: first.try_get("title")?,
                created_at: first.try_get("created_at")?,
                participants: participants.collect::<Result<_, _>>()?,
            }))
        })
        .await
    }

    /// Every chat, in the database's order of ids, after one of an earlier page.
    pub async fn chats(&self, after: Option<&ChatId>, limit: u32) -> Result<Page<ListedChat, ChatId>, StoreError> {
        self.bounded(async {
            // The empty text sorts before every id.
            let query = sqlx::query(LIST).bind(after.map_or("", ChatId::as_str)).bind(i64::from(limit) + 1);
            let found = query.fetch_all(&self.0.reader).await?;
            let listed = |row: &AnyRow| {
                Ok(ListedChat {
                    id: rows::parsed(row, "id")?,
                    title: row.try_get("title")?,
                    created_at: row.try_get("created_at")?,
                    participants: rows::unsigned(row, "participants")?,
                })
            };
            let items = found.iter().map(listed).collect::<Result<Vec<_>, sqlx::Error>>()?;
            Ok(Page::cut(items, limit, |chat| chat.id.clone()))
        })
        .await
    }

    /// Deletes a chat. Its sets, sessions and participants go with it, in the same transaction. False when there is
    /// none.
    pub async fn delete_chat(&self, chat: &ChatId) -> Result<bool, StoreError> {
        let (store, chat) = (self.clone(), chat.clone());
        self.revoke(async move {
            let mut tx = store.begin().await?;
            let deleted = sqlx::query("DELETE FROM chats WHERE id = $1").bind(chat.as_str()).execute(&mut *tx).await?;
            versions::forget(&mut tx, &chat).await?;
            hashes::forget_chat(&mut tx, &chat).await?;
            tx.commit().await?;
            Ok(deleted.rows_affected() > 0)
        })
        .await
    }

    /// Lets a principal take part in a chat.
    pub async fn add_participant(&self, chat: &ChatId, principal: &Principal) -> Result<Added, StoreError> {
        let (store, chat, principal) = (self.clone(), chat.clone(), principal.clone());
        self.write(async move {
            let mut tx = store.begin().await?;
            // An update that changes nothing holds the chat in place until the end.
            let known = sqlx::query("UPDATE chats SET title = title WHERE id = $1")
                .bind(chat.as_str())
                .execute(&mut *tx)
                .await?
                .rows_affected();
            if known == 0 {
                return Ok(Added::NoSuchChat);
            }
            insert_participants(&mut tx, &chat, std::slice::from_ref(&principal), store.now()).await?;
            tx.commit().await?;
            Ok(Added::Participant)
        })
        .await
    }

    /// Takes a principal out of a chat. False when it did not take part.
    pub async fn remove_participant(&self, chat: &ChatId, principal: &Principal) -> Result<bool, StoreError> {
        let (store, chat, principal) = (self.clone(), chat.clone(), principal.clone());
        self.revoke(async move {
            let mut tx = store.begin().await?;
            let removed = sqlx::query("DELETE FROM participants WHERE chat = $1 AND principal = $2")
                .bind(chat.as_str())
                .bind(principal.as_str())
                .execute(&mut *tx)
                .await?;
            tx.commit().await?;
            Ok(removed.rows_affected() > 0)
        })
        .await
    }

    /// Whether a principal takes part in a chat, by its own name or because everyone does.
    pub async fn is_participant(&self, chat: &ChatId, principal: &Principal) -> Result<bool, StoreError> {
        self.bounded(async {
            let sql = "SELECT count(*) FROM participants WHERE chat = $1 AND principal IN ($2, '*')";
            let found = sqlx::query(sql).bind(chat.as_str()).bind(principal.as_str());
            Ok(found.fetch_one(&self.0.reader).await?.try_get::<i64, _>(0)? > 0)
        })
        .await
    }
}

/// Chats by their ids, each with how many take part in it.
pub(super) const LIST: &str = "SELECT c.id, c.title, c.created_at, \
    (SELECT count(*) FROM participants p WHERE p.chat = c.id) AS participants \
    FROM chats c WHERE c.id > $1 ORDER BY c.id LIMIT $2";

/// A chat as it was made, if one of two takes part in it.
pub(super) const PLACE: &str = "SELECT c.created_at FROM chats c WHERE c.id = $1 AND EXISTS \
    (SELECT 1 FROM participants p WHERE p.chat = c.id AND p.principal IN ($2, '*'))";

/// The agents that have a set in a chat or take part in it, each with a name that it holds.
pub(super) const AGENTS: &str = "SELECT a.agent, \
    (SELECT MIN(n.name) FROM agents n WHERE n.principal = a.agent) AS name \
    FROM announcements a WHERE a.chat = $1 GROUP BY a.agent \
    UNION SELECT p.principal, (SELECT MIN(n.name) FROM agents n WHERE n.principal = p.principal) \
    FROM participants p WHERE p.chat = $1 AND p.principal LIKE 'agent:%'";

impl Store {
    /// The chat that a principal takes part in, by its own name or because everyone does. None when there is no such
    /// chat, or it does not.
    pub async fn place_of(&self, chat: &ChatId, principal: &Principal) -> Result<Option<Place>, StoreError> {
        self.bounded(async {
            let query = sqlx::query(PLACE).bind(chat.as_str()).bind(principal.as_str());
            let Some(row) = query.fetch_optional(&self.0.reader).await? else { return Ok(None) };
            Ok(Some(Place { chat: chat.clone(), made_at: row.try_get("created_at")? }))
        })
        .await
    }

    /// The agents that have a set in a chat or take part in it, each with the name that the chat's list of sets has for
    /// it.
    pub async fn agents_of(&self, chat: &ChatId) -> Result<HashMap<Principal, Option<AgentName>>, StoreError> {
        self.bounded(async {
            let found = sqlx::query(AGENTS).bind(chat.as_str()).fetch_all(&self.0.reader).await?;
            found.iter().map(|row| Ok((rows::parsed(row, "agent")?, rows::parsed_option(row, "name")?))).collect()
        })
        .await
    }
}

/// Parameters of one statement, at most.
const AT_ONCE: usize = 1000;

impl Store {
    /// Which of these places have which of these principals (or `*`) as participants.
    pub async fn participants_of(
        &self,
        places: &HashSet<Place>,
        principals: &HashSet<Principal>,
    ) -> Result<HashSet<(Place, Principal)>, StoreError> {
        let places: Vec<&Place> = places.iter().collect();
        let mut principals: Vec<&str> = principals.iter().map(Principal::as_str).collect();
        principals.push("*");
        self.bounded(async {
            let mut found = HashSet::new();
            for places in places.chunks(AT_ONCE) {
                for principals in principals.chunks(AT_ONCE) {
                    self.find_participants(places, principals, &mut found).await?;
                }
            }
            Ok(found)
        })
        .await
    }

    async fn find_participants(
        &self,
        places: &[&Place],
        principals: &[&str],
        found: &mut HashSet<(Place, Principal)>,
    ) -> Result<(), sqlx::Error> {
        let chats = rows::placeholders(1, places.len());
        let names = rows::placeholders(places.len() + 1, principals.len());
        let sql = format!(
            "SELECT p.chat, p.principal, c.created_at FROM participants p JOIN chats c ON c.id = p.chat \
             WHERE p.chat IN ({chats}) AND p.principal IN ({names})"
        );
        let mut query = sqlx::query(AssertSqlSafe(sql)).persistent(false);
        for place in places {
            query = query.bind(place.chat.as_str());
        }
        for principal in principals {
            query = query.bind(*principal);
        }
        for row in query.fetch_all(&self.0.reader).await? {
            let place = Place { chat: rows::parsed(&row, "chat")?, made_at: row.try_get("created_at")? };
            found.insert((place, rows::parsed(&row, "principal")?));
        }
        Ok(())
    }
}

async fn insert_participants(
    conn: &mut AnyConnection,
    chat: &ChatId,
    participants: &[Principal],
    now: i64,
) -> Result<(), sqlx::Error> {
    for some in participants.chunks(1000) {
        let sql = format!(
            "INSERT INTO participants (chat, principal) VALUES {} ON CONFLICT (chat, principal) DO NOTHING",
            Dialect::of(conn).tuples(some.len(), 2)
        );
        let mut query = sqlx::query(AssertSqlSafe(sql)).persistent(false);
        for principal in some {
            query = query.bind(chat.as_str()).bind(principal.as_str());
        }
        query.execute(&mut *conn).await?;
    }
    for principal in participants {
        endpoints::note(conn, principal, now).await?;
    }
    Ok(())
}
