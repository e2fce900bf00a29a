use proptest::prelude::*;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

use super::*;
use crate::config::{Layer, Settings};
use crate::http::limit::{Limiter, Sender};
use crate::metrics::Metrics;

const LONGEST: usize = 1 << 20;
const LONG: usize = FRAME_MAX + 1;

fn frame(is_last: bool, opcode: u8, length: usize) -> Vec<u8> {
    let mut frame = vec![u8::from(is_last) << 7 | opcode];
    match length {
        0..126 => frame.push(0x80 | u8::try_from(length).unwrap()),
        126..65536 => {
            frame.push(0x80 | 126);
            frame.extend(u16::try_from(length).unwrap().to_be_bytes());
        }
        _ => {
            frame.push(0x80 | 127);
            frame.extend((length as u64).to_be_bytes());
        }
    }
    frame.extend([0xff; 4]);
    frame.resize(frame.len() + length, 0x89);
    frame
}

fn found(pieces: &[&[u8]]) -> Vec<Found> {
    let mut heads = Heads::new(LONGEST as u64);
    let mut found = Vec::new();
    for mut piece in pieces.iter().copied() {
        while !piece.is_empty() {
            let (rest, one) = heads.next(piece);
            piece = rest;
            found.extend(one);
        }
    }
    found
}

#[test]
fn a_long_message_is_found_by_its_head_and_by_its_last_byte() {
    let whole = frame(true, 1, LONG);
    let Some((last, but_last)) = whole.split_last() else { unreachable!("it has bytes") };
    assert_eq!(found(&[&whole[..14]]), [Found::Long(LONG as u64)]);
    assert_eq!(found(&[but_last]), [Found::Long(LONG as u64)]);
    assert_eq!(found(&[but_last, &[*last]]), [Found::Long(LONG as u64), Found::End]);
    assert_eq!(found(&[&frame(true, 1, FRAME_MAX)]), [Found::End], "as long as a data frame is short");
    assert_eq!(found(&[&frame(true, 1, LONGEST + 1)[..14]]), [], "refused by whoever reads it");
}

#[test]
fn one_in_pieces_takes_what_it_may_come_to_and_takes_it_once() {
    let half = FRAME_MAX / 2 + 1;
    let pieces = [frame(false, 1, half), frame(true, 9, 4), frame(false, 0, half), frame(false, 0, half)].concat();
    assert_eq!(found(&[&pieces]), [Found::Long(LONGEST as u64)], "a ping between them is none of them");
    let end = [frame(true, 10, 0), frame(true, 0, 0), frame(true, 1, 5)].concat();
    assert_eq!(found(&[&pieces, &end]), [Found::Long(LONGEST as u64), Found::End, Found::End]);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn where_the_stream_is_cut_makes_no_difference(
        frames in proptest::collection::vec((any::<bool>(), 0u8..16, prop_oneof![0usize..200, 60_000usize..300_000]), 1..8),
        cuts in proptest::collection::vec(any::<prop::sample::Index>(), 0..12),
    ) {
        let stream: Vec<u8> = frames.iter().flat_map(|(is_last, opcode, length)| frame(*is_last, *opcode, *length)).collect();
        let mut cuts: Vec<_> = cuts.iter().map(|cut| cut.index(stream.len())).collect();
        cuts.extend([0, stream.len()]);
        cuts.sort_unstable();
        let pieces: Vec<_> = cuts.windows(2).map(|cut| &stream[cut[0]..cut[1]]).collect();
        let ends = frames.iter().filter(|(is_last, opcode, _)| *is_last && opcode & 8 == 0).count();
        let whole = found(&[&stream]);
        prop_assert_eq!(whole.iter().filter(|found| **found == Found::End).count(), ends);
        prop_assert_eq!(found(&pieces), whole);
    }

    #[test]
    fn any_bytes_are_followed(bytes in proptest::collection::vec(any::<u8>(), 0..300)) {
        found(&[&bytes]);
    }
}

/// Both ends of a connection of the same sender.
fn connection(limiter: &Limiter) -> (tokio::io::DuplexStream, Inbound<tokio::io::DuplexStream>) {
    let (peer, stream) = tokio::io::duplex(64 * 1024);
    (peer, Inbound::new(stream, limiter.messages(Sender::Stranger([192, 0, 2, 1].into())), LONGEST))
}

fn limiter() -> Limiter {
    let settings = Settings::resolve(Layer::default()).unwrap();
    Limiter::new(&settings.request_limits, std::sync::Arc::new(Metrics::new().unwrap()))
}

#[tokio::test(start_paused = true)]
async fn a_long_message_waits_at_its_head_for_those_before_it() {
    let limiter = limiter();
    let begun = &frame(true, 1, LONG)[..1000];
    let mut held = Vec::new();
    for _ in 0..2 {
        let (mut peer, mut inbound) = connection(&limiter);
        peer.write_all(begun).await.unwrap();
        inbound.read_exact(&mut [0; 1000]).await.unwrap();
        held.push((peer, inbound));
    }
    for (peer, inbound) in &mut held {
        peer.write_all(&[0; 10]).await.unwrap();
        inbound.read_exact(&mut [0; 10]).await.unwrap();
    }
    let (mut peer, mut inbound) = connection(&limiter);
    peer.write_all(begun).await.unwrap();
    let mut head = [0; 14];
    inbound.read_exact(&mut head).await.unwrap();
    let mut more = [0; 10];
    let waits = tokio::time::timeout(Duration::from_secs(1), inbound.read_exact(&mut more)).await;
    assert!(waits.is_err(), "the third is not read");
    held.pop();
    inbound.read_exact(&mut more).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_long_message_that_does_not_end_is_given_up_whatever_comes_of_it() {
    let limiter = limiter();
    let (mut peer, mut inbound) = connection(&limiter);
    peer.write_all(&frame(false, 1, LONG)[..14]).await.unwrap();
    inbound.read_exact(&mut [0; 14]).await.unwrap();
    let mut error = None;
    for _ in 0..DEADLINE.as_secs() * 2 {
        peer.write_all(&[0; 1]).await.unwrap();
        error = inbound.read_exact(&mut [0; 1]).await.err();
        if error.is_some() {
            break;
        }
        tokio::time::sleep(Duration::from_secs(1)).await;
    }
    assert_eq!(error.unwrap().kind(), io::ErrorKind::TimedOut);
    // What ends in time is followed by as many as its sender likes.
    let (mut peer, mut inbound) = connection(&limiter);
    for _ in 0..5 {
        let message = frame(true, 1, LONG);
        let mut read = vec![0; message.len()];
        let (written, came) = tokio::join!(peer.write_all(&message), inbound.read_exact(&mut read));
        assert!(written.is_ok() && came.is_ok());
    }
}
