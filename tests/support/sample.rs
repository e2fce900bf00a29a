//! Content that is the same in every run, and sets over it.

use std::sync::Arc;

use serde_json::{Value, json};
use sha2::Digest as _;

/// `len` bytes that depend on `seed` only. No two 8-byte words of one sample are likely to be equal, so bytes that land
/// in a wrong place do not go unnoticed.
pub fn bytes(seed: u64, len: usize) -> Vec<u8> {
    // splitmix64, by position.
    let word = |n: u64| {
        let mut z = seed.wrapping_mul(0xA076_1D64_78BD_642F).wrapping_add(n.wrapping_mul(0x9E37_79B9_7F4A_7C15));
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        (z ^ (z >> 31)).to_le_bytes()
    };
    let mut bytes: Vec<u8> = (1..=len.div_ceil(8) as u64).flat_map(word).collect();
    bytes.truncate(len);
    bytes
}

/// The lower-case hex SHA-256.
pub fn sha256(bytes: &[u8]) -> String {
    hex::encode(sha2::Sha256::digest(bytes))
}

/// A file of a sample set.
#[derive(Debug, Clone)]
pub struct SampleFile {
    pub path: String,
    pub bytes: Arc<Vec<u8>>,
    pub sha256: String,
}

/// A manifest and the files it lists.
///
/// ```ignore
/// let set = SampleSet::of([("a.bin", bytes(1, 1 << 20)), ("b/c.txt", b"text".to_vec())]);
/// let set = SampleSet::of([("a.bin", bytes(1, 1 << 20))]).chunked(256 * 1024).task("task-1");
/// ```
#[derive(Debug, Clone)]
pub struct SampleSet {
    pub files: Vec<SampleFile>,
    /// Change it at will: [`canonical`](Self::canonical) and [`identity`](Self::identity) follow.
    pub manifest: Value,
}

impl SampleSet {
    /// A set of one file, `file`, and of another set that is nested at `path`.
    pub fn around(inner: &Self, path: &str, file: &str) -> Self {
        let mut outer = Self::of([(file, file.as_bytes().to_vec())]);
        outer.manifest["entries"].as_array_mut().unwrap().push(json!({
            "path": path, "size": inner.canonical().len(), "sha256": inner.identity(), "kind": "manifest",
            "mediaType": "application/vnd.webagents.artifact-set+json",
        }));
        outer
    }

    /// A set without chunk lists and with the relay of the announcing agent as its implied location.
    pub fn of<P: Into<String>>(files: impl IntoIterator<Item = (P, Vec<u8>)>) -> Self {
        let files: Vec<_> = files
            .into_iter()
            .map(|(path, bytes)| SampleFile { path: path.into(), sha256: sha256(&bytes), bytes: Arc::new(bytes) })
            .collect();
        let entries: Vec<_> = files
            .iter()
            .map(|file| {
                json!({
                    "path": file.path, "size": file.bytes.len(), "sha256": file.sha256,
                    "mediaType": "application/octet-stream",
                })
            })
            .collect();
        let manifest = json!({
            "kind": "webagents.artifact-set/v1", "createdAt": "2026-10-17T10:00:00Z", "expiresAt": null,
            "producer": {"agent": "https://agent.example/agents/sample"}, "entries": entries,
        });
        Self { files, manifest }
    }

    /// Adds chunk lists of this chunk size to the files that are longer.
    pub fn chunked(mut self, chunk_size: usize) -> Self {
        for (file, entry) in self.files.iter().zip(self.manifest["entries"].as_array_mut().unwrap()) {
            if file.bytes.len() > chunk_size {
                let hashes: Vec<_> = file.bytes.chunks(chunk_size).map(sha256).collect();
                entry["chunks"] = json!({"chunkSize": chunk_size, "hashes": hashes});
            }
        }
        self
    }

    /// Names the task the set answers in the manifest.
    pub fn task(mut self, task: &str) -> Self {
        self.manifest["producer"]["task"] = json!(task);
        self
    }

    /// Sets any member of the manifest.
    pub fn with(mut self, member: &str, value: Value) -> Self {
        self.manifest[member] = value;
        self
    }

    /// The manifest in its canonical form.
    pub fn canonical(&self) -> Vec<u8> {
        serde_json_canonicalizer::to_vec(&self.manifest).unwrap()
    }

    /// The manifest's identity.
    pub fn identity(&self) -> String {
        sha256(&self.canonical())
    }

    /// The file at a path.
    pub fn file(&self, path: &str) -> &SampleFile {
        self.files.iter().find(|file| file.path == path).unwrap_or_else(|| panic!("the set has no {path}"))
    }
}
