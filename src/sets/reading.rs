//! Announcements whose manifests are not all inlined: what is missing is read from the agent before they count.
//!
//! The reads survive the agent's reconnects as any transfer does, and the announcement with them: an agent announces
//! nothing again by itself, so what it told once is kept, or it is told otherwise.

use std::fmt;
use std::sync::Arc;

use bytes::Bytes;
use tokio::time::Instant;

use super::frame::{Claims, Content, Inlined, Refused, named_in, off_task, parse_off_task};
use super::keep::Origin;
use super::lanes::Turn;
use super::places::{Party, Place};
use super::{Accepted, AnnounceCode, Refusal, Sets};
use crate::access::{self, Announced};
use crate::agents::Text;
use crate::protocol::{GrowingTree, Location, Manifest, Principal, Sha256, Tree, manifest};
use crate::store::{NewSet, Order};
use crate::transfer::TransferError;

/// An announcement that is being read. It holds its place among its agent's until it is dropped.
pub struct Reading {
    sets: Sets,
    text: Text,
    origin: Origin,
    turn: Turn,
    party: Party,
    /// The announcement stands where it came in, whatever is announced meanwhile.
    order: Order,
    received: Instant,
}

impl fmt::Debug for Reading {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Reading").field("agent", self.agent()).finish_non_exhaustive()
    }
}

impl Reading {
    pub(super) fn new(sets: Sets, text: Text, origin: Origin, (turn, party): (Turn, Party), received: Instant) -> Self {
        let order = sets.store.order();
        Self { sets, text, origin, turn, party, order, received }
    }

    /// Whose announcement it is.
    pub fn agent(&self) -> &Principal {
        self.turn.agent()
    }

    /// Reads what is missing and decides. Ends early when the gateway stops.
    pub async fn run(&self) -> Result<Accepted, Refusal> {
        self.sets.metrics.announcements_reading.inc();
        let deadline = self.received + self.sets.limits.reading;
        let outcome = tokio::select! {
            outcome = tokio::time::timeout_at(deadline, self.decide(deadline)) => outcome.unwrap_or_else(|_| {
                Err(Refused::new(AnnounceCode::ManifestUnreadable, "the manifest could not be read in time"))
            }),
            () = self.sets.draining.cancelled() => Err(Refused::stopping()),
        };
        self.turn.end();
        self.sets.metrics.announcements_reading.dec();
        self.sets.count(outcome.as_ref().map(drop));
        if let Ok(accepted) = &outcome {
            self.sets.tell(accepted).await;
        }
        outcome.map_err(|refused| {
            let (event_id, sha256) = named_in(self.text.as_str());
            Refusal { event_id, sha256, error: refused.body() }
        })
    }

    async fn decide(&self, deadline: Instant) -> Result<Accepted, Refused> {
        self.turn.comes().await;
        let mut recalls = 0;
        loop {
            // Bounds the memory of all announcements that are read.
            let place = self.sets.places.take(&self.party, recalls).await;
            if let Some(decided) = self.decide_at(&place, deadline).await? {
                return Ok(decided);
            }
            recalls += 1;
        }
    }

    /// Decides with a place, or gives it up for others when it brings too little: what came by then is read again.
    async fn decide_at(&self, place: &Place, deadline: Instant) -> Result<Option<Accepted>, Refused> {
        let Claims { sha256, content, .. } = parse_off_task(&self.text).await?;
        let mut content = content?;
        let inlined = std::mem::replace(&mut content.inlined, Inlined::Nothing);
        let tree = tokio::select! {
            tree = self.complete(place, sha256, &content, inlined) => tree?,
            () = place.recalled() => return Ok(None),
        };
        let set = (NewSet::Tree(tree), Some(self.order));
        self.sets.keep(self.origin.clone(), sha256, content, set, deadline).await.map(Some)
    }

    /// The set with everything that did not come with the frame.
    async fn complete(
        &self,
        place: &Place,
        sha256: Sha256,
        content: &Content,
        inlined: Inlined,
    ) -> Result<Arc<Tree>, Refused> {
        let own = content.locations.clone().unwrap_or_default();
        let task = content.task.as_ref().map(|task| task.as_str().to_owned());
        let growing = match inlined {
            Inlined::Whole(tree) => return Ok(tree),
            Inlined::Root(tree) => *tree,
            Inlined::Nothing => {
                let wanted = Announced { sha256, size: content.size, task: task.clone(), locations: own.clone() };
                GrowingTree::of(self.manifest(place, wanted).await?)?
            }
        };
        self.grow(place, growing, &own, task.as_ref()).await.map(Arc::new)
    }

    /// Reads the manifests that a tree lacks, one after the other.
    async fn grow(
        &self,
        place: &Place,
        mut tree: GrowingTree,
        own: &[Location],
        task: Option<&String>,
    ) -> Result<Tree, Refused> {
        while let Some(wanted) = tree.wanted() {
            let listed = wanted.entry.locations.as_ref().unwrap_or(&wanted.owner.locations);
            let wanted = Announced {
                sha256: wanted.sha256,
                size: wanted.size,
                task: task.cloned(),
                locations: listed.iter().chain(own).cloned().collect(),
            };
            let nested = self.manifest(place, wanted).await?;
            tree.supply(nested)?;
        }
        let bytes = usize::try_from(tree.nested_bytes()).unwrap_or(usize::MAX);
        Ok(off_task(bytes, move || tree.complete()).await??)
    }

    /// One manifest, from the store where this agent has announced it before, else from the agent.
    async fn manifest(&self, place: &Place, wanted: Announced) -> Result<Manifest, Refused> {
        let (sha256, size) = (wanted.sha256, wanted.size);
        let store = &self.sets.store;
        let known = async {
            Ok(match store.announced_by(self.agent(), &sha256).await? {
                Some(held) if held.size == size => store.manifest_bytes(&sha256).await?,
                _ => None,
            })
        };
        let bytes = match known.await.map_err(|error| Refused::of_store(&error))? {
            Some(bytes) => bytes,
            None => self.fetch(place, wanted).await?,
        };
        off_task(bytes.len(), move || parse(&bytes, sha256)).await?
    }

    /// The bytes, checked against their hash and size.
    async fn fetch(&self, place: &Place, wanted: Announced) -> Result<Bytes, Refused> {
        let sha256 = wanted.sha256;
        let readable = access::announced(&self.sets.store, self.agent(), wanted).await;
        let Some(readable) = readable.map_err(|error| Refused::of_store(&error))? else {
            let message = format!("no location of the manifest {sha256} is one that this gateway can read");
            return Err(Refused::new(AnnounceCode::ManifestUnreadable, message));
        };
        let fetched = (self.sets.fetch)(self.agent().clone(), readable, Arc::clone(place.brought())).await;
        fetched.map_err(|error| {
            let code = match error {
                TransferError::HashMismatch => AnnounceCode::HashMismatch,
                TransferError::Shorter => AnnounceCode::SizeMismatch,
                TransferError::TooManyTransfers { .. } => AnnounceCode::Unavailable,
                _ => AnnounceCode::ManifestUnreadable,
            };
            Refused::new(code, format!("reading the manifest {sha256}: {error}"))
        })
    }
}

/// A manifest of which the bytes have this hash. They are its canonical form, or the hash is not its identity.
fn parse(bytes: &[u8], sha256: Sha256) -> Result<Manifest, Refused> {
    let manifest = manifest::read_bytes(bytes)?;
    if manifest.identity != sha256 {
        let message = format!("the bytes of {sha256} are a manifest, but not in its canonical form");
        return Err(Refused::new(AnnounceCode::HashMismatch, message));
    }
    Ok(manifest)
}
