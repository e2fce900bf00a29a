//! Browsers that are signed in, and the codes that sign one in. Of both only a hash is kept.

use sqlx::AnyConnection;
use sqlx::Row as _;
use sqlx::any::AnyRow;

use super::{Store, StoreError, rows};
use crate::protocol::{ChatId, Principal};

/// Most browsers that one principal is signed in with; the oldest goes for a new one.
const BROWSERS: i64 = 64;

/// Whom a cookie or a code stands for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BrowserRecord {
    /// Who it is.
    pub principal: Principal,
    /// The only chats it is good for, when it names any.
    pub chats: Option<Vec<ChatId>>,
    /// Unix milliseconds.
    pub expires_at: i64,
}

impl Store {
    /// Keeps a code that signs a browser in, once and until it expires.
    pub async fn add_signin_code(&self, hash: &str, code: &BrowserRecord) -> Result<(), StoreError> {
        let (store, hash, code) = (self.clone(), hash.to_owned(), code.clone());
        self.note(async move {
            sqlx::query("INSERT INTO signin_codes (hash, principal, chats, expires_at) VALUES ($1, $2, $3, $4)")
                .bind(&hash)
                .bind(code.principal.as_str())
                .bind(chats_text(&code)?)
                .bind(code.expires_at)
                .execute(&store.0.writer)
                .await
                .map(drop)
        })
        .await
    }

    /// Takes a code, and signs a browser in with it in the same transaction, until `expires_at`. None when there is no
    /// such code, or no longer: of two that come together one finds it.
    pub async fn redeem_signin_code(
        &self,
        code: &str,
        browser: &str,
        expires_at: i64,
    ) -> Result<Option<BrowserRecord>, StoreError> {
        let (store, code, browser) = (self.clone(), code.to_owned(), browser.to_owned());
        let redeem = async move {
            let mut tx = store.begin().await?;
            let sql = "DELETE FROM signin_codes WHERE hash = $1 AND expires_at > $2 \
                       RETURNING principal, chats, expires_at";
            let now = store.0.clock.unix_millis();
            let found = sqlx::query(sql).bind(&code).bind(now).fetch_optional(&mut *tx).await?;
            let Some(found) = found.as_ref().map(record).transpose()? else { return Ok((None, 0)) };
            let record = BrowserRecord { expires_at, ..found };
            let gone = insert_browser(&mut tx, &browser, &record, now).await?;
            tx.commit().await?;
            Ok((Some(record), gone))
        };
        self.withdraw(redeem, |(_, gone)| *gone > 0).await.map(|(record, _)| record)
    }

    /// Signs a browser in.
    pub async fn add_browser(&self, hash: &str, browser: &BrowserRecord) -> Result<(), StoreError> {
        let (store, hash, browser) = (self.clone(), hash.to_owned(), browser.clone());
        let add = async move {
            let mut tx = store.begin().await?;
            let gone = insert_browser(&mut tx, &hash, &browser, store.0.clock.unix_millis()).await?;
            tx.commit().await?;
            Ok(gone)
        };
        self.withdraw(add, |gone| *gone > 0).await.map(drop)
    }

    /// Whom a cookie stands for; it may have had its time.
    pub async fn browser(&self, hash: &str) -> Result<Option<BrowserRecord>, StoreError> {
        self.bounded(async {
            let query = sqlx::query("SELECT principal, chats, expires_at FROM browsers WHERE hash = $1").bind(hash);
            query.fetch_optional(&self.0.reader).await?.as_ref().map(record).transpose()
        })
        .await
    }

    /// Signs a browser out. False when it was not signed in.
    pub async fn remove_browser(&self, hash: &str) -> Result<bool, StoreError> {
        let (store, hash) = (self.clone(), hash.to_owned());
        let remove = async move {
            let removed =
                sqlx::query("DELETE FROM browsers WHERE hash = $1").bind(&hash).execute(&store.0.writer).await?;
            Ok(removed.rows_affected() > 0)
        };
        self.withdraw(remove, |removed| *removed).await
    }

    /// Removes browsers, codes and links that have had their time, at most `limit` of each, and says how many.
    pub async fn sweep_handed_out(&self, limit: u32) -> Result<u64, StoreError> {
        let store = self.clone();
        self.note(async move {
            let now = store.0.clock.unix_millis();
            let mut swept = 0;
            for sql in SWEEP_HANDED_OUT {
                let sweep = sqlx::query(sql).bind(now).bind(i64::from(limit));
                swept += sweep.execute(&store.0.writer).await?.rows_affected();
            }
            Ok(swept)
        })
        .await
    }
}

pub(super) const SWEEP_HANDED_OUT: [&str; 3] = [
    "DELETE FROM browsers WHERE hash IN \
     (SELECT hash FROM browsers WHERE expires_at <= $1 ORDER BY expires_at LIMIT $2)",
    "DELETE FROM signin_codes WHERE hash IN \
     (SELECT hash FROM signin_codes WHERE expires_at <= $1 ORDER BY expires_at LIMIT $2)",
    "DELETE FROM links WHERE id IN (SELECT id FROM links WHERE expires_at <= $1 ORDER BY expires_at LIMIT $2)",
];

/// How many older ones had to go.
async fn insert_browser(
    conn: &mut AnyConnection,
    hash: &str,
    browser: &BrowserRecord,
    now: i64,
) -> Result<u64, sqlx::Error> {
    sqlx::query("INSERT INTO browsers (hash, principal, chats, created_at, expires_at) VALUES ($1, $2, $3, $4, $5)")
        .bind(hash)
        .bind(browser.principal.as_str())
        .bind(chats_text(browser)?)
        .bind(now)
        .bind(browser.expires_at)
        .execute(&mut *conn)
        .await?;
    let gone = sqlx::query(OLDEST_BROWSERS).bind(browser.principal.as_str()).bind(BROWSERS).execute(conn).await?;
    Ok(gone.rows_affected())
}

/// All but the newest of a principal.
pub(super) const OLDEST_BROWSERS: &str = "DELETE FROM browsers WHERE principal = $1 AND hash NOT IN \
    (SELECT hash FROM browsers WHERE principal = $1 ORDER BY created_at DESC, hash LIMIT $2)";

fn chats_text(browser: &BrowserRecord) -> Result<Option<String>, sqlx::Error> {
    let text = browser.chats.as_ref().map(serde_json::to_string).transpose();
    text.map_err(|error| sqlx::Error::Encode(Box::new(error)))
}

fn record(row: &AnyRow) -> Result<BrowserRecord, sqlx::Error> {
    let chats = row.try_get::<Option<String>, _>("chats")?;
    let chats = chats.map(|text| serde_json::from_str(&text)).transpose();
    Ok(BrowserRecord {
        principal: rows::parsed(row, "principal")?,
        chats: chats.map_err(|error| sqlx::Error::Decode(Box::new(error)))?,
        expires_at: row.try_get("expires_at")?,
    })
}
