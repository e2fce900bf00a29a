//! More than one read's worth of bytes.

use crate::stage::{Stage, asked, single, url};
use crate::support::What;

const READ: u64 = 64 << 20;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_long_range_is_asked_in_parts_and_the_next_one_early() {
    let stage = Stage::new().await;
    let size = 2 * READ + (2 << 20);
    let mut content = vec![0; size as usize];
    for at in (0..content.len()).step_by(1 << 20) {
        content[at..][..4].copy_from_slice(&(at as u32).to_be_bytes());
    }
    let set = single(content).chunked(8 << 20);
    let agent = stage.agent_with("ada", &set).await;
    let content = &set.files[0].bytes;
    // Whether a read arrives while the agent still sends the one before is a race, but one that is never won unless the
    // gateway asks early.
    for attempt in 1.. {
        let mark = agent.log().mark();
        let mut answer = stage.get(&url(&set)).await;
        assert_eq!((answer.header("content-length"), answer.header("sluice-verified")), (&*size.to_string(), "full"));
        let mut position = 0;
        while let Some(piece) = answer.chunk().await {
            let piece = piece.unwrap();
            assert!(piece == content[position..][..piece.len()], "other bytes at {position}");
            position += piece.len();
        }
        assert_eq!(position as u64, size);
        let reads = asked(&agent);
        assert_eq!(reads[reads.len() - 3..], [(0, READ), (READ, READ), (2 * READ, 2 << 20)]);

        let log = &agent.log().all()[mark..];
        let early = (1..3).any(|n| {
            let next = |what: &What| matches!(what, What::Read { offset, .. } if *offset == n * READ);
            let before = |what: &What| matches!(what, What::SentData { offset, .. } if *offset < n * READ);
            let next = log.iter().position(|event| next(&event.what));
            next < log.iter().rposition(|event| before(&event.what))
        });
        if early {
            return;
        }
        assert!(attempt < 5, "no read was asked early");
    }
}
