//! Which token secrets the gateways of this database have had.

use sqlx::Row as _;

use super::{Store, StoreError};

/// When any agent that is known by a token was last heard of.
const LAST_SEEN: &str = "SELECT MAX(last_seen_at) AS seen FROM agents WHERE principal NOT LIKE 'agent:http%'";

impl Store {
    /// Notes that a gateway has the token secret of this hash. Whether agents are known by tokens and none of them has been
    /// here since the secret first was: then what they have was made under another one.
    pub async fn note_token_secret(&self, hash: &str) -> Result<bool, StoreError> {
        let (store, hash) = (self.clone(), hash.to_owned());
        self.note(async move {
            let mut tx = store.begin().await?;
            sqlx::query(
                "INSERT INTO token_secrets (hash, since) \
                 VALUES ($1, CASE WHEN EXISTS (SELECT 1 FROM token_secrets) THEN $2 ELSE 0 END) \
                 ON CONFLICT (hash) DO NOTHING",
            )
            .bind(hash.as_str())
            .bind(store.now())
            .execute(&mut *tx)
            .await?;
            let since = sqlx::query("SELECT since FROM token_secrets WHERE hash = $1").bind(hash.as_str());
            let since: i64 = since.fetch_one(&mut *tx).await?.try_get("since")?;
            let seen: Option<i64> = sqlx::query(LAST_SEEN).fetch_one(&mut *tx).await?.try_get("seen")?;
            tx.commit().await?;
            Ok(seen.is_some_and(|seen| seen < since))
        })
        .await
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock::Clock;
    use crate::on_both_databases;
    use crate::protocol::Principal;
    use crate::store::test_database::{self as db, TestDatabase};
    use crate::store::{Claim, StoreOptions};

    on_both_databases!(a_new_secret_is_told_until_an_agent_has_come_with_it);

    async fn a_new_secret_is_told_until_an_agent_has_come_with_it(database: &TestDatabase) {
        let clock = Clock::fixed(1_800_000_000_000);
        let options = StoreOptions { clock: clock.clone(), ..StoreOptions::default() };
        let store = Store::open(&database.url, options).await.unwrap();
        let comes = async |agent: &str| {
            let agent: Principal = agent.parse().unwrap();
            let name = if agent.as_str() == "agent:flow" { "flow" } else { "signer" };
            let claim = store.claim_name(&name.parse().unwrap(), &agent, clock.unix_millis()).await.unwrap();
            assert_eq!(claim, Claim::Held);
        };
        assert!(!store.note_token_secret("one").await.unwrap(), "nobody is known");
        comes("agent:flow").await;
        assert!(!store.note_token_secret("one").await.unwrap(), "it is the first");
        clock.set(1_800_000_100_000);
        for start in 0..3 {
            assert!(store.note_token_secret("two").await.unwrap(), "start {start}");
        }
        clock.set(1_800_000_200_000);
        comes("agent:https://signer.example").await;
        assert!(store.note_token_secret("two").await.unwrap(), "who signs has no token");
        assert!(!store.note_token_secret("one").await.unwrap(), "the first is put back");
        comes("agent:flow").await;
        assert!(!store.note_token_secret("two").await.unwrap());
    }
}
