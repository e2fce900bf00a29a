//! The platform's own SDK as the peer: its skill connects, is given a session, and finds back after a restart.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod process;

use std::process::Command;

use process::{AGENT, Gateway, Process, python, request};
use serde_json::{Value, json};

/// The skill with a token, or signing. The name it is told means nothing beside a token's.
fn skill(gateway: &Gateway, token: Option<&str>) -> Option<Process> {
    let mut script: Command = python("portal_connect.py")?;
    let name = if token.is_some() { "any-name" } else { AGENT };
    script.arg(format!("http://{}", gateway.address)).arg(name).env_remove("SLUICE_TOKEN");
    script.envs(token.map(|token| ("SLUICE_TOKEN", token)));
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
    agent(gateway)["online"] == true
}

fn agent(gateway: &Gateway) -> Value {
    let token = gateway.token(&["operator"]);
    let (status, body) = request(gateway.address, "GET", &format!("/v1/agents/{AGENT}"), &token, &json!({}));
    assert_eq!(status, 200, "{body}");
    serde_json::from_str(&body).unwrap()
}

#[test]
fn the_sdks_skill_gets_a_session_and_another_after_a_restart() {
    let gateway = Gateway::start();
    let Some(mut skill) = skill(&gateway, Some(&gateway.agent_token())) else { return };
    let first = next_session(&mut skill);
    assert!(online(&gateway));

    let gateway = gateway.restart();
    let second = next_session(&mut skill);
    assert_ne!(first, second);
    assert!(online(&gateway));
}

#[test]
fn the_sdks_skill_signs_its_connections() {
    let gateway = Gateway::start_with(&["--allow-hosts", "127.0.0.2"]);
    let Some(mut skill) = skill(&gateway, None) else { return };
    let url = skill.wait_for("agent URL", |line| line.strip_prefix("agent ").map(str::to_owned));
    let first = next_session(&mut skill);
    assert_eq!(agent(&gateway)["principal"], format!("agent:{url}"));

    // It signs each upgrade afresh, so it finds back.
    let gateway = gateway.restart();
    assert_ne!(next_session(&mut skill), first);
    assert_eq!(agent(&gateway)["online"], true);
}

#[test]
fn the_sdks_skill_is_told_why_its_signature_is_refused() {
    // Its key set is at an address that is not public, and nobody allowed that.
    let gateway = Gateway::start();
    let Some(mut skill) = skill(&gateway, None) else { return };
    let refused = skill.wait_for("refusal", |line| line.strip_prefix("refused ").map(str::to_owned));
    assert!(refused.starts_with("unauthorized signature_agent_invalid: "), "{refused}");
}
