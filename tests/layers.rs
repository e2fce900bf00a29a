//! Who may use whom. The order is that of `src/lib.rs`: a module uses modules of the groups above its own.
#![expect(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking")]

use std::collections::HashMap;
use std::fs;
use std::path::{Path, PathBuf};

/// Modules that may use less than what stands above them.
const NARROWER: [(&str, &[&str]); 1] = [("producer", &["protocol", "clock", "net"])];

/// What only some places may know, and which those are.
const ONLY_IN: [(&str, &[&str]); 5] = [
    ("sqlx", &["store/"]),
    ("axum", &["http/"]),
    // Agents and the demo's download stand at the other end of the wire.
    ("StatusCode", &["http/", "producer/", "demo/download.rs"]),
    ("WebSocketUpgrade", &["http/connect.rs"]),
    // The agent's side dials; the upgrade tells what broke on a socket.
    ("tungstenite", &["producer/", "http/connect.rs"]),
];

/// What modules without I/O and clock do not know.
const IMPURE: [&str; 9] =
    ["tokio", "axum", "sqlx", "hyper", "SystemTime", "Instant::now", "std::fs", "TcpStream", "rand::"];
const PURE: [&str; 2] = ["protocol/", "read/"];

struct Source {
    /// Relative to `src`, with forward slashes.
    path: String,
    /// Without comments and unit tests.
    text: String,
}

impl Source {
    fn module(&self) -> &str {
        self.path.split(['/', '.']).next().unwrap()
    }
}

/// Every source but files that are unit tests as a whole.
fn sources() -> Vec<Source> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let mut folders = vec![root.clone()];
    let (mut sources, mut tests) = (Vec::new(), Vec::new());
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder).unwrap() {
            let path: PathBuf = entry.unwrap().path();
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|extension| extension == "rs") {
                let text = fs::read_to_string(&path).unwrap();
                let path = path.strip_prefix(&root).unwrap().to_str().unwrap().to_owned();
                let below = path.trim_end_matches("mod.rs").trim_end_matches(".rs").trim_end_matches('/').to_owned();
                for (at, mark) in text.match_indices("#[cfg(test)]\nmod ") {
                    let name = text[at + mark.len()..].split([';', ' ']).next().unwrap();
                    tests.push(format!("{below}/{name}.rs"));
                }
                let text = text.split("#[cfg(test)]\nmod tests {").next().unwrap();
                let text =
                    text.lines().filter(|line| !line.trim_start().starts_with("//")).collect::<Vec<_>>().join("\n");
                sources.push(Source { path, text });
            }
        }
    }
    // With what stands in their folders.
    let folders: Vec<_> = tests.iter().map(|test| format!("{}/", test.trim_end_matches(".rs"))).collect();
    let is_test = |path: &str| tests.iter().any(|test| test == path) || folders.iter().any(|of| path.starts_with(of));
    sources.retain(|source| !is_test(&source.path));
    assert!(sources.len() > 50, "the sources are not where they were");
    sources
}

/// The place of each module in the order: the number of its group.
fn order() -> HashMap<String, usize> {
    let text = include_str!("../src/lib.rs");
    let groups = text.split("\n\n").filter(|group| group.contains("mod ")).enumerate();
    let order: HashMap<_, _> = groups
        .flat_map(|(place, group)| group.lines().map(move |line| (line, place)))
        .filter_map(|(line, place)| Some((line.strip_prefix("pub mod ")?.strip_suffix(';')?.to_owned(), place)))
        .collect();
    assert!(order["protocol"] < order["store"] && order["clock"] == order["metrics"]);
    order
}

/// The modules named after each `crate::` of a text, also within braces.
fn uses(text: &str) -> Vec<String> {
    let word = |text: &str| text.chars().take_while(|c| c.is_alphanumeric() || *c == '_').collect::<String>();
    let mut found = Vec::new();
    for (at, _) in text.match_indices("crate::") {
        let rest = &text[at + "crate::".len()..];
        let Some(list) = rest.strip_prefix('{') else {
            found.push(word(rest));
            continue;
        };
        let mut depth = 0;
        let mut begins = true;
        for (at, c) in list.char_indices() {
            match c {
                '}' if depth == 0 => break,
                '{' => depth += 1,
                '}' => depth -= 1,
                ',' if depth == 0 => begins = true,
                c if c.is_whitespace() => {}
                _ if begins => {
                    found.push(word(&list[at..]));
                    begins = false;
                }
                _ => {}
            }
        }
    }
    found
}

#[test]
fn a_module_uses_only_what_stands_above_it() {
    let order = order();
    let mut broken = Vec::new();
    for source in sources() {
        let module = source.module();
        if ["lib", "main"].contains(&module) {
            continue;
        }
        let place = order.get(module).unwrap_or_else(|| panic!("{} is of no module in lib.rs", source.path));
        let narrower = NARROWER.iter().find(|(name, _)| *name == module).map(|(_, allowed)| allowed);
        for used in uses(&source.text) {
            let Some(above) = order.get(&used) else {
                panic!("{} uses crate::{used}, which is no module", source.path)
            };
            let allowed = narrower.map_or(above < place, |allowed| allowed.contains(&used.as_str()));
            if used != module && !allowed {
                broken.push(format!("{} uses {used}", source.path));
            }
        }
    }
    assert!(broken.is_empty(), "{broken:#?}");
}

#[test]
fn what_one_place_knows_no_other_does() {
    let mut broken = Vec::new();
    for Source { path, text } in sources() {
        let within = |places: &[&str]| places.iter().any(|place| path.starts_with(place));
        broken.extend(
            ONLY_IN
                .iter()
                .filter(|(word, places)| text.contains(word) && !within(places))
                .map(|(word, _)| format!("{path} knows {word}")),
        );
        if within(&PURE) {
            broken
                .extend(IMPURE.iter().filter(|word| text.contains(**word)).map(|word| format!("{path} knows {word}")));
        }
    }
    assert!(broken.is_empty(), "{broken:#?}");
}

#[test]
fn every_module_is_on_the_map() {
    let map = include_str!("../src/lib.rs").lines().filter(|line| line.starts_with("//! - ")).collect::<Vec<_>>();
    for (module, place) in order() {
        let line = map.iter().position(|line| line.contains(&format!("[`{module}`]")));
        assert_eq!(line, Some(place), "{module} stands elsewhere in the list of src/lib.rs");
    }
}

#[test]
fn paths_are_found_in_every_spelling() {
    let text = "use crate::a::{B, c};\nuse crate::{d, e::{f, g}, h as i};\nlet j = crate::k::l();";
    assert_eq!(uses(text), ["a", "d", "e", "h", "k"]);
}
