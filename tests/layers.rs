//! Who may use whom. The order is that of `src/lib.rs`: a module uses modules of the groups above its own. Within a folder
//! there is no such list, but no circle either.
#![expect(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking")]

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fs;
use std::path::{Path, PathBuf};

/// Modules that may use less than what stands above them.
const NARROWER: [(&str, &[&str]); 1] = [("producer", &["protocol", "clock", "net"])];

/// What only some places may know, and which those are.
const ONLY_IN: [(&str, &[&str]); 4] = [
    ("sqlx", &["store/"]),
    ("axum", &["http/"]),
    // Agents and the demo's download stand at the other end of the wire.
    ("StatusCode", &["http/", "producer/", "demo/download.rs"]),
    // The agent's side dials; the upgrade answers.
    ("tokio_websockets", &["producer/link.rs", "http/connect/socket.rs"]),
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

/// A module's path below the crate, or any other as it is written.
type Module = Vec<String>;

/// The paths of a use tree at the front of a text, and what comes behind it.
fn tree(text: &str) -> (Vec<Module>, &str) {
    let is_word = |c: char| c.is_alphanumeric() || c == '_';
    let text = text.trim_start();
    if let Some(mut rest) = text.strip_prefix('{') {
        let mut all = Vec::new();
        loop {
            let (some, behind) = tree(rest);
            all.extend(some);
            let behind = behind.trim_start_matches('*').trim_start();
            match behind.strip_prefix(',') {
                Some(next) => rest = next,
                None => return (all, behind.strip_prefix('}').unwrap_or(behind)),
            }
        }
    }
    let (word, rest) = text.split_at(text.find(|c| !is_word(c)).unwrap_or(text.len()));
    if word.is_empty() {
        return (Vec::new(), rest);
    }
    let (mut below, rest) = rest.strip_prefix("::").map_or((Vec::new(), rest), tree);
    let rest = rest.trim_start().strip_prefix("as ").map_or(rest, |alias| alias.trim_start_matches(is_word));
    if below.is_empty() {
        below.push(Vec::new());
    }
    below.iter_mut().for_each(|path| path.insert(0, word.to_owned()));
    (below, rest)
}

/// The paths that begin with one of these words in a text, also within braces.
fn paths(text: &str, words: &[&str]) -> Vec<Module> {
    let mut found = Vec::new();
    for word in words {
        for (at, _) in text.match_indices(&format!("{word}::")) {
            let before = text[..at].chars().next_back();
            if !before.is_some_and(|c| c.is_alphanumeric() || c == '_' || c == ':') {
                found.extend(tree(&text[at..]).0);
            }
        }
    }
    found
}

/// The modules named after each `crate::` of a text.
fn uses(text: &str) -> Vec<String> {
    paths(text, &["crate"]).into_iter().filter_map(|path| path.into_iter().nth(1)).collect()
}

/// Every module's path, what it says, and where the names come from that it gives on.
struct Modules {
    texts: BTreeMap<Module, String>,
    given_on: HashMap<(Module, String), Module>,
}

impl Modules {
    fn of(sources: Vec<Source>) -> Self {
        let of = |source: Source| {
            let path = source.path.trim_end_matches(".rs").split('/').map(str::to_owned);
            (path.filter(|part| part != "mod").collect::<Module>(), source.text)
        };
        let texts: BTreeMap<Module, String> = sources.into_iter().map(of).collect();
        let mut given_on = HashMap::new();
        for (module, text) in &texts {
            for (at, use_) in text.match_indices("use ") {
                for path in tree(&text[at + use_.len()..]).0 {
                    let from: Module = module.iter().chain(&path[..path.len() - 1]).cloned().collect();
                    if path.len() > 1 && texts.contains_key(&from) {
                        given_on.insert((module.clone(), path[path.len() - 1].clone()), from);
                    }
                }
            }
        }
        Self { texts, given_on }
    }

    /// The module that a path means when it stands in another.
    fn meant(&self, within: &Module, path: &[String]) -> Module {
        let mut at = within.clone();
        for (place, word) in path.iter().enumerate() {
            let below: Module = at.iter().chain([word]).cloned().collect();
            match word.as_str() {
                "crate" if place == 0 => at.clear(),
                "super" => drop(at.pop()),
                "self" => {}
                _ if self.texts.contains_key(&below) => at = below,
                _ => return self.given_on.get(&(at.clone(), word.clone())).cloned().unwrap_or(at),
            }
        }
        at
    }

    /// Who uses whom within a folder: both by what stands directly in it, for a folder's parts are one to the others. A
    /// `mod.rs` names its parts and is named by them, so it does not count.
    fn edges(&self) -> BTreeMap<Module, BTreeSet<Module>> {
        let mut edges: BTreeMap<Module, BTreeSet<Module>> = BTreeMap::new();
        for (module, text) in &self.texts {
            for path in paths(text, &["crate", "super", "self"]) {
                let used = self.meant(module, &path);
                let shared = module.iter().zip(&used).take_while(|(a, b)| a == b).count();
                if shared > 0 && shared < module.len().min(used.len()) {
                    edges.entry(module[..=shared].to_vec()).or_default().insert(used[..=shared].to_vec());
                }
            }
        }
        edges
    }

    /// Modules that reach themselves, each with what it uses on the way.
    fn circles(&self) -> Vec<String> {
        let edges = self.edges();
        let none = BTreeSet::new();
        let reach = |from: &Module| {
            let (mut seen, mut next) = (BTreeSet::new(), vec![from.clone()]);
            while let Some(at) = next.pop() {
                next.extend(edges.get(&at).unwrap_or(&none).iter().filter(|to| seen.insert((*to).clone())).cloned());
            }
            seen
        };
        let reached: BTreeMap<&Module, BTreeSet<Module>> = edges.keys().map(|from| (from, reach(from))).collect();
        let mut circles = Vec::new();
        for (from, to) in edges.iter().flat_map(|(from, all)| all.iter().map(move |to| (from, to))) {
            if reached.get(to).is_some_and(|back| back.contains(from)) {
                circles.push(format!("{} uses {}", from.join("::"), to.join("::")));
            }
        }
        circles
    }
}

#[test]
fn the_files_of_a_folder_do_not_use_each_other_in_circles() {
    let modules = Modules::of(sources());
    assert!(modules.edges().len() > 50, "paths are not written as they were");
    let circles = modules.circles();
    assert!(circles.is_empty(), "{circles:#?}");
}

#[test]
fn circles_are_found_in_every_spelling() {
    let circles = |files: &[(&str, &str)]| {
        let source = |(path, text): &(&str, &str)| Source { path: (*path).to_owned(), text: (*text).to_owned() };
        Modules::of(files.iter().map(source).collect()).circles().len()
    };
    let facade = ("f/mod.rs", "pub use a::{A, x::Y};\nuse b::B;\nuse super::g::G;");
    let nested = ("f/a/x.rs", "use super::A;");
    let a = ("f/a.rs", "use super::{b::B, C};");
    assert_eq!(circles(&[facade, nested, a, ("f/b.rs", "use crate::g::G;\nuse super::F;")]), 0);
    for back in [
        "use super::a::A;",
        "use super::{self, A};",
        "use super::Y;",
        "crate::f::{a::x::Y, b as c}",
        "super::super::f::A::new()",
    ] {
        assert_eq!(circles(&[facade, nested, a, ("f/b.rs", back)]), 2, "{back}");
    }
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
    assert_eq!(uses(text), ["a", "a", "d", "e", "e", "h", "k"]);
}
