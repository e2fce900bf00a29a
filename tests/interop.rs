//! The platform's own SDK as the peer: its skill connects, is given a session, and finds back after a restart.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod process;

use std::process::Command;

use process::{AGENT, Gateway, Process, python, request};
use serde_json::{Value, json};

fn skill(gateway: &Gateway, token: &str) -> Option<Process> {
    let mut script: Command = python("portal_connect.py")?;
    script.arg(format!("http://{}", gateway.address)).arg("any-name").env("SLUICE_TOKEN", token);
    Some(Process::spawn(script))
}

/// The id of the next session that the skill is given. The name is the token's, whatever the skill was told.
fn next_session(skill: &mut Process) -> String {
    skill.wait_for("session", |line| {
        let words: Vec<_> = line.split(' ').collect();
        match words[..] {
            ["session", id, name] => {
                assert_eq!(name, AGENT);
                Some(id.to_owned())
            }
            _ => None,
        }
    })
}

fn online(gateway: &Gateway) -> bool {
    let token = gateway.token(&["operator"]);
    let (status, body) = request(gateway.address, "GET", &format!("/v1/agents/{AGENT}"), &token, &json!({}));
    assert_eq!(status, 200, "{body}");
    serde_json::from_str::<Value>(&body).unwrap()["online"] == true
}

#[test]
fn the_sdks_skill_gets_a_session_and_another_after_a_restart() {
    let gateway = Gateway::start();
    let Some(mut skill) = skill(&gateway, &gateway.agent_token()) else { return };
    let first = next_session(&mut skill);
    assert!(online(&gateway));

    let gateway = gateway.restart();
    let second = next_session(&mut skill);
    assert_ne!(first, second);
    assert!(online(&gateway));
}
