//! Several cursors at one feed: who sets the pace, who is let go, and what is kept for whom.

use std::task::Waker;

use proptest::prelude::*;
use proptest::test_runner::TestCaseError;

use super::*;
use crate::protocol::Sha256;
use crate::transfer::budget::Budget;
use crate::transfer::live::TransferId;

/// The least that counts for no more than its bytes.
const PIECE: u64 = PIECE_COST as u64;
const FRAME: usize = PIECE_COST;

fn live(number: u64) -> Arc<Live> {
    let principal: Principal = "user:alice".parse().unwrap();
    let range = ByteRange { start: 0, end: 1 << 40 };
    Arc::new(Live::new(TransferId(number), (principal.clone(), principal), (Sha256::of(b""), range.end, range), 0))
}

fn spool(kept: bool) -> Arc<Spool> {
    Spool::new(ByteRange { start: 0, end: END }, Budget::new(1 << 40, 1).allowance(), kept)
}

fn wish(start: u64, end: u64) -> Wish {
    Wish { range: ByteRange { start, end }, checked_to: end }
}

fn feed(spool: &Spool, bytes: u64) {
    for _ in 0..bytes / PIECE {
        spool.push(Bytes::from(vec![0; PIECE as usize]));
    }
}

/// The bytes that a cursor gets without waiting, at most `most`.
fn take(seat: &Seat, most: u64) -> u64 {
    let mut cx = Context::from_waker(Waker::noop());
    let mut taken = 0;
    while taken < most
        && let Poll::Ready(Given::Piece(bytes)) = seat.poll_next(&mut cx)
    {
        taken += bytes.len() as u64;
    }
    taken
}

fn is_let_go(seat: &Seat) -> bool {
    matches!(seat.poll_next(&mut Context::from_waker(Waker::noop())), Poll::Ready(Given::Elsewhere))
}

fn held(spool: &Spool) -> u64 {
    spool.lock().pieces.iter().map(|piece| piece.bytes.len() as u64).sum()
}

const END: u64 = 1 << 40;

#[tokio::test]
async fn what_every_cursor_has_passed_is_gone() {
    let spool = spool(false);
    let (first, second) = (live(1), live(2));
    let a = spool.first(&first, wish(0, END));
    let b = spool.sit(&second, wish(0, END)).unwrap();
    feed(&spool, 10 * PIECE);
    assert_eq!((take(&a, END), held(&spool)), (10 * PIECE, 10 * PIECE));
    assert_eq!((take(&b, 4 * PIECE), held(&spool)), (4 * PIECE, 6 * PIECE));
    drop(b);
    assert_eq!(held(&spool), 0);
    assert!(spool.sit(&second, wish(0, END)).is_none(), "its first byte is gone");
    assert!(spool.sit(&second, wish(10 * PIECE, END)).is_some(), "its first byte comes next");
}

#[tokio::test]
async fn credit_follows_the_cursor_that_is_furthest_ahead() {
    let spool = spool(false);
    let (first, second) = (live(1), live(2));
    let a = spool.first(&first, wish(0, END));
    let b = spool.sit(&second, wish(0, END)).unwrap();
    assert_eq!(spool.room(4, 0, FRAME), 4 * FRAME);
    feed(&spool, 4 * PIECE);
    assert_eq!(spool.room(4, 0, FRAME), 0);
    take(&a, 3 * PIECE);
    assert_eq!(spool.room(4, 0, FRAME), 3 * FRAME);
    take(&b, PIECE);
    assert_eq!(spool.room(4, 0, FRAME), 3 * FRAME);
    drop(a);
    assert_eq!(spool.room(4, 0, FRAME), FRAME, "the other sets the pace now");
}

#[tokio::test(start_paused = true)]
async fn a_slow_cursor_is_let_go_and_one_of_about_the_same_pace_waited_for() {
    for (tenths, waited_for) in [(10, true), (9, true), (7, false), (1, false), (0, false)] {
        let spool = spool(false);
        let (first, second) = (live(1), live(2));
        let a = spool.first(&first, wish(0, END));
        let b = spool.sit(&second, wish(0, END)).unwrap();
        let mut fed = 0;
        while fed < 40 * LAG && !is_let_go_quietly(&spool, 2) {
            let room = spool.room(64, 0, FRAME) as u64 / (10 * PIECE) * (10 * PIECE);
            feed(&spool, room);
            fed += room;
            take(&a, END);
            take(&b, (room * tenths / 10).max(if tenths > 0 { PIECE } else { 0 }));
            assert!(held(&spool) <= LAG + 64 * PIECE);
            tokio::time::advance(Duration::from_millis(1)).await;
        }
        assert_eq!(!is_let_go(&b), waited_for, "{tenths} tenths of the pace");
        assert!(!is_let_go(&a));
    }
}

fn is_let_go_quietly(spool: &Spool, cursors: usize) -> bool {
    spool.lock().seats.len() < cursors
}

#[tokio::test(start_paused = true)]
async fn a_cursor_that_stops_does_not_hold_the_others_up() {
    let spool = spool(false);
    let (first, second) = (live(1), live(2));
    let a = spool.first(&first, wish(0, END));
    let b = spool.sit(&second, wish(0, END)).unwrap();
    // Both keep the same pace for long; then one falls back, and stops.
    for _ in 0..5 {
        feed(&spool, LAG);
        take(&a, END);
        take(&b, END);
    }
    feed(&spool, LAG);
    take(&a, END);
    assert_eq!(spool.room(4, 0, FRAME), 0, "it is waited for");
    let due = spool.due().expect("not for ever");
    tokio::time::advance(due - Instant::now()).await;
    assert_eq!(spool.room(4, 0, FRAME), 4 * FRAME);
    assert!(is_let_go(&b) && !is_let_go(&a));
}

#[tokio::test(start_paused = true)]
async fn the_beginning_is_kept_for_a_moment() {
    let spool = spool(true);
    let (first, second) = (live(1), live(2));
    let a = spool.first(&first, wish(0, END));
    feed(&spool, 2 * YOUNG.1);
    take(&a, END);
    assert_eq!(held(&spool), YOUNG.1);
    drop(spool.sit(&second, wish(2 * YOUNG.1 - PIECE, END)).expect("a late one finds it"));
    assert_eq!(spool.due(), Some(Instant::now() + YOUNG.0), "the feed looks again although nothing else happens");
    tokio::time::advance(YOUNG.0).await;
    spool.room(4, 0, FRAME);
    assert_eq!((held(&spool), spool.due()), (0, None));
}

#[tokio::test(start_paused = true)]
async fn nothing_is_kept_for_others_once_the_feed_has_ended() {
    let spool = spool(true);
    let live = live(1);
    let a = spool.first(&live, wish(0, END));
    feed(&spool, 10 * PIECE);
    take(&a, 8 * PIECE);
    assert_eq!(held(&spool), 10 * PIECE);
    spool.finish(Ok(()));
    assert_eq!(held(&spool), 2 * PIECE);
    assert_eq!(take(&a, END), 2 * PIECE);
}

#[tokio::test]
async fn the_last_bytes_wait_until_all_are_right() {
    let spool = spool(false);
    let live = live(1);
    let a = spool.first(&live, Wish { range: ByteRange { start: 1000, end: 3 * PIECE - 1000 }, checked_to: 3 * PIECE });
    assert_eq!(spool.room(9, 0, FRAME), 3 * FRAME, "what is checked with them is read too, and no more");
    feed(&spool, 2 * PIECE);
    assert_eq!(take(&a, END), 2 * PIECE - 1000);
    feed(&spool, PIECE);
    assert_eq!(take(&a, END), 0);
    spool.verified(3 * PIECE);
    assert_eq!(take(&a, END), PIECE - 1000);
    assert!(is_let_go(&a), "nothing more is wanted");
}

#[tokio::test]
async fn what_is_read_for_the_hash_alone_takes_no_room() {
    let spool = spool(false);
    let (first, second) = (live(1), live(2));
    let a = spool.first(&first, Wish { range: ByteRange { start: 0, end: PIECE }, checked_to: 100 * PIECE });
    for _ in 0..50 {
        assert_eq!(spool.room(2, 0, FRAME), 2 * FRAME - held(&spool) as usize);
        feed(&spool, PIECE);
    }
    assert_eq!(held(&spool), PIECE);
    assert!(spool.sit(&second, wish(PIECE, END)).is_none(), "its first byte was thrown away");
    let b = spool.sit(&second, wish(50 * PIECE, END)).unwrap();
    feed(&spool, 50 * PIECE);
    spool.verified(100 * PIECE);
    assert_eq!((take(&a, END), take(&b, END)), (PIECE, 50 * PIECE));
}

#[tokio::test]
async fn what_waits_for_its_hash_does_not_fill_the_window() {
    let spool = spool(false);
    let live = live(1);
    let a = spool.first(&live, Wish { range: ByteRange { start: 0, end: PIECE }, checked_to: 9 * PIECE });
    for _ in 0..9 {
        assert_eq!(spool.room(1, 0, FRAME), FRAME);
        feed(&spool, PIECE);
        assert_eq!(take(&a, END), 0);
        assert!(stirred(&spool), "the feed is told that nothing here can be taken");
    }
    assert_eq!(spool.room(1, 0, FRAME), 0);
    spool.verified(9 * PIECE);
    assert_eq!(take(&a, END), PIECE);
}

#[tokio::test]
async fn one_that_comes_and_wants_more_is_noticed() {
    let spool = spool(false);
    let (first, second) = (live(1), live(2));
    let a = spool.first(&first, wish(0, PIECE));
    feed(&spool, PIECE);
    take(&a, END);
    assert_eq!(spool.room(1, 0, FRAME), 0);
    stirred(&spool);
    let _b = spool.sit(&second, wish(PIECE, 2 * PIECE)).unwrap();
    assert!(stirred(&spool));
    assert_eq!(spool.room(1, 0, FRAME), FRAME);
}

/// Whether the feed would ask again.
fn stirred(spool: &Spool) -> bool {
    spool.poll_readers(&mut Context::from_waker(Waker::noop())).is_ready()
}

#[tokio::test]
async fn how_a_feed_ended_is_told_after_its_bytes() {
    let spool = spool(false);
    let live = live(1);
    let a = spool.first(&live, wish(0, END));
    feed(&spool, PIECE);
    spool.finish(Err(TransferError::AgentOffline));
    let mut cx = Context::from_waker(Waker::noop());
    assert!(matches!(a.poll_next(&mut cx), Poll::Ready(Given::Piece(_))));
    assert!(matches!(a.poll_next(&mut cx), Poll::Ready(Given::Failed(TransferError::AgentOffline))));
    drop(a);
    assert!(matches!(spool.poll_readers(&mut cx), Poll::Ready(ReadersDid::Leave)));
    assert!(spool.sit(&live, wish(PIECE, END)).is_none());
}

#[tokio::test]
async fn a_short_budget_lets_the_last_one_go_before_the_first_one_waits() {
    let budget = Budget::new(12 * 320 * 1024, 2);
    let spool = Spool::new(ByteRange { start: 0, end: END }, budget.allowance(), false);
    let (first, second) = (live(1), live(2));
    let frame = 256 * 1024;
    let a = spool.first(&first, wish(0, END));
    let b = spool.sit(&second, wish(0, END)).unwrap();
    for _ in 0..20 {
        let room = spool.room(4, 0, frame) as u64;
        assert!(room > 0);
        feed(&spool, room);
        take(&a, END);
    }
    assert!(is_let_go(&b));
}

/// A feed and its readers, for `what_is_wanted_comes`: when nothing is stirred, nothing happens.
fn run(windows: &[u32], sizes: &[usize], wishes: &[(u64, u64, u64)], frames: u64) -> Result<(), TestCaseError> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build().unwrap();
    let _entered = runtime.enter();
    let budget = Budget::new(frames * 320 * 1024, 1);
    let (span, frame) = (64 * 1024, 16 * 1024);
    let whole = |end: u64| end.div_ceil(span) * span;
    let until = wishes.iter().map(|wish| whole(wish.1)).max().unwrap_or(0);
    let spool = Spool::new(ByteRange { start: 0, end: until }, budget.allowance(), false);
    let wish = |start, end| Wish { range: ByteRange { start, end }, checked_to: whole(end) };
    let mut seats: Vec<_> = wishes
        .iter()
        .enumerate()
        .map(|(n, (start, end, _))| {
            let live = live(n as u64);
            (
                if n == 0 {
                    spool.first(&live, wish(*start, *end))
                } else {
                    spool.sit(&live, wish(*start, *end)).unwrap()
                },
                *start,
                n,
            )
        })
        .collect();
    let (mut head, mut sent) = (0, 0);
    let mut asks = true;
    while !seats.is_empty() {
        let mut moved = false;
        if std::mem::take(&mut asks) {
            let granted = spool.room(windows[sent % windows.len()], 0, frame) / frame;
            for _ in 0..granted {
                let bytes = (sizes[sent % sizes.len()] as u64).min(until - head);
                sent += 1;
                if bytes > 0 {
                    spool.push(Bytes::from(vec![0; bytes as usize]));
                    head += bytes;
                    spool.verified(if head == until { head } else { head / span * span });
                    (moved, asks) = (true, true);
                }
            }
        }
        let mut cx = Context::from_waker(Waker::noop());
        seats.retain_mut(|(seat, position, n)| {
            for _ in 0..wishes[*n].2 {
                match seat.poll_next(&mut cx) {
                    Poll::Ready(Given::Piece(bytes)) => *position += bytes.len() as u64,
                    Poll::Ready(_) => *position = u64::MAX,
                    Poll::Pending => break,
                }
                moved = true;
            }
            *position < wishes[*n].1
        });
        asks |= stirred(&spool);
        if !moved && !asks {
            let due = spool.due();
            prop_assert!(due.is_some(), "nothing happens any more at {} of {}", head, until);
            runtime.block_on(tokio::time::sleep_until(due.unwrap()));
            asks = true;
        }
    }
    Ok(())
}

proptest! {
    /// Whatever the window, the budget, the frames and the readers: what is wanted comes.
    #[test]
    fn what_is_wanted_comes(
        windows in prop::collection::vec(1_u32..6, 1..8),
        sizes in prop::collection::vec(prop_oneof![1_usize..300, 1_usize..=16 * 1024, Just(16 * 1024)], 1..8),
        ends in prop::collection::vec((1_u64..200_000, 1_u64..5), 1..4),
        frames in 1_u64..8,
    ) {
        let wishes: Vec<_> = ends.into_iter().map(|(end, takes)| (0, end, takes)).collect();
        run(&windows, &sizes, &wishes, frames)?;
    }
}

proptest! {
    /// However cursors come, take and leave, each gets its own bytes, all of them, in order and once.
    #[test]
    fn every_cursor_gets_its_bytes(steps in prop::collection::vec((0_u8..4, 0_usize..6, 1_u64..3000), 1..200)) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
        let _entered = runtime.enter();
        let spool = spool(false);
        let lives: Vec<_> = (0..6).map(live).collect();
        let byte = |position: u64| (position * 131 % 251) as u8;
        let mut cx = Context::from_waker(Waker::noop());
        let mut head = 0;
        let mut seats: Vec<Option<(Seat, u64)>> = vec![None, None, None, None, None, None];
        seats[0] = Some((spool.first(&lives[0], wish(0, END)), 0));
        for (kind, who, amount) in steps {
            match kind {
                0 => {
                    let bytes: Bytes = (head..head + amount).map(byte).collect();
                    head += amount;
                    spool.push(bytes);
                }
                1 if seats[who].is_none() => {
                    let start = head.saturating_sub(amount % 1500);
                    seats[who] = spool.sit(&lives[who], wish(start, END)).map(|seat| (seat, start));
                }
                2 => if seats.iter().flatten().count() > 1 { seats[who] = None },
                _ => if let Some((seat, position)) = &mut seats[who]
                    && let Poll::Ready(Given::Piece(bytes)) = seat.poll_next(&mut cx) {
                    for got in bytes.iter() {
                        prop_assert_eq!(*got, byte(*position));
                        *position += 1;
                    }
                },
            }
            let state = spool.lock();
            let sum: usize = state.pieces.iter().map(|piece| cost(&piece.bytes)).sum();
            prop_assert_eq!(state.held, sum);
        }
        for (seat, position) in seats.iter_mut().flatten() {
            prop_assert_eq!(take(seat, END), head - *position);
        }
    }
}
