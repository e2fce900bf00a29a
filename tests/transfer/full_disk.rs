//! A cache whose disk is full: transfers go on without it, and it comes back when there is room.

use crate::stage::{FRAME, Stage, assert_bytes, body, single, url};
use crate::support::{Disk, SampleSet, bytes, eventually};

const CHUNK: usize = 2 * FRAME;
const REFUSED: &str = "sluice_cache_refused";
const KEPT: &str = "sluice_cache_writes_total{outcome=\"kept\"}";
const FAILED: &str = "sluice_cache_writes_total{outcome=\"failed\"}";

/// A gateway whose cache is on a disk of its own.
async fn stage_on(disk: &Disk) -> (Stage, tempfile::TempDir) {
    let data = tempfile::tempdir().unwrap();
    std::os::unix::fs::symlink(disk.path(), data.path().join("cache")).unwrap();
    let folder = data.path().to_owned();
    let with = |layer: &mut sluice::config::Layer| {
        layer.data_dir = Some(folder);
        layer.cache_size = Some("64MiB".parse().unwrap());
    };
    (Stage::with(with).await, data)
}

fn set(seed: u64) -> SampleSet {
    set_of(seed, 8)
}

fn set_of(seed: u64, chunks: usize) -> SampleSet {
    single(bytes(seed, chunks * CHUNK)).chunked(CHUNK)
}

/// What is in the folder for unfinished objects.
fn unfinished(disk: &Disk) -> usize {
    disk.path().join("tmp").read_dir().unwrap().count()
}

/// Files of another set each time, of so many chunks, until one does what is waited for.
async fn download_until(
    stage: &Stage,
    agent: &crate::support::Agent,
    (seed, chunks): (&mut u64, usize),
    done: impl Fn() -> bool,
) {
    eventually("the cache's part", async || {
        *seed += 1;
        let set = set_of(*seed, chunks);
        stage.share(agent, "c1", &set).await;
        assert_bytes(&body(stage.get(&url(&set)).await).await, &set.files[0].bytes, "whatever the disk does");
        done().then_some(())
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_others_filled_is_left_alone_until_there_is_room() {
    let Some(disk) = Disk::mount("12m") else { return };
    let (stage, _data) = stage_on(&disk).await;
    let first = set(0);
    let agent = stage.agent_with("ada", &first).await;
    assert_bytes(&body(stage.get(&url(&first)).await).await, &first.files[0].bytes, "with room");
    stage.gateway.wait_for_metric("sluice_cache_objects", 8.0).await;
    assert_eq!(stage.gateway.metric(REFUSED), 0.0);
    disk.fill();
    let mut seed = 0;
    download_until(&stage, &agent, (&mut seed, 8), || stage.gateway.metric(REFUSED) == 1.0).await;
    let refused = stage.gateway.metric(FAILED);
    assert!(refused >= 1.0);
    // It rests: what comes at once is not even tried.
    eventually("the end of what was begun", async || (unfinished(&disk) == 0).then_some(())).await;
    // What is held is served on, as far as it did not have to make room.
    assert_bytes(&body(stage.get(&url(&first)).await).await, &first.files[0].bytes, "from the cache");
    disk.empty();
    let kept = stage.gateway.metric(KEPT);
    download_until(&stage, &agent, (&mut seed, 8), || stage.gateway.metric(KEPT) > kept).await;
    stage.gateway.wait_for_metric(REFUSED, 0.0).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_cache_that_may_be_larger_than_its_disk_goes_on_with_newer_objects() {
    let Some(disk) = Disk::mount("6m") else { return };
    let (stage, _data) = stage_on(&disk).await;
    let agent = stage.agent_with("ada", &set(100)).await;
    let mut seed = 200;
    // Not the gauge: what was being written beside may have ended well a moment later.
    download_until(&stage, &agent, (&mut seed, 8), || stage.gateway.metric(FAILED) >= 1.0).await;
    let kept = stage.gateway.metric(KEPT);
    // One at a time: many would share the room that is made for one.
    download_until(&stage, &agent, (&mut seed, 1), || stage.gateway.metric(KEPT) > kept).await;
    eventually("room", async || (stage.gateway.metric("sluice_cache_evicted_total") >= 1.0).then_some(())).await;
    // Nothing half-written takes room.
    stage.wait_for_quiet().await;
    eventually("the end of what was begun", async || (unfinished(&disk) == 0).then_some(())).await;
    let fits = || stage.gateway.metric("sluice_cache_bytes") <= f64::from(6 << 20);
    eventually("a count that the disk of 6 MiB can hold", async || fits().then_some(())).await;
}
