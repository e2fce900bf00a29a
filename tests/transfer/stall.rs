//! Readers who take nothing of what is there for them.

use crate::stage::{FRAME, Stage, assert_bytes, cut, single, url};
use crate::support::{What, bytes, span};

const STALLED: &str = "sluice_transfers_ended_total{outcome=\"reader_stalled\"}";

#[tokio::test]
async fn a_reader_who_takes_nothing_loses_its_transfer() {
    // The second has been read to its end by the time its reader's window is full.
    for (http2, frames) in [(false, 48), (true, 48), (true, 11)] {
        let stage = Stage::with(|layer| layer.stall_timeout = Some(span("300ms"))).await;
        let set = single(bytes(1, frames * FRAME)).chunked(FRAME);
        let agent = stage.agent_with("ada", &set).await;
        let mut reader = if http2 { stage.over(true, &url(&set), None).await } else { stage.slow(&url(&set)).await };
        reader.read(1000).await;
        stage.gateway.wait_for_metric(STALLED, 1.0).await;
        stage.wait_for_quiet().await;
        if frames == 48 {
            agent.wait_for(|event| event.what.is_cancel() || matches!(event.what, What::Cut)).await;
        }
        cut(reader).await;
    }
}

#[tokio::test]
async fn a_reader_who_takes_a_little_keeps_it() {
    for http2 in [false, true] {
        let stage = Stage::with(|layer| layer.stall_timeout = Some(span("400ms"))).await;
        let set = single(bytes(2, 64 * FRAME)).chunked(FRAME);
        let _agent = stage.agent_with("ada", &set).await;
        let mut reader = if http2 { stage.over(true, &url(&set), None).await } else { stage.slow(&url(&set)).await };
        let mut received = Vec::new();
        while received.len() < set.files[0].bytes.len() {
            let left = set.files[0].bytes.len() - received.len();
            received.extend(reader.read(left.min(4 * FRAME)).await);
            tokio::time::sleep(std::time::Duration::from_millis(50)).await;
        }
        assert_bytes(&received, &set.files[0].bytes, "at its own pace");
        assert_eq!(stage.gateway.metric(STALLED), 0.0, "http2: {http2}");
    }
}
