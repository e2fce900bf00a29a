//! One stream: events and comments in their wire format, until something ends it.

use std::convert::Infallible;
use std::pin::Pin;
use std::time::Duration;

use axum::body::Body;
use bytes::Bytes;
use futures_util::stream;
use tokio::time::{Instant, Sleep};
use tokio_util::sync::CancellationToken;

use super::super::AppState;
use super::super::auth::Stay;
use crate::events::{End, Event, EventId, Next, Subscription, TransferEvent};
use crate::identity::token::LEEWAY;
use crate::identity::{HandedOut, OpaqueSecret};

/// After so long without an event there is a comment: proxies close what is silent for a minute, some after half.
pub(super) const KEEP_ALIVE: Duration = Duration::from_secs(15);
const COMMENT: &[u8] = b": keep-alive\n\n";
/// How long a stream lasts at most. Whoever wants to know more shows anew who it is.
const LIFETIME: Duration = Duration::from_secs(12 * 60 * 60);
/// The same where a signature stands for its sender, which is good for an hour at most.
const SIGNED_LIFETIME: Duration = Duration::from_secs(60 * 60);
/// How soon a browser that was signed out is told nothing more.
const RECHECK: Duration = Duration::from_secs(5);
/// When a reader comes back whose stream ended, in milliseconds: spread, for all of them come at once.
const RETRY_MS: std::ops::Range<u64> = 1_000..5_000;

/// A stream as a response's body.
pub(super) fn body(state: &AppState, stay: Stay, subscription: Subscription, running: &[TransferEvent]) -> Body {
    let lifetime = lifetime(stay.until, state.clock.unix_millis());
    let retry = rand::random_range(RETRY_MS);
    let stream = Stream {
        opening: Some(opening(retry, &subscription, running)),
        subscription: Some(subscription),
        draining: state.draining.clone(),
        expiry: Box::pin(tokio::time::sleep(lifetime)),
        cookie: stay.cookie.map(|cookie| (state.handed_out.clone(), cookie)),
        recheck_at: Instant::now() + RECHECK,
    };
    Body::from_stream(stream::unfold(stream, |mut stream| async move {
        stream.next().await.map(|bytes| (Ok::<_, Infallible>(bytes), stream))
    }))
}

/// How long a credential that ends at `until` keeps a stream open. One that was taken although it had ended, for clocks
/// differ, has what is left of that.
fn lifetime(until: Option<i64>, now: i64) -> Duration {
    let Some(until) = until else { return SIGNED_LIFETIME };
    let leeway = i64::try_from(LEEWAY.as_millis()).unwrap_or(0);
    let until = if until > now { until } else { until.saturating_add(leeway) };
    u64::try_from(until.saturating_sub(now)).map_or(Duration::ZERO, Duration::from_millis).min(LIFETIME)
}

/// What a stream begins with: when to come back, what was missed, and the reader's transfers.
fn opening(retry: u64, subscription: &Subscription, running: &[TransferEvent]) -> Bytes {
    let id = subscription.id();
    let reset = subscription.reset().map(|reason| written(id, &Event::reset(reason))).unwrap_or_default();
    format!("retry: {retry}\n\n{reset}{}", written(id, &Event::transfers(running))).into()
}

/// An event on the wire. Its data is JSON, which has no line breaks.
fn written(id: EventId, event: &Event) -> String {
    format!("id: {id}\nevent: {}\ndata: {}\n\n", event.name(), event.data())
}

struct Stream {
    opening: Option<Bytes>,
    /// None once it is over.
    subscription: Option<Subscription>,
    draining: CancellationToken,
    expiry: Pin<Box<Sleep>>,
    cookie: Option<(HandedOut, OpaqueSecret)>,
    recheck_at: Instant,
}

impl Stream {
    async fn next(&mut self) -> Option<Bytes> {
        if let Some(opening) = self.opening.take() {
            return Some(opening);
        }
        let subscription = self.subscription.as_mut()?;
        let keep_alive = Instant::now() + KEEP_ALIVE;
        let reason = loop {
            tokio::select! {
                biased;
                () = self.draining.cancelled() => break End::Draining,
                () = self.expiry.as_mut() => break End::Expired,
                () = tokio::time::sleep_until(self.recheck_at), if self.cookie.is_some() => {
                    if is_signed_out(self.cookie.as_ref()).await {
                        break End::Expired;
                    }
                    self.recheck_at = Instant::now() + RECHECK;
                }
                next = subscription.next() => match next {
                    Next::Event(id, event) => return Some(written(id, &event).into()),
                    Next::End(reason) => break reason,
                },
                () = tokio::time::sleep_until(keep_alive) => return Some(Bytes::from_static(COMMENT)),
            }
        };
        let id = subscription.id();
        self.subscription = None;
        Some(written(id, &Event::end(reason)).into())
    }
}

/// Whether a cookie stands for nobody any more. While the database is away it stands for whom it did.
async fn is_signed_out(cookie: Option<&(HandedOut, OpaqueSecret)>) -> bool {
    match cookie {
        Some((handed_out, secret)) => matches!(handed_out.browser(secret).await, Ok(None)),
        None => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stream_lasts_as_long_as_its_credential_and_not_for_ever() {
        let ends = |until| lifetime(until, 1_000_000);
        assert_eq!(ends(Some(1_002_500)), Duration::from_millis(2500));
        // Taken in the minute by which clocks may differ.
        assert_eq!(ends(Some(1_000_000)), Duration::from_secs(60));
        assert_eq!(ends(Some(960_000)), Duration::from_secs(20));
        assert_eq!(ends(Some(940_000)), Duration::ZERO);
        assert_eq!(ends(Some(0)), Duration::ZERO);
        assert_eq!(ends(Some(i64::MIN)), Duration::ZERO);
        assert_eq!(ends(Some(i64::MAX)), LIFETIME);
        assert_eq!(ends(None), SIGNED_LIFETIME);
    }

    #[test]
    fn an_event_is_three_lines_and_an_empty_one() {
        let id = "0000000000000007-3".parse().unwrap();
        let text = written(id, &Event::end(End::Lagged));
        assert_eq!(text, "id: 0000000000000007-3\nevent: end\ndata: {\"reason\":\"lagged\"}\n\n");
    }
}
