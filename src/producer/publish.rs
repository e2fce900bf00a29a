//! From a folder to a set: hashes the files, writes the manifest, makes both servable (specification section 1).

use std::collections::{HashMap, HashSet};
use std::fs::File;
use std::io::{self, Read as _};
use std::num::NonZero;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::Instant;

use tokio_util::sync::CancellationToken;

use super::endpoint::Base;
use super::folder::{self, Fingerprint, FolderError, FoundFile, SkipReason};
use super::progress::Progress;
use super::registry::{PublishedFile, Registry};
use super::{AgentEvent, AgentOptions, EventSink, media_type};
use crate::clock::Clock;
use crate::protocol::limits::CHUNK_SIZE_DEFAULT;
use crate::protocol::{
    AgentName, Chunks, Entry, EntryKind, Hasher, Location, LocationKind, Manifest, ManifestDraft, ManifestError,
    TaskId, timestamp,
};

/// Most threads that hash at once: more would wait for the disk.
const HASHERS: usize = 4;

/// A folder that could not be turned into a set.
#[derive(Debug, thiserror::Error)]
pub enum PublishError {
    /// The folder itself.
    #[error(transparent)]
    Folder(#[from] FolderError),
    /// Nothing in it to publish.
    #[error("{0:?} holds no files to serve")]
    Empty(PathBuf),
    /// A file was written to while it was hashed.
    #[error("{0:?} changed while it was being hashed")]
    Changed(PathBuf),
    /// The thread that hashes ended early.
    #[error("hashing was interrupted; start again")]
    Interrupted,
    /// The manifest breaks a rule.
    #[error("the set cannot be published: {0}; publish a smaller folder")]
    Manifest(#[from] ManifestError),
}

impl PublishError {
    /// What to do about it, where nobody watches the folder and the error itself does not say.
    pub(super) fn advice(&self) -> &'static str {
        match self {
            Self::Empty(_) => "; put them there first, or use --watch to wait for them",
            Self::Changed(_) => "; start again when it is written, or use --watch",
            Self::Folder(_) | Self::Interrupted | Self::Manifest(_) => "",
        }
    }

    /// Whether a watched folder may become publishable by itself.
    pub(super) fn is_passing(&self) -> bool {
        match self {
            Self::Empty(_) | Self::Changed(_) => true,
            Self::Folder(FolderError::Io { error, .. }) => error.kind() == io::ErrorKind::NotFound,
            Self::Folder(_) | Self::Manifest(_) | Self::Interrupted => false,
        }
    }
}

/// A set that can be announced and served.
#[derive(Debug, Clone)]
pub struct PublishedSet {
    /// What it lists.
    pub manifest: Arc<Manifest>,
}

/// Publishes one folder, again and again. Files that did not change are not hashed again.
pub(super) struct Publisher {
    dir: PathBuf,
    agent: AgentName,
    agent_url: String,
    /// The producer endpoint, if there is one.
    endpoint: Option<Base>,
    task: Option<TaskId>,
    hidden: bool,
    clock: Clock,
    registry: Arc<Registry>,
    events: EventSink,
    /// Ends hashing early.
    stop: CancellationToken,
    /// The last set's entries by path, with what tells whether a file is still the same.
    known: HashMap<String, (Fingerprint, Entry)>,
    /// What was left out the last time: told once, and not with every change.
    skipped: HashSet<(String, SkipReason)>,
}

impl Publisher {
    pub(super) fn new(
        options: &AgentOptions,
        agent: AgentName,
        agent_url: String,
        endpoint: Option<Base>,
        registry: Arc<Registry>,
        events: EventSink,
        stop: CancellationToken,
    ) -> Self {
        Self {
            dir: options.dir.clone(),
            agent,
            agent_url,
            endpoint,
            task: options.task.clone(),
            hidden: options.hidden,
            clock: options.clock.clone(),
            registry,
            events,
            stop,
            known: HashMap::new(),
            skipped: HashSet::new(),
        }
    }

    /// Publishes the folder as it is now. `None` when nothing changed since the last time. Blocks.
    pub(super) fn publish(&mut self) -> Result<Option<PublishedSet>, PublishError> {
        let mut skipped = HashSet::new();
        let mut skip = |path: String, reason| {
            if !self.skipped.contains(&(path.clone(), reason)) {
                (self.events)(AgentEvent::Skipped { path: path.clone(), reason });
            }
            skipped.insert((path, reason));
        };
        let mut found = folder::scan(&self.dir, self.hidden, &mut skip)?;
        let mut entries = Vec::with_capacity(found.len());
        let mut hashed = self.entries(&found)?.into_iter();
        found.retain(|file| match hashed.next() {
            Some(Ok(entry)) => {
                entries.push(entry);
                true
            }
            Some(Err(kind)) => {
                skip(file.path.clone(), SkipReason::Unreadable(kind));
                false
            }
            None => false,
        });
        self.skipped = skipped;
        if found.is_empty() {
            return Err(PublishError::Empty(self.dir.clone()));
        }
        let known: HashMap<_, _> = found
            .iter()
            .zip(&entries)
            .map(|(file, entry)| (file.path.clone(), (file.fingerprint, entry.clone())))
            .collect();
        // A touched file with the same bytes is no change of the set, but it is what has to be opened from now on.
        let same = known.len() == self.known.len()
            && known.iter().all(|(path, (_, entry))| self.known.get(path).is_some_and(|(_, old)| old == entry));
        self.known = known;
        for (file, entry) in found.into_iter().zip(&entries) {
            let published = PublishedFile { location: file.location, fingerprint: file.fingerprint };
            self.registry.add_file(entry.sha256, published);
        }
        if same {
            return Ok(None);
        }
        // Of the files and not of this moment: the same folder is the same set when it is served again.
        let modified = self.known.values().filter_map(|(fingerprint, _)| fingerprint.modified_millis());
        let modified = modified.filter(|millis| timestamp::format(*millis).is_some()).max();
        let created_at = modified.unwrap_or_else(|| self.clock.unix_millis());
        let manifest = ManifestDraft {
            created_at,
            expires_at: None,
            producer_agent: self.agent_url.clone(),
            producer_task: self.task.as_ref().map(|task| task.as_str().to_owned()),
            producer_name: Some(self.agent.as_str().to_owned()),
            entries: entries.into_iter().map(|entry| self.located(entry)).collect(),
            locations: vec![self.relay()],
        }
        .finish()?;
        self.registry.add_manifest(manifest.identity, manifest.canonical.clone());
        (self.events)(AgentEvent::Published {
            sha256: manifest.identity,
            files: manifest.entries.len(),
            bytes: manifest.entries.iter().map(|entry| entry.size).sum(),
        });
        Ok(Some(PublishedSet { manifest: Arc::new(manifest) }))
    }

    fn relay(&self) -> Location {
        Location { kind: LocationKind::Relay, target: self.agent.as_str().to_owned() }
    }

    /// The entry with its own locations, where it has any. The endpoint goes before the relay, as in the specification's
    /// example: it costs the gateway no place on the agent's one connection, and is asked by readers that fetch
    /// themselves. The relay carries on where it cannot be reached.
    fn located(&self, entry: Entry) -> Entry {
        let locations = self.endpoint.as_ref().map(|base| vec![base.location(&entry.sha256), self.relay()]);
        Entry { locations, ..entry }
    }

    /// One entry per file, in the same order, hashed on a few threads; or why the file cannot be read.
    fn entries(&self, found: &[FoundFile]) -> Result<Vec<Result<Entry, io::ErrorKind>>, PublishError> {
        let known = |file: &FoundFile| {
            self.known
                .get(&file.path)
                .filter(|(fingerprint, _)| *fingerprint == file.fingerprint)
                .map(|(_, e)| e.clone())
        };
        let sizes = found.iter().filter(|file| known(file).is_none()).map(|file| file.fingerprint.size);
        let progress = Progress::new(sizes, Instant::now());
        let tell = |bytes: u64| {
            if let Some(event) = progress.add_bytes(bytes, Instant::now()) {
                (self.events)(event);
            }
            if self.stop.is_cancelled() { Err(PublishError::Interrupted) } else { Ok(()) }
        };
        let next = AtomicUsize::new(0);
        let hash_some = || {
            let mut entries = Vec::new();
            loop {
                if self.stop.is_cancelled() {
                    return Err(PublishError::Interrupted);
                }
                let position = next.fetch_add(1, Ordering::Relaxed);
                let Some(file) = found.get(position) else {
                    return Ok(entries);
                };
                let entry = match known(file) {
                    Some(entry) => Ok(entry),
                    None => {
                        let hashed = hash(file, CHUNK_SIZE_DEFAULT, &tell);
                        progress.add_file();
                        match hashed {
                            Ok(entry) => Ok(entry),
                            Err(Unhashed::Unreadable(kind)) => Err(kind),
                            Err(Unhashed::Failed(error)) => return Err(error),
                        }
                    }
                };
                entries.push((position, entry));
            }
        };
        let threads = thread::available_parallelism().map_or(1, NonZero::get).min(HASHERS);
        let mut hashed = thread::scope(|scope| {
            let running: Vec<_> = (0..threads).map(|_| scope.spawn(hash_some)).collect();
            running.into_iter().try_fold(Vec::new(), |mut all, thread| {
                all.extend(thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))?);
                Ok::<_, PublishError>(all)
            })
        })?;
        hashed.sort_by_key(|(position, _)| *position);
        Ok(hashed.into_iter().map(|(_, entry)| entry).collect())
    }
}

/// Told how many more bytes were hashed; an error ends the hashing.
type Tell<'a> = dyn Fn(u64) -> Result<(), PublishError> + 'a;

/// Why a file has no entry.
#[derive(Debug)]
enum Unhashed {
    /// It alone is left out.
    Unreadable(io::ErrorKind),
    /// There is no set.
    Failed(PublishError),
}

impl From<PublishError> for Unhashed {
    fn from(error: PublishError) -> Self {
        Self::Failed(error)
    }
}

/// Reads a file once and makes its entry: the whole file's hash and, when it is longer than one chunk, the chunks'.
fn hash(file: &FoundFile, chunk_size: u64, tell: &Tell<'_>) -> Result<Entry, Unhashed> {
    let io_error = |error: io::Error| match error.kind() {
        io::ErrorKind::UnexpectedEof => PublishError::Changed(file.location.clone()).into(),
        kind => Unhashed::Unreadable(kind),
    };
    let changed = |_| PublishError::Changed(file.location.clone());
    let mut open = File::open(&file.location).map_err(io_error)?;
    folder::unchanged(&open, file.fingerprint).map_err(changed)?;

    let size = file.fingerprint.size;
    let (mut whole, mut chunk, mut hashes) = (Hasher::default(), Hasher::default(), Vec::new());
    let mut buffer = vec![0; 256 * 1024];
    let mut done = 0;
    while done < size {
        let chunk_end = size.min((done / chunk_size + 1) * chunk_size);
        while done < chunk_end {
            // At most the buffer's length, so the cast cannot lose anything.
            let part = &mut buffer[..(chunk_end - done).min(256 * 1024) as usize];
            open.read_exact(part).map_err(io_error)?;
            whole.update(part);
            if size > chunk_size {
                chunk.update(part);
            }
            done += part.len() as u64;
            tell(part.len() as u64)?;
        }
        hashes.push(chunk.finish());
    }
    folder::unchanged(&open, file.fingerprint).map_err(changed)?;
    Ok(Entry {
        path: file.path.clone(),
        size,
        sha256: whole.finish(),
        media_type: media_type::of(&file.path).to_owned(),
        kind: EntryKind::File,
        chunks: (size > chunk_size).then_some(Chunks { chunk_size, hashes }),
        locations: None,
    })
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::path::Path;
    use std::sync::Mutex;
    use std::sync::atomic::AtomicU64;

    use super::*;
    use crate::protocol::Sha256;

    fn publisher(dir: &Path) -> (Publisher, Arc<Mutex<Vec<AgentEvent>>>) {
        publisher_at(dir, None)
    }

    fn publisher_at(dir: &Path, endpoint: Option<Base>) -> (Publisher, Arc<Mutex<Vec<AgentEvent>>>) {
        let seen = Arc::new(Mutex::new(Vec::new()));
        let sink = seen.clone();
        let options = AgentOptions { clock: Clock::fixed(1_000), ..AgentOptions::new(dir, "http://gw", "t") };
        let events: EventSink = Arc::new(move |event| sink.lock().unwrap().push(event));
        let name = "mini".parse().unwrap();
        (
            Publisher::new(
                &options,
                name,
                "http://gw/agents/mini".into(),
                endpoint,
                Arc::default(),
                events,
                CancellationToken::new(),
            ),
            seen,
        )
    }

    #[test]
    fn chunks_cover_the_file_and_the_whole_hash_is_the_files() {
        let root = tempfile::tempdir().unwrap();
        let bytes: Vec<u8> = (0..600_000u32).map(|n| (n % 251) as u8).collect();
        fs::write(root.path().join("f.txt"), &bytes).unwrap();
        let file = folder::scan(root.path(), false, |_, _| ()).unwrap().remove(0);
        let told = AtomicU64::new(0);
        let tell = |n| {
            told.fetch_add(n, Ordering::Relaxed);
            Ok(())
        };

        let entry = hash(&file, 256 * 1024, &tell).unwrap();
        assert_eq!(told.into_inner(), 600_000);
        assert_eq!((entry.size, entry.sha256), (600_000, Sha256::of(&bytes)));
        assert_eq!(entry.media_type, "text/plain");
        let chunks = entry.chunks.unwrap();
        assert_eq!(chunks.hashes, bytes.chunks(256 * 1024).map(Sha256::of).collect::<Vec<_>>());

        // Exactly one chunk long: no list.
        assert_eq!(hash(&file, 600_000, &|_| Ok(())).unwrap().chunks, None);
    }

    #[test]
    fn a_set_lists_every_file_in_order_and_is_servable() {
        let root = tempfile::tempdir().unwrap();
        for n in 0..40 {
            fs::write(root.path().join(format!("{n:02}.txt")), format!("file {n}")).unwrap();
        }
        fs::write(root.path().join("empty"), "").unwrap();
        let (mut publisher, events) = publisher(root.path());
        let manifest = publisher.publish().unwrap().unwrap().manifest;
        assert_eq!(manifest.identity, Sha256::of(&manifest.canonical));
        let expected: Vec<_> = (0..40).map(|n| format!("{n:02}.txt")).chain(["empty".to_owned()]).collect();
        assert_eq!(manifest.entries.iter().map(|e| e.path.clone()).collect::<Vec<_>>(), expected);
        assert_eq!(manifest.locations, [Location { kind: LocationKind::Relay, target: "mini".into() }]);
        for entry in &manifest.entries {
            assert_eq!(publisher.registry.find(&entry.sha256).unwrap().size(), entry.size);
        }
        assert!(publisher.registry.find(&manifest.identity).is_some());
        let last = events.lock().unwrap().last().cloned();
        assert!(matches!(last, Some(AgentEvent::Published { files: 41, .. })), "{last:?}");
    }

    #[test]
    fn only_a_change_makes_a_new_set_and_the_old_bytes_stay_servable() {
        let root = tempfile::tempdir().unwrap();
        fs::write(root.path().join("a"), "one").unwrap();
        let (mut publisher, events) = publisher(root.path());
        let first = publisher.publish().unwrap().unwrap();
        events.lock().unwrap().clear();
        assert!(publisher.publish().unwrap().is_none());
        assert_eq!(*events.lock().unwrap(), [], "an unchanged file was hashed again");

        fs::write(root.path().join("b"), "two").unwrap();
        let second = publisher.publish().unwrap().unwrap();
        assert_ne!(first.manifest.identity, second.manifest.identity);
        fs::remove_file(root.path().join("b")).unwrap();
        assert!(publisher.publish().unwrap().is_some(), "a removed file is a change");
        let blob = publisher.registry.find(&Sha256::of(b"one")).unwrap();
        let mut bytes = Vec::new();
        blob.open().unwrap().append(0, 3, &mut bytes).unwrap();
        assert_eq!(bytes, b"one");
        assert!(publisher.registry.find(&first.manifest.identity).is_some());
    }

    #[test]
    fn a_rewritten_file_with_the_same_bytes_is_no_change_and_stays_servable() {
        let root = tempfile::tempdir().unwrap();
        let location = root.path().join("a");
        fs::write(&location, "one").unwrap();
        let (mut publisher, _) = publisher(root.path());
        assert!(publisher.publish().unwrap().is_some());
        fs::write(root.path().join("a.new"), "one").unwrap();
        fs::rename(root.path().join("a.new"), &location).unwrap();
        assert!(publisher.publish().unwrap().is_none());
        assert!(publisher.registry.find(&Sha256::of(b"one")).unwrap().open().is_ok());
    }

    #[test]
    fn an_unchanged_folder_is_the_same_set_whoever_publishes_it_when() {
        let root = tempfile::tempdir().unwrap();
        fs::write(root.path().join("a"), "one").unwrap();
        let identity = |now| {
            let (mut publisher, _) = publisher(root.path());
            publisher.clock = Clock::fixed(now);
            publisher.publish().unwrap().unwrap().manifest.identity
        };
        assert_eq!(identity(1_000), identity(2_000));
    }

    #[test]
    fn an_endpoint_goes_before_the_relay_in_every_entry() {
        let root = tempfile::tempdir().unwrap();
        fs::write(root.path().join("a"), "one").unwrap();
        let base = Base::parse("https://agent.example/flow").unwrap();
        let (mut publisher, _) = publisher_at(root.path(), Some(base));
        let manifest = publisher.publish().unwrap().unwrap().manifest;
        let relay = Location { kind: LocationKind::Relay, target: "mini".into() };
        let url = format!("https://agent.example/flow/artifacts/blobs/sha256:{}", Sha256::of(b"one"));
        let endpoint = Location { kind: LocationKind::Https, target: url };
        assert_eq!(manifest.entries[0].locations, Some(vec![endpoint, relay.clone()]));
        assert_eq!(manifest.locations, [relay]);
        assert!(publisher.publish().unwrap().is_none());
    }

    #[cfg(unix)]
    #[test]
    fn what_cannot_be_read_is_left_out_and_told_once() {
        use std::os::unix::fs::PermissionsExt as _;
        let root = tempfile::tempdir().unwrap();
        fs::write(root.path().join("a"), "one").unwrap();
        fs::write(root.path().join("closed"), "two").unwrap();
        fs::set_permissions(root.path().join("closed"), fs::Permissions::from_mode(0o000)).unwrap();
        if fs::File::open(root.path().join("closed")).is_ok() {
            // The superuser reads everything: a file that is gone when it is to be hashed stands for it.
            let found = folder::scan(root.path(), false, |_, _| ()).unwrap();
            fs::remove_file(root.path().join("closed")).unwrap();
            let entries = publisher(root.path()).0.entries(&found).unwrap();
            assert!(matches!(entries[..], [Ok(_), Err(io::ErrorKind::NotFound)]), "{entries:?}");
            return;
        }
        let (mut publisher, events) = publisher(root.path());
        let manifest = publisher.publish().unwrap().unwrap().manifest;
        assert_eq!(manifest.entries.iter().map(|entry| entry.path.as_str()).collect::<Vec<_>>(), ["a"]);
        fs::write(root.path().join("b"), "three").unwrap();
        publisher.publish().unwrap().unwrap();
        let events = events.lock().unwrap();
        let told = events.iter().filter(|event| matches!(event, AgentEvent::Skipped { .. })).collect::<Vec<_>>();
        let reason = SkipReason::Unreadable(io::ErrorKind::PermissionDenied);
        assert_eq!(told, [&AgentEvent::Skipped { path: "closed".into(), reason }]);
    }

    #[test]
    fn an_empty_folder_is_refused_but_may_fill() {
        let root = tempfile::tempdir().unwrap();
        let error = publisher(root.path()).0.publish().unwrap_err();
        assert!(matches!(error, PublishError::Empty(_)) && error.is_passing());
    }
}
