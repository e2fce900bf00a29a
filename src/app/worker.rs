//! Where busy loops run: on the runtime's own threads.

use tokio_util::task::AbortOnDropHandle;

/// Does the work as a task, and waits for it; dropped, it stops. The thread that waits for the whole program polls no
/// sockets itself: a loop that ran there would have another thread woken for each event, which then wakes that one.
#[expect(clippy::disallowed_methods, reason = "the caller waits for it, or stops it")]
pub async fn on_worker<T: Send + 'static>(work: impl Future<Output = T> + Send + 'static) -> T {
    match AbortOnDropHandle::new(tokio::spawn(work)).await {
        Ok(done) => done,
        Err(error) => match error.try_into_panic() {
            Ok(panic) => std::panic::resume_unwind(panic),
            // Nobody but the runtime's end cancels it, and that ends this too.
            Err(_) => std::future::pending().await,
        },
    }
}

#[cfg(test)]
mod tests {
    use tokio_util::sync::CancellationToken;

    use super::*;

    #[tokio::test(flavor = "multi_thread")]
    async fn the_work_is_done_elsewhere() {
        let here = tokio::task::try_id();
        let there = on_worker(async { tokio::task::try_id() }).await;
        assert!(there.is_some() && there != here);
    }

    #[tokio::test]
    async fn what_nobody_waits_for_stops() {
        let dropped = CancellationToken::new();
        let guard = dropped.clone().drop_guard();
        let work = on_worker(async move {
            let _guard = guard;
            std::future::pending::<()>().await;
        });
        assert!(futures_util::FutureExt::now_or_never(work).is_none());
        dropped.cancelled().await;
    }

    #[tokio::test]
    #[should_panic(expected = "of its own")]
    async fn a_panic_is_the_callers() {
        on_worker(async { panic!("of its own") }).await;
    }
}
