//! How an agent comes to its platform, or does not.

use super::*;

#[tokio::test]
async fn a_refused_credential_ends_the_agent() {
    let dir = folder(&[("a", b"a")]);
    let platform = Platform::start().await;
    let agent = Running::start(options(dir.path(), &platform));
    platform.refuse(401).await;
    assert!(matches!(agent.error().await, AgentError::TokenRefused(reason) if reason.contains("401")));

    let agent = Running::start(options(dir.path(), &platform));
    let mut peer = platform.accept().await;
    peer.frame("session.create").await;
    peer.close(4001).await;
    assert!(matches!(agent.error().await, AgentError::TokenRefused(reason) if reason == "closed by the test"));

    let agent = Running::start(options(dir.path(), &platform));
    let mut peer = platform.accept().await;
    peer.frame("session.create").await;
    peer.send(json!({"type": "session.error", "error": {"code": "forbidden", "message": "the name is taken"}})).await;
    let error = agent.error().await;
    assert!(matches!(&error, AgentError::SessionRefused { code, .. } if code == "forbidden"));
    assert!(error.to_string().contains("--name"), "{error}");
    assert!(!error.to_string().contains("the-token"));

    let agent = Running::start(options(dir.path(), &platform));
    let mut peer = platform.accept().await;
    peer.frame("session.create").await;
    peer.send(json!({"type": "session.error", "error": {"code": "token_expired", "message": "it has expired"}})).await;
    let error = agent.error().await.to_string();
    assert!(error.contains("get a token") && !error.contains("--name"), "{error}");

    let agent = Running::start(options(dir.path(), &platform));
    let peer = platform.accept_session("s-1").await;
    peer.close(4009).await;
    assert!(matches!(agent.error().await, AgentError::Superseded));
}

#[tokio::test]
async fn what_passes_by_itself_is_tried_again() {
    let dir = folder(&[("a", b"a")]);
    let platform = Platform::start().await;
    let agent = Running::start(options(dir.path(), &platform));
    platform.refuse(503).await;
    let mut peer = platform.accept().await;
    peer.frame("session.create").await;
    peer.send(json!({"type": "session.error", "error": {"code": "rate_limited", "message": "later"}})).await;
    let mut peer = platform.accept_session("s-1").await;
    peer.frame("artifact.manifest").await;
    agent.stop().await;
}

#[tokio::test]
async fn without_a_session_it_gives_up() {
    let dir = folder(&[("a", b"a")]);
    let platform = Platform::start().await;
    let short =
        |platform| AgentOptions { session_timeout: Duration::from_millis(200), ..options(dir.path(), platform) };
    // A platform that never answers.
    let agent = Running::start(short(&platform));
    let _silent = platform.accept().await;
    let error = agent.error().await;
    assert!(matches!(error, AgentError::NotConnected { .. }) && error.to_string().starts_with("not_connected"));
    // Nobody there.
    let options = short(&platform);
    drop(platform);
    let mut agent = Running::start(options);
    agent.event(|event| matches!(event, AgentEvent::Disconnected { reason, .. } if reason.contains("reach"))).await;
    assert!(matches!(agent.error().await, AgentError::NotConnected { .. }));
}

#[tokio::test]
async fn https_is_dialled_with_tls() {
    let dir = folder(&[("a", b"a")]);
    let platform = Platform::start().await;
    let gateway = platform.url.replace("http:", "https:");
    let mut agent = Running::start(AgentOptions { gateway, ..options(dir.path(), &platform) });
    // A platform without TLS cannot make sense of it, and says nothing that would be TLS.
    assert!(platform.try_accept().await.is_err(), "TLS was taken for a WebSocket");
    agent.event(|event| matches!(event, AgentEvent::Disconnected { reason, .. } if reason.contains("http://"))).await;
    agent.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_platform_behind_tls_is_believed_for_a_certificate_that_the_system_trusts() {
    let dir = folder(&[("a", b"a")]);
    let platform = Platform::start().await;
    let front = Origin::tls_before("localhost", platform.url.trim_start_matches("http://").parse().unwrap()).await;
    let authority = format!("localhost:{}", front.address.port());
    let roots = folder(&[("roots.pem", front.pem().as_bytes())]);
    let agent = |trusted: &Path| {
        let mut command = sluice(&["agent", "--name", "ada", "--data", "--gateway", &format!("https://{authority}")]);
        command.arg(dir.path()).env("SLUICE_TOKEN", "the-token").env("SSL_CERT_FILE", trusted);
        Process::spawn(command)
    };

    let serving = agent(&roots.path().join("roots.pem"));
    let mut control = platform.accept_session("s-1").await;
    assert_eq!(control.headers["host"], authority.as_str());
    let mut data = platform.accept().await;
    assert_eq!((data.path.as_str(), &data.headers["host"]), ("/ws?conn=data", &control.headers["host"]));
    data.frame("data.hello").await;
    let announcement = control.frame("artifact.manifest").await;
    let (sha256, size) = (announcement["sha256"].as_str().unwrap(), announcement["size"].as_u64().unwrap());
    let (bytes, end) = data.read(sha256, 0, size, 4).await;
    assert_eq!((support::sha256(&bytes).as_str(), end), (sha256, ReadEnd::End { bytes: size }));
    drop(serving);

    let mut refused = agent(&dir.path().join("a"));
    let reason = refused.wait_for("reason", |line| line.contains("TLS").then(|| line.to_owned()));
    assert!(reason.contains("certificate") && reason.contains(&authority), "{reason}");
}

#[tokio::test]
async fn a_port_that_speaks_no_http_is_told_as_such() {
    let dir = folder(&[("a", b"a")]);
    let platform = Platform::start().await;
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let at = listener.local_addr().unwrap().to_string();
    let mut agent = Running::start(AgentOptions { gateway: format!("http://{at}"), ..options(dir.path(), &platform) });
    let (mut stream, _) = within(listener.accept()).await.unwrap();
    tokio::io::AsyncWriteExt::write_all(&mut stream, b"220 mail.example ESMTP\r\n").await.unwrap();
    let told = |event: &AgentEvent| matches!(event, AgentEvent::Disconnected { reason, .. } if reason.contains("speaks no HTTP") && reason.contains(&at));
    agent.event(told).await;
    agent.stop().await;
}
