//! What a feed leaves in the cache: each object whose hash it finds right.

use std::sync::Arc;

use crate::access::{Source, Way};
use crate::content::{Cache, Voucher, Writer};
use crate::protocol::{LocationKind, Principal};
use crate::read::{Object, Released};

/// The objects on their way into the cache.
#[derive(Debug)]
pub(super) struct Keeping {
    cache: Option<Arc<Cache>>,
    unfinished: Option<Unfinished>,
    /// Verified, and not yet known to be whose.
    verified: Vec<Unfinished>,
    /// The feed's readers leave no room.
    held_up: bool,
}

#[derive(Debug)]
struct Unfinished {
    object: Object,
    /// Absent where it is there already, or cannot be kept.
    writer: Option<Writer>,
}

impl Keeping {
    pub(super) fn new(cache: Option<Arc<Cache>>) -> Self {
        Self { cache, unfinished: None, verified: Vec::new(), held_up: false }
    }

    /// Takes note of bytes from a source that are being released.
    pub(super) fn take(&mut self, released: &Released, source: &Source) {
        let (Some(cache), Some(object)) = (&self.cache, released.object) else { return };
        if released.start == object.range.start {
            // What its agent is not known to have will be vouched for by nobody.
            let agent = has_the_bytes(source).then(|| Voucher::of(&source.agent));
            let writer = agent.and_then(|agent| cache.write(object.sha256, object.range.len(), agent));
            self.unfinished = Some(Unfinished { object, writer });
        }
        if let Some(writer) = self.unfinished.as_mut().and_then(|unfinished| unfinished.writer.as_mut()) {
            writer.append(released.bytes.clone());
        }
        if released.verified {
            self.verified.extend(self.unfinished.take());
        }
    }

    /// Keeps what was verified, where one agent has served all of it.
    pub(super) fn settle<'a>(&mut self, served_by: impl Fn(&Object) -> Option<&'a Principal>) {
        for Unfinished { object, writer } in self.verified.drain(..) {
            match (served_by(&object).map(Voucher::of), writer, &self.cache) {
                (Some(agent), Some(writer), _) => writer.keep(agent),
                (Some(agent), None, Some(cache)) => cache.vouch(object.sha256, object.range.len(), agent),
                (_, _, _) => {}
            }
        }
    }

    /// Takes note of whether the feed's readers leave no room.
    pub(super) fn hold_up(&mut self, held_up: bool) {
        if std::mem::replace(&mut self.held_up, held_up) != held_up
            && let Some(writer) = self.unfinished.as_ref().and_then(|unfinished| unfinished.writer.as_ref())
        {
            writer.hold_up(held_up);
        }
    }

    /// What was taken so far is wrong.
    pub(super) fn drop_unfinished(&mut self) {
        self.unfinished = None;
    }
}

/// Whether bytes from a source show that its agent has them. What another gateway's store holds may be anybody's.
pub(super) fn has_the_bytes(source: &Source) -> bool {
    match &source.way {
        Way::Relay => true,
        Way::Location(remote) => remote.location.kind != LocationKind::Robutler,
    }
}
