//! A way of some length: what comes in goes out later, on both sides, and as much is under way as there comes.

use std::io::{self, Read as _, Write as _};
use std::net::{Ipv4Addr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread;
use std::time::{Duration, Instant};

/// What is passed on at once.
const PIECE: usize = 64 * 1024;
/// Pieces under way in one direction: 512 MiB, which is a second at the speed of loopback, and only a bound.
const PIECES: usize = 8192;

/// A proxy that runs until the bench ends.
#[derive(Debug)]
pub struct Delay {
    /// Where to dial.
    pub address: SocketAddr,
}

/// Bytes, and when they arrive.
type Piece = (Instant, Vec<u8>);

impl Delay {
    /// Listens, and passes on to `target`, half of `round_trip` later in either direction. A connection is there at once:
    /// only its bytes take time.
    pub fn start(target: SocketAddr, round_trip: Duration) -> io::Result<Self> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
        let address = listener.local_addr()?;
        thread::spawn(move || {
            for near in listener.incoming().flatten() {
                // Whoever cannot be passed on sees the connection end.
                let _ = join(near, target, round_trip / 2);
            }
        });
        Ok(Self { address })
    }
}

fn join(near: TcpStream, target: SocketAddr, delay: Duration) -> io::Result<()> {
    let far = TcpStream::connect(target)?;
    near.set_nodelay(true)?;
    far.set_nodelay(true)?;
    pass_on(near.try_clone()?, far.try_clone()?, delay);
    pass_on(far, near, delay);
    Ok(())
}

fn pass_on(from: TcpStream, to: TcpStream, delay: Duration) {
    let (sender, pieces) = sync_channel(PIECES);
    let source = from.try_clone();
    thread::spawn(move || take(from, &sender, delay));
    thread::spawn(move || {
        // Both fail when the connection ends, which is all there is to do then.
        let _ = give(to, &pieces);
        let _ = source.map(|source| source.shutdown(Shutdown::Both));
    });
}

fn take(mut from: TcpStream, pieces: &SyncSender<Piece>, delay: Duration) {
    let mut buffer = vec![0; PIECE];
    while let Ok(read @ 1..) = from.read(&mut buffer) {
        if pieces.send((Instant::now() + delay, buffer[..read].to_vec())).is_err() {
            return;
        }
    }
}

fn give(mut to: TcpStream, pieces: &Receiver<Piece>) -> io::Result<()> {
    for (due, piece) in pieces {
        thread::sleep(due.saturating_duration_since(Instant::now()));
        to.write_all(&piece)?;
    }
    to.shutdown(Shutdown::Write)
}
