//! A gateway that reads from an agent's endpoint, with and without the agent's own connection beside it.

use sluice::producer::{AgentError, AgentOptions, EndpointError, EndpointOptions};

use crate::stage::{CHAT, KEY, accepted, gateway, large, large_blob, options, request, serving};
use crate::support::proxy::Proxy;
use crate::support::running::{Running, folder};
use crate::support::signer::Signing;
use crate::support::{Client, Gateway, bytes, eventually};

fn path(identity: &str, name: &str) -> String {
    format!("/v1/chats/{CHAT}/sets/{identity}/files/{name}")
}

fn outcome(gateway: &Gateway, outcome: &str) -> f64 {
    gateway.metric(&format!("sluice_locations_total{{kind=\"https\",outcome=\"{outcome}\"}}"))
}

async fn is_offline(gateway: &Gateway) {
    let ada = "agent:ada".parse().unwrap();
    eventually("ada gone", async || (!gateway.state().agents.registry.is_online(&ada)).then_some(())).await;
}

#[tokio::test]
async fn a_reader_is_served_from_the_endpoint_while_the_agent_is_offline() {
    let (dir, keys) = (folder(&[("large.bin", &large())]), tempfile::tempdir().unwrap());
    let gateway = gateway(keys.path()).await;
    let cable = Proxy::to(gateway.address().to_string()).await;
    let url = format!("http://{}", cable.address);
    let task = Some("task-7".parse().unwrap());
    let mut agent = Running::start(AgentOptions { task, ..options(&gateway, &url, dir.path()) });
    let identity = accepted(&mut agent).await;
    let (path, alice) = (path(&identity, "large.bin"), gateway.reader("user:alice"));
    assert!(gateway.get(&path, &alice).await.body == large());
    drop(cable);
    is_offline(&gateway).await;
    let whole = gateway.get(&path, &alice).await;
    assert_eq!((whole.status.as_u16(), whole.header("sluice-verified")), (200, "full"));
    assert!(whole.body == large());
    let part = gateway.download_range(&path, &alice, "bytes=300000-300009").await.whole().await;
    assert_eq!((part.status.as_u16(), &part.body[..]), (206, &large()[300_000..300_010]));
    assert_eq!(outcome(&gateway, "answered"), 3.0);
    assert_eq!(gateway.metric("sluice_reads_started_total"), 0.0, "the relay comes after the endpoint");
    agent.stop().await;
}

#[tokio::test]
async fn the_relay_carries_on_where_the_endpoint_dies() {
    let huge = bytes(5, 32 << 20);
    let (dir, keys) = (folder(&[("huge.bin", &huge)]), tempfile::tempdir().unwrap());
    let gateway = gateway(keys.path()).await;
    // What is announced is the proxy before the endpoint.
    let listen = {
        let free = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        free.local_addr().unwrap()
    };
    let proxy = Proxy::to(listen.to_string()).await;
    let url = Some(format!("http://{}", proxy.address));
    let serve = Some(EndpointOptions { url, ..EndpointOptions::new(listen) });
    let mut agent = Running::start(AgentOptions { serve, ..options(&gateway, &gateway.url, dir.path()) });
    assert_eq!(serving(&mut agent).await, format!("http://{}", proxy.address));
    let identity = accepted(&mut agent).await;
    let slow = gateway.client().receive_buffer(64 * 1024);
    let request = gateway.request(http::Method::GET, &path(&identity, "huge.bin"), &gateway.reader("user:alice"), None);
    let mut download = slow.send(request).await;
    let mut read = download.read(1 << 20).await;
    assert_eq!((outcome(&gateway, "answered"), gateway.metric("sluice_reads_started_total")), (1.0, 0.0));
    drop(proxy);
    let (rest, end) = download.rest().await;
    end.unwrap();
    read.extend(rest);
    assert!(read == huge, "other bytes than the file's");
    assert!(gateway.metric("sluice_reads_started_total") >= 1.0);
    agent.stop().await;
}

#[tokio::test]
async fn behind_a_proxy_it_goes_by_its_public_url_alone() {
    let (dir, keys) = (folder(&[("large.bin", &large())]), tempfile::tempdir().unwrap());
    let gateway = gateway(keys.path()).await;
    let listen = {
        let free = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        free.local_addr().unwrap()
    };
    let url = Some("https://Flow.example:443/agents/flow/".to_owned());
    let serve = Some(EndpointOptions { url, ..EndpointOptions::new(listen) });
    let mut agent = Running::start(AgentOptions { serve, ..options(&gateway, &gateway.url, dir.path()) });
    assert_eq!(serving(&mut agent).await, "https://flow.example/agents/flow");
    accepted(&mut agent).await;
    for (authority, base, status) in [
        ("flow.example", "/agents/flow", 200),
        ("flow.example", "", 404),
        ("other.example", "/agents/flow", 401),
        (&listen.to_string(), "/agents/flow", 401),
    ] {
        let target = format!("{base}{}", large_blob());
        let signing = Signing::new(&[KEY], &gateway.url, "GET", authority, &target);
        let host = [("host", authority.to_owned())];
        let answer = Client::of(listen).send(request(listen, &signing, &host)).await.whole().await;
        assert_eq!(answer.status.as_u16(), status, "{authority} {base}");
    }
    agent.stop().await;
}

#[tokio::test]
async fn an_endpoint_that_could_not_be_announced_is_not_opened() {
    let dir = folder(&[("a", b"one")]);
    let run = async |listen: &str, url: Option<&str>| {
        let serve = EndpointOptions { url: url.map(str::to_owned), ..EndpointOptions::new(listen.parse().unwrap()) };
        let options = AgentOptions {
            name: Some("ada".parse().unwrap()),
            ..AgentOptions::new(dir.path(), "http://127.0.0.1:9", "t")
        };
        let AgentError::Endpoint(error) = Running::start(AgentOptions { serve: Some(serve), ..options }).error().await
        else {
            panic!("{listen} {url:?} is another error");
        };
        assert_eq!(error.to_string().lines().count(), 1);
        error
    };
    assert!(matches!(run("0.0.0.0:0", None).await, EndpointError::NotLoopback(_)));
    assert!(matches!(run("127.0.0.1:0", Some("http://agent.example")).await, EndpointError::Url(_)));
    let secret = run("127.0.0.1:0", Some("https://me:hunter2@agent.example")).await;
    assert!(matches!(secret, EndpointError::Url(_)) && !secret.to_string().contains("hunter2"));
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let taken = taken.local_addr().map(|address| (taken, address.to_string())).unwrap();
    assert!(matches!(run(&taken.1, None).await, EndpointError::Bind { .. }));
}
