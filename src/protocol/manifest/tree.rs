//! A manifest and the manifests that its entries name, as one set of files under their full paths (specification
//! section 1, `kind: manifest`).
//!
//! Where the specification leaves room:
//! - A path of a nested manifest is joined to the directory of the entry that names it, and the joined path obeys every
//!   rule of paths, over all of the tree.
//! - All entries of a tree together are at most 10,000, as if the set had been written as one manifest: a subtree that
//!   is named in two places counts twice. Nested manifests are at most 16 MiB together, each counted once.
//! - A nested manifest is read in its canonical form, so that its entry's hash is its identity.
//! - Paths are compared byte for byte. Two spellings of a letter (NFC and NFD), or two cases of it, are two files.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

use super::error::{ManifestCode, ManifestError};
use super::{Entry, EntryKind, Location, Manifest, check_depth, path};
use crate::protocol::Sha256;
use crate::protocol::limits::{MANIFEST_BYTES, MANIFEST_ENTRIES, SAFE_INTEGER};

/// A nested manifest that has to be read before a tree is complete.
#[derive(Debug, Clone, Copy)]
pub struct Wanted<'a> {
    /// Its identity.
    pub sha256: Sha256,
    /// Its length in bytes, at most 16 MiB.
    pub size: u64,
    /// The first entry that names it.
    pub entry: &'a Entry,
    /// The manifest that this entry stands in.
    pub owner: &'a Manifest,
}

/// A tree of which some manifests may still have to be read.
#[derive(Debug)]
pub struct GrowingTree {
    /// The set's own first.
    manifests: Vec<Arc<Manifest>>,
    known: HashMap<Sha256, usize>,
    /// Where manifests are named that were not read yet.
    missing: HashMap<Sha256, Vec<Place>>,
    /// In the order in which they were found.
    order: VecDeque<Sha256>,
    entries: usize,
    total_size: u64,
    nested_bytes: u64,
}

/// An entry that names a manifest.
#[derive(Debug)]
struct Place {
    owner: usize,
    index: usize,
    path: String,
    depth: usize,
}

impl GrowingTree {
    /// The tree of a set's own manifest.
    ///
    /// # Errors
    /// The first rule of trees that it breaks by itself.
    pub fn of(root: Manifest) -> Result<Self, ManifestError> {
        let mut tree = Self {
            known: HashMap::from([(root.identity, 0)]),
            manifests: vec![Arc::new(root)],
            missing: HashMap::new(),
            order: VecDeque::new(),
            entries: 0,
            total_size: 0,
            nested_bytes: 0,
        };
        tree.expand(0, "", 0)?;
        Ok(tree)
    }

    /// The next manifest that is missing; none when the tree is complete.
    pub fn wanted(&self) -> Option<Wanted<'_>> {
        let sha256 = *self.order.front()?;
        let place = self.missing.get(&sha256)?.first()?;
        let owner = &self.manifests[place.owner];
        let entry = &owner.entries[place.index];
        Some(Wanted { sha256, size: entry.size, entry, owner })
    }

    /// Bytes of all nested manifests that were found, each counted once.
    pub fn nested_bytes(&self) -> u64 {
        self.nested_bytes
    }

    /// Takes in the manifest that is [`wanted`](Self::wanted), or any other that is missing.
    ///
    /// # Errors
    /// The first rule of trees that is broken with it.
    pub fn supply(&mut self, manifest: Manifest) -> Result<(), ManifestError> {
        let Some(places) = self.missing.remove(&manifest.identity) else { return Ok(()) };
        if let Some(at) = self.order.iter().position(|sha256| *sha256 == manifest.identity) {
            self.order.remove(at);
        }
        let at = self.manifests.len();
        self.known.insert(manifest.identity, at);
        self.manifests.push(Arc::new(manifest));
        for place in places {
            self.check_size(at, place.owner, place.index, &place.path)?;
            self.expand(at, directory(&place.path), place.depth)?;
        }
        Ok(())
    }

    /// The complete tree.
    ///
    /// # Errors
    /// Paths that cannot stand beside each other, or a manifest that is still missing.
    pub fn complete(self) -> Result<Tree, ManifestError> {
        if let Some(places) = self.order.front().and_then(|sha256| self.missing.get(sha256)) {
            let path = places.first().map_or("", |place| &place.path);
            return Err(error(ManifestCode::NotAnObject, path, "the nested manifest was not read"));
        }
        let mut files = Vec::with_capacity(self.entries);
        self.list(0, "", &mut files);
        if self.manifests.len() > 1 {
            path::check_together(files.iter().map(|file| file.path.as_str())).map_err(|clash| {
                let rule = match clash.code {
                    ManifestCode::PathDuplicate => "is there twice in the set's manifests",
                    _ => "is a file and a directory at once in the set's manifests",
                };
                error(clash.code, &files[clash.second].path, rule)
            })?;
        }
        Ok(Tree { manifests: self.manifests, files, total_size: self.total_size })
    }

    /// Counts the entries of a manifest in one of its places, and looks for the manifests that they name.
    fn expand(&mut self, at: usize, directory: &str, depth: usize) -> Result<(), ManifestError> {
        let manifest = Arc::clone(&self.manifests[at]);
        self.entries += manifest.entries.len();
        if self.entries > MANIFEST_ENTRIES {
            let rule = "more than 10,000 entries with those of nested manifests";
            return Err(ManifestError::new(ManifestCode::TooManyEntries, rule));
        }
        for (index, entry) in manifest.entries.iter().enumerate() {
            let joined = format!("{directory}{}", entry.path);
            if at > 0 {
                path::check(&joined).map_err(|(code, rule)| error(code, &joined, rule))?;
            }
            self.total_size += entry.size;
            if self.total_size > SAFE_INTEGER {
                return Err(error(ManifestCode::SizeInvalid, &joined, "the sizes are more than 2^53 - 1 together"));
            }
            if entry.kind == EntryKind::Manifest {
                self.find(at, index, joined, depth + 1)?;
            }
        }
        Ok(())
    }

    fn find(&mut self, owner: usize, index: usize, path: String, depth: usize) -> Result<(), ManifestError> {
        check_depth(depth).map_err(|refused| error(refused.code, &path, &refused.message))?;
        let entry = &self.manifests[owner].entries[index];
        let (sha256, size) = (entry.sha256, entry.size);
        if let Some(at) = self.known.get(&sha256).copied() {
            self.check_size(at, owner, index, &path)?;
            return self.expand(at, directory(&path), depth);
        }
        if size > MANIFEST_BYTES as u64 {
            return Err(error(ManifestCode::ManifestTooLarge, &path, "a manifest is at most 16 MiB"));
        }
        let place = Place { owner, index, path, depth };
        if let Some(places) = self.missing.get_mut(&sha256) {
            places.push(place);
            return Ok(());
        }
        self.nested_bytes += size;
        if self.nested_bytes > MANIFEST_BYTES as u64 {
            let rule = "nested manifests are at most 16 MiB together";
            return Err(error(ManifestCode::ManifestTooLarge, &place.path, rule));
        }
        self.order.push_back(sha256);
        self.missing.insert(sha256, vec![place]);
        Ok(())
    }

    fn check_size(&self, at: usize, owner: usize, index: usize, path: &str) -> Result<(), ManifestError> {
        if self.manifests[owner].entries[index].size == self.manifests[at].canonical.len() as u64 {
            return Ok(());
        }
        Err(error(ManifestCode::SizeInvalid, path, "is not the length of the manifest with this hash"))
    }

    /// Every entry behind the one that names its manifest. No deeper than manifests nest.
    fn list(&self, at: usize, directory_of: &str, files: &mut Vec<TreeFile>) {
        for (index, entry) in self.manifests[at].entries.iter().enumerate() {
            let path = format!("{directory_of}{}", entry.path);
            let nested = (entry.kind == EntryKind::Manifest).then(|| self.known.get(&entry.sha256).copied()).flatten();
            files.push(TreeFile { path, owner: at, index });
            if let Some(nested) = nested {
                let directory = directory(&files[files.len() - 1].path).to_owned();
                self.list(nested, &directory, files);
            }
        }
    }
}

/// What a path stands in, with the `/` at its end; empty at the top.
fn directory(path: &str) -> &str {
    path.rfind('/').map_or("", |at| &path[..=at])
}

fn error(code: ManifestCode, path: &str, rule: &str) -> ManifestError {
    ManifestError::new(code, format_args!("{path:?}: {rule}"))
}

/// A set's manifest with everything that is nested in it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Tree {
    manifests: Vec<Arc<Manifest>>,
    files: Vec<TreeFile>,
    total_size: u64,
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct TreeFile {
    path: String,
    owner: usize,
    index: usize,
}

/// One entry of a tree.
#[derive(Debug, Clone, Copy)]
pub struct TreeEntry<'a> {
    /// From the top of the tree.
    pub path: &'a str,
    /// The nested manifest that it stands in; none in the set's own.
    pub owner: Option<Sha256>,
    /// As its manifest has it.
    pub entry: &'a Entry,
}

impl Tree {
    /// The set's own manifest.
    pub fn root(&self) -> &Manifest {
        &self.manifests[0]
    }

    /// The manifests nested in it, each once.
    pub fn nested(&self) -> &[Arc<Manifest>] {
        &self.manifests[1..]
    }

    /// Every entry, also those that name a manifest, each of which comes before what is in it.
    pub fn entries(&self) -> impl ExactSizeIterator<Item = TreeEntry<'_>> {
        self.files.iter().map(|file| TreeEntry {
            path: &file.path,
            owner: (file.owner > 0).then(|| self.manifests[file.owner].identity),
            entry: &self.manifests[file.owner].entries[file.index],
        })
    }

    /// Every location that it names, its own and those of its entries.
    pub fn locations(&self) -> impl Iterator<Item = &Location> {
        self.manifests.iter().flat_map(|manifest| {
            manifest.locations.iter().chain(manifest.entries.iter().flat_map(|entry| entry.locations.iter().flatten()))
        })
    }

    /// Bytes of all entries.
    pub fn total_size(&self) -> u64 {
        self.total_size
    }

    /// Bytes of all manifests.
    pub fn manifest_bytes(&self) -> u64 {
        self.manifests.iter().map(|manifest| manifest.canonical.len() as u64).sum()
    }
}

#[cfg(test)]
mod tests;
