//! What opens something is in no log line, whichever way it came.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod process;

use std::fs;
use std::net::TcpStream;

use process::{AGENT, CHAT, Gateway, READER, exchange, get, request};
use serde_json::{Value, json};
use tokio_tungstenite::tungstenite;

#[test]
fn no_secret_is_logged() {
    let gateway = Gateway::start_with(&["--links", "--log-level", "trace,tungstenite::protocol=trace"]);
    gateway.open_chat();
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("a.txt"), "text").unwrap();
    let (agent, set) = gateway.agent(folder.path(), gateway.address);
    let (operator, reader, address) = (gateway.token(&["operator"]), gateway.reader_token(), gateway.address);

    let body = json!({"set": set, "path": "a.txt"});
    let (status, link) = request(address, "POST", &format!("/v1/chats/{CHAT}/links"), &reader, &body);
    assert_eq!(status, 201, "{link}");
    let link: Value = serde_json::from_str(&link).unwrap();
    let link = link["url"].as_str().unwrap().rsplit('/').next().unwrap().to_owned();
    assert_eq!(get(address, &format!("/l/{link}")), (200, "text".to_owned()));

    let (_, code) = request(address, "POST", "/v1/signin-codes", &operator, &json!({"principal": READER}));
    let code: Value = serde_json::from_str(&code).unwrap();
    let code = code["url"].as_str().unwrap().split('=').nth(1).unwrap().to_owned();
    assert_eq!(get(address, &format!("/signin?code={code}")).0, 200);
    let form = format!("code={code}");
    let (status, head) = exchange_head(&gateway, &form);
    assert_eq!(status, 303, "{head}");
    let cookie = head.split("sluice=").nth(1).unwrap().split(';').next().unwrap().to_owned();
    assert_eq!(cookie.len(), 43);
    let sets = format!("GET /v1/chats/{CHAT}/sets HTTP/1.0\r\nHost: {address}\r\nCookie: sluice={cookie}\r\n\r\n");
    assert_eq!(exchange(address, &sets).0, 200);
    // Where a token has no business to be.
    get(address, &format!("/nothing/{reader}?token={reader}"));
    get(address, &format!("/ws?token={reader}"));

    // In the first frame, as SDKs send it.
    let token = gateway.agent_token();
    let (mut socket, _) =
        tungstenite::client(format!("ws://{address}/ws"), TcpStream::connect(address).unwrap()).unwrap();
    let create = json!({"type": "session.create", "event_id": "e", "session": {"agent": AGENT, "token": token}});
    socket.send(tungstenite::Message::text(create.to_string())).unwrap();
    let created = socket.read().unwrap().into_text().unwrap();
    assert!(created.contains("session.created"), "{created}");

    drop((agent, socket));
    let lines = gateway.stop();
    assert!(lines.iter().any(|line| line.contains("DEBUG") && line.contains("sluice::")), "there is more than info");
    assert!(lines.iter().any(|line| line.contains("/l/{secret}")), "the route's pattern is what stands there");
    for (what, secret) in
        [("link", &link), ("code", &code), ("cookie", &cookie), ("reader", &reader), ("operator", &operator)]
    {
        assert!(!lines.iter().any(|line| line.contains(secret.as_str())), "a {what} is in the log");
    }
    // The agent's token differs by the second it was made in; its claims do not.
    let claims = token.split('.').nth(1).unwrap().get(..40).unwrap();
    assert!(!lines.iter().any(|line| line.contains(claims)), "an agent's token is in the log");
}

/// Signs in, and hands back the answer's head.
fn exchange_head(gateway: &Gateway, form: &str) -> (u16, String) {
    use std::io::{Read as _, Write as _};
    let address = gateway.address;
    let mut socket = std::net::TcpStream::connect(address).unwrap();
    write!(
        socket,
        "POST /signin HTTP/1.0\r\nHost: {address}\r\nOrigin: http://{address}\r\n\
         Content-Type: application/x-www-form-urlencoded\r\nContent-Length: {}\r\n\r\n{form}",
        form.len()
    )
    .unwrap();
    let mut answer = String::new();
    socket.read_to_string(&mut answer).unwrap();
    (answer.split(' ').nth(1).unwrap().parse().unwrap(), answer)
}
