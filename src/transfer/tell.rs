//! What readers are told about their own transfers.
//!
//! A transfer's bytes pass without a look at this: how far it is, is looked up from time to time while somebody wants
//! to know.

use std::sync::PoisonError;
use std::time::Duration;

use super::{Running, Transfers};
use crate::events::{Step, TransferEvent};
use crate::protocol::Principal;
use crate::store::Place;

/// Between two looks at how far transfers are.
const INTERVAL: Duration = Duration::from_secs(1);

impl Transfers {
    /// A reader's transfers that a chat allows, as far as they are, oldest first.
    pub fn running_of(&self, reader: &Principal, place: &Place) -> Vec<TransferEvent> {
        let mut all = self.all();
        all.retain(|running| running.live.reader == *reader && running.places.contains(place));
        all.sort_by_key(|running| running.live.id);
        all.iter().map(|running| event(running, Step::Go, None)).collect()
    }

    pub(super) fn tell(&self, running: &Running, step: Step, outcome: Option<&'static str>) {
        let live = &running.live;
        let mut told = live.told.lock().unwrap_or_else(PoisonError::into_inner);
        let now = (live.sent(), live.state());
        if told.ended || (step == Step::Go && told.last == Some(now)) {
            return;
        }
        told.ended = step == Step::End;
        if running.places.is_empty() || self.events.is_quiet() {
            return;
        }
        told.last = Some(now);
        self.events.transfer(&running.places, &live.reader, &event(running, step, outcome));
    }

    pub(super) async fn tell_progress(&self) {
        loop {
            tokio::time::sleep(INTERVAL).await;
            if !self.events.is_quiet() {
                self.all().iter().for_each(|running| self.tell(running, Step::Go, None));
            }
        }
    }
}

fn event(running: &Running, step: Step, outcome: Option<&'static str>) -> TransferEvent {
    let live = &running.live;
    TransferEvent {
        id: live.id.0,
        sha256: live.sha256,
        size: live.size,
        start: live.range.start,
        end: live.range.end,
        sent_bytes: live.sent(),
        state: if step == Step::End { "ended" } else { live.state().name() },
        outcome,
        step,
    }
}
