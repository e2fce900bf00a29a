//! The gateway's end, and its database's.

use http::Method;
use sqlx::{AssertSqlSafe, Connection as _};

use crate::stage::{FRAME, Stage, assert_bytes, body, cut, refusal, single, url};
use crate::support::db::TestDatabase;
use crate::support::{Gateway, What, bytes, span};

#[tokio::test]
async fn what_runs_may_finish_and_nothing_new_begins() {
    // However busy the machine is, what runs has the time that it needs.
    let mut stage = Stage::with(|layer| layer.shutdown_grace = Some(span("60s"))).await;
    let set = single(bytes(1, 32 * FRAME)).chunked(2 * FRAME);
    let agent = stage.agent_with("ada", &set).await;
    let mut one = stage.slow(&url(&set)).await;
    let mut two = stage.over(true, &url(&set), None).await;
    let mut received = (one.read(1000).await, two.read(1000).await);
    stage.gateway.begin_stop();
    crate::support::eventually("the listener's end", async || {
        tokio::net::TcpStream::connect(stage.gateway.address()).await.is_err().then_some(())
    })
    .await;
    received.0.extend(body(one).await);
    received.1.extend(body(two).await);
    assert_bytes(&received.0, &set.files[0].bytes, "over HTTP/1.1");
    assert_bytes(&received.1, &set.files[0].bytes, "over HTTP/2");
    stage.gateway.stop().await;
    // The agent was needed until then.
    agent.wait_for(|event| matches!(event.what, What::Closed { code: 1012, .. })).await;
}

#[tokio::test]
async fn what_does_not_finish_within_the_grace_period_is_cut() {
    let mut stage = Stage::with(|layer| layer.shutdown_grace = Some(span("100ms"))).await;
    let set = single(bytes(2, 32 * FRAME));
    let _agent = stage.agent_with("ada", &set).await;
    let mut reader = stage.slow(&url(&set)).await;
    reader.read(1000).await;
    // Over HTTP/2 as well.
    let mut two = stage.over(true, &url(&set), None).await;
    two.read(1000).await;
    stage.gateway.stop().await;
    cut(reader).await;
    cut(two).await;
    let ended = |outcome: &str| stage.gateway.metric(&format!("sluice_transfers_ended_total{{outcome=\"{outcome}\"}}"));
    assert_eq!((ended("shutdown"), ended("reader_left")), (2.0, 0.0));
}

/// Takes a database away, and gives it back.
struct Outage<'a> {
    server: &'a str,
    name: &'a str,
}

impl Outage<'_> {
    async fn tell(&self, sql: String) {
        let mut conn = sqlx::postgres::PgConnection::connect(self.server).await.unwrap();
        sqlx::query(AssertSqlSafe(sql)).execute(&mut conn).await.unwrap();
    }

    async fn begin(&self) {
        self.tell(format!("ALTER DATABASE {} WITH ALLOW_CONNECTIONS false", self.name)).await;
        let kill = format!("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = '{}'", self.name);
        self.tell(kill).await;
    }

    async fn end(&self) {
        self.tell(format!("ALTER DATABASE {} WITH ALLOW_CONNECTIONS true", self.name)).await;
    }
}

#[tokio::test]
async fn without_its_database_what_runs_goes_on() {
    let Some(database) = TestDatabase::postgres().await else { return };
    let (server, name) = database.on_server().unwrap();
    let outage = Outage { server, name };
    let stage = Stage::on(Gateway::builder().on(&database).start().await).await;
    let set = single(bytes(3, 16 * FRAME)).chunked(2 * FRAME);
    let mut agent = stage.agent_with("ada", &set).await;
    let mut reader = stage.slow(&url(&set)).await;
    let mut received = reader.read(1000).await;
    outage.begin().await;

    let uncached = format!("{}x", url(&set));
    for path in
        [uncached.as_str(), "/artifacts/blobs/sha256:0000000000000000000000000000000000000000000000000000000000000000"]
    {
        let answer = stage.get(path).await;
        assert!(answer.header("retry-after").parse::<u64>().unwrap() >= 1);
        assert_eq!(answer.header("accept-ranges"), "bytes");
        assert_eq!(refusal(answer).await, (503, "unavailable".to_owned()));
    }
    // What was asked before needs no database.
    assert_eq!(stage.range(&url(&set), "bytes=0-9").await.status, 206);
    received.extend(body(reader).await);
    assert_bytes(&received, &set.files[0].bytes, "during an outage");

    outage.end().await;
    crate::support::eventually("the database", async || {
        let answer = stage.gateway.ask(Method::GET, &uncached, &stage.alice(), None).await;
        (answer.status == 404).then_some(())
    })
    .await;
    agent.reconnect().await;
    assert_bytes(&body(stage.get(&url(&set)).await).await, &set.files[0].bytes, "after an outage");
}
