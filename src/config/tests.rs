use std::path::Path;

use clap::Parser;

use super::*;

#[derive(Debug, Parser)]
struct Command {
    #[command(flatten)]
    config: ConfigArgs,
}

fn flags(args: &[&str]) -> ConfigArgs {
    Command::try_parse_from([&["sluice"], args].concat()).unwrap().config
}

fn file(text: &str) -> Result<Layer, ConfigError> {
    file::parse(Path::new("sluice.toml"), text)
}

#[test]
fn without_settings_there_are_defaults() {
    let settings = Settings::resolve(Layer::default()).unwrap();
    assert_eq!(settings.listen.to_string(), "127.0.0.1:8080");
    assert_eq!(settings.ops_listen.to_string(), "127.0.0.1:9090");
    assert_eq!(settings.public_url(settings.listen).to_string(), "http://127.0.0.1:8080");
    assert_eq!(settings.database_url.expose(), "sqlite://./sluice-data/sluice.db");
    assert_eq!(settings.token_secret_file, Path::new("./sluice-data/token.secret"));
    assert_eq!(settings.resume_window, Duration::from_secs(60));
    assert_eq!(settings.memory_budget, 512 << 20);
    assert_eq!(settings.max_transfers, 1024);
    assert!(!settings.require_task);
}

#[test]
fn a_flag_wins_over_the_file_and_the_file_over_the_default() {
    let lower = file("listen = \"127.0.0.1:1\"\nresume-window = \"2m\"\nmemory-budget = 1048576\n").unwrap();
    let upper = flags(&["--listen", "127.0.0.1:2", "--require-task"]).layer;
    let settings = Settings::resolve(upper.over(lower)).unwrap();
    assert_eq!(settings.listen.port(), 2);
    assert_eq!(settings.resume_window, Duration::from_secs(120));
    assert_eq!(settings.memory_budget, 1 << 20);
    assert_eq!(settings.max_transfers, 4);
    assert!(settings.require_task);
    assert_eq!(settings.agent_wait, Duration::from_secs(10));
}

#[test]
fn a_switch_can_be_turned_off_again() {
    let lower = file("require-task = true").unwrap();
    let settings = Settings::resolve(flags(&["--require-task=false"]).layer.over(lower)).unwrap();
    assert!(!settings.require_task);
}

#[test]
fn the_data_directory_moves_what_lies_in_it() {
    let settings = Settings::resolve(flags(&["--data-dir", "/srv/s"]).layer).unwrap();
    assert_eq!(settings.database_url.expose(), "sqlite:///srv/s/sluice.db");
    assert_eq!(settings.token_secret_file, Path::new("/srv/s/token.secret"));
}

#[test]
fn an_unknown_key_is_refused_by_name() {
    let error = file("listen = \"127.0.0.1:1\"\nresume_window = \"2m\"\n").unwrap_err();
    assert_eq!(
        error.to_string(),
        "sluice.toml, line 2: there is no setting resume_window (write resume-window; see sluice serve --help)"
    );
    let error = file("listen-on = 1\n").unwrap_err();
    assert_eq!(error.to_string(), "sluice.toml, line 1: there is no setting listen-on (see sluice serve --help)");
}

#[test]
fn a_wrong_value_is_refused_by_line() {
    for text in ["\nread-timeout = 30\n", "\nlisten = \"localhost\"\n", "\nmemory-budget = \"much\"\n", "\nlisten =\n"]
    {
        let error = file(text).unwrap_err().to_string();
        assert!(error.starts_with("sluice.toml, line 2: "), "{error}");
        assert_eq!(error.lines().count(), 1, "{error}");
    }
}

#[test]
fn a_value_of_another_type_is_refused_by_its_key_and_not_repeated() {
    for (text, reason) in [
        ("links = \"hunter2\"", "links: it takes true or false, without quotes, and this is of the type string"),
        (
            "max-transfers = \"hunter2\"",
            "max-transfers: it takes a whole number, without quotes, and this is of the type string",
        ),
        (
            "read-timeout = 30",
            "read-timeout: it takes a duration in quotes, such as \"5m\", and this is of the type integer",
        ),
        (
            "trusted-proxies = \"hunter2\"",
            "trusted-proxies: it takes a list of texts in brackets, and this is of the type string",
        ),
        (
            "ops-allow-host = [\n  \"a\",\n  2,\n]",
            "ops-allow-host: it takes a text in quotes, and this is of the type integer",
        ),
        ("memory-budget = \"hunter2\"", "memory-budget: "),
    ] {
        let error = file(text).unwrap_err().to_string();
        assert!(error.contains(&format!(": {reason}")) && !error.contains("hunter2"), "{error}");
    }
    // Nor is a line of a longer value, whatever is wrong behind it.
    let error = file("database-url = \"\"\"\nhunter2==\n\"\"\"\nnonsense").unwrap_err().to_string();
    assert!(error.contains("database-url: ") && !error.contains("hunter2"), "{error}");
}

#[test]
fn what_is_no_toml_is_told_in_our_words() {
    const NO_TOML: &str = "this is no TOML: write setting = value, texts, durations and sizes in quotes, numbers, true \
                           and false without";
    for (text, reason) in [
        ("links = yes", &*format!("links: {NO_TOML}")),
        ("\nread-timeout = 30s", &format!("read-timeout: {NO_TOML}")),
        ("listen =", &format!("listen: {NO_TOML}")),
        ("oops", NO_TOML),
        ("links = true\nlinks = false", "links: it is set twice"),
        ("chat-agent-percent = 300", "chat-agent-percent: the number is too small or too large"),
        ("max-transfers = -1", "max-transfers: the number is too small or too large"),
        ("log-format = \"xml\"", "log-format: it takes one of these: `text` or `json`"),
        ("signed-agents = \"all\"", "signed-agents: it takes one of these: `none`, `known`, `any`"),
    ] {
        let error = file(text).unwrap_err().to_string();
        assert!(error.contains(&format!(": {reason} (see ")), "{text}: {error}");
    }
}

#[test]
fn an_error_in_the_file_never_quotes_the_line() {
    let error = file("database-url = \"postgres://u:hunter2@h/d\" extra\n").unwrap_err();
    assert!(!format!("{error} {error:?}").contains("hunter2"));
}

#[test]
fn no_password_is_shown_by_debug() {
    let layer = flags(&["--database-url", "postgres://u:hunter2@h/d"]).layer;
    let shown = format!("{layer:?} {:?}", Settings::resolve(layer.clone()).unwrap());
    assert!(!shown.contains("hunter2"), "{shown}");
}

#[test]
fn values_that_cannot_work_are_refused_naming_the_setting() {
    for (args, setting) in [
        (["--ping-interval", "0s"], "ping-interval"),
        (["--database-url", "mysql://u:pw@h/d"], "database-url"),
        (["--max-connections", "0"], "max-connections"),
        (["--chat-agent-percent", "0"], "chat-agent-percent"),
        (["--chat-agent-percent", "101"], "chat-agent-percent"),
        (["--max-transfers", "0"], "max-transfers"),
        (["--max-transfers", "2049"], "max-transfers"),
        (["--memory-budget", "1KiB"], "memory-budget"),
        (["--database-url", "sqlite::memory:"], "database-url"),
        (["--ops-listen", "127.0.0.1:8080"], "ops-listen"),
        (["--log-level", "sluice=loud"], "log-level"),
        // The name of a module, for the parser: everything else would be off.
        (["--log-level", "loud"], "log-level"),
        (["--log-level", ""], "log-level"),
        (["--token-issuer", "https://issuer.example"], "token-jwks-url"),
        (["--token-jwks-url", "https://issuer.example/keys"], "token-issuer"),
        (["--ops-allow-host", "a:9090"], "ops-allow-host"),
    ] {
        let error = Settings::resolve(flags(&args).layer).unwrap_err().to_string();
        assert!(error.contains(&format!("--{setting}")), "{error}");
        assert!(!error.contains("pw@"), "{error}");
    }
}

#[test]
fn one_address_holds_a_part_of_all_connections() {
    let of_address = |args: &[&str]| Settings::resolve(flags(args).layer).unwrap().address_connections().0;
    assert_eq!(of_address(&[]), 1024);
    assert_eq!(of_address(&["--max-connections", "500"]), 125);
    assert_eq!(of_address(&["--max-connections", "1"]), 1);
    assert_eq!(of_address(&["--max-connections", "500", "--address-connections", "400"]), 400, "somebody's choice");
}

#[test]
fn hosts_are_allowed_one_by_one() {
    let lower = file("allow-hosts = [\"files.internal:8080\", \"10.0.0.0/8\"]").unwrap();
    let settings = Settings::resolve(lower.clone()).unwrap();
    assert!(settings.allow_hosts.permits("files.internal", [192, 168, 0, 1].into(), 8080, false));
    assert!(settings.allow_hosts.permits("any.example", [10, 0, 0, 1].into(), 443, true));
    let upper = flags(&["--allow-hosts", "[::1]:80,127.0.0.1"]).layer;
    let settings = Settings::resolve(upper.over(lower)).unwrap();
    assert!(settings.allow_hosts.permits("any.example", [127, 0, 0, 1].into(), 443, true));
    assert!(!settings.allow_hosts.permits("any.example", [10, 0, 0, 1].into(), 443, true));
    assert!(Command::try_parse_from(["sluice", "--allow-hosts", "10.0.0.1/8"]).is_err());
    assert!(file("allow-hosts = [\"https://a.example\"]").is_err());
}

#[test]
fn a_missing_file_is_named() {
    let error = Settings::load(flags(&["--config", "/nonexistent/sluice.toml"])).unwrap_err().to_string();
    assert!(error.contains("/nonexistent/sluice.toml") && error.contains("--config"), "{error}");
}
