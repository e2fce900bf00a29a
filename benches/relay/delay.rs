//! A way of some length, and perhaps width: what comes in goes out later, on both sides, and as much is under way as there
//! comes.

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

/// How long bytes are under way, and how many a second arrive at most.
type Way = (Duration, Option<f64>);

impl Delay {
    /// Listens, and passes on to `target`, half of `round_trip` later in either direction. A connection is there at once:
    /// only its bytes take time, in either direction no more than so many a second where that is said.
    pub fn start(target: SocketAddr, round_trip: Duration, bytes_per_second: Option<f64>) -> io::Result<Self> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
        let address = listener.local_addr()?;
        thread::spawn(move || {
            for near in listener.incoming().flatten() {
                // Whoever cannot be passed on sees the connection end.
                let _ = join(near, target, (round_trip / 2, bytes_per_second));
            }
        });
        Ok(Self { address })
    }
}

fn join(near: TcpStream, target: SocketAddr, way: Way) -> io::Result<()> {
    let far = TcpStream::connect(target)?;
    near.set_nodelay(true)?;
    far.set_nodelay(true)?;
    pass_on(near.try_clone()?, far.try_clone()?, way);
    pass_on(far, near, way);
    Ok(())
}

fn pass_on(from: TcpStream, to: TcpStream, (delay, bytes_per_second): Way) {
    let (sender, pieces) = sync_channel(PIECES);
    let source = from.try_clone();
    thread::spawn(move || take(from, &sender, delay));
    thread::spawn(move || {
        // Both fail when the connection ends, which is all there is to do then.
        let _ = give(to, &pieces, bytes_per_second);
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

fn give(mut to: TcpStream, pieces: &Receiver<Piece>, bytes_per_second: Option<f64>) -> io::Result<()> {
    let mut free = Instant::now();
    for (due, piece) in pieces {
        free = free.max(due);
        thread::sleep(free.saturating_duration_since(Instant::now()));
        if let Some(rate) = bytes_per_second {
            free += Duration::from_secs_f64(piece.len() as f64 / rate);
        }
        to.write_all(&piece)?;
    }
    to.shutdown(Shutdown::Write)
}
