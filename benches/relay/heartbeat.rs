//! Between an agent and the gateway: passes frames on as they are, asks the gateway for a pong between them, and looks
//! how long the gateway's own pings are out.

use std::collections::HashMap;
use std::io::{self, BufRead as _, BufReader, Read as _, Write as _};
use std::net::{Ipv4Addr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

/// What is read of a socket at once.
const BUFFER: usize = 256 * 1024;
/// Frames of up to this many bytes are looked at.
const LOOKED_AT: u64 = 4096;
const PING: u8 = 9;
const PONG: u8 = 10;
const TEXT: u8 = 1;

/// A proxy that runs until the bench ends.
#[derive(Debug)]
pub struct Heartbeat {
    /// Where an agent dials.
    pub address: SocketAddr,
    seen: Arc<Mutex<Seen>>,
}

/// Round trips, in milliseconds.
#[derive(Debug, Default)]
pub struct RoundTrips {
    /// From an agent's ping, when it is handed over behind whatever is being sent, to the gateway's pong.
    pub of_agent: Vec<f64>,
    /// From the gateway's ping to the agent's pong, as they pass here.
    pub of_gateway: Vec<f64>,
}

#[derive(Debug, Default)]
struct Seen {
    trips: RoundTrips,
    /// Pings without a pong, by their ids.
    asked: HashMap<String, Instant>,
    next: u64,
}

impl Heartbeat {
    /// Listens, passes on to `gateway`, and sends a ping `every` so often on each control connection.
    pub fn start(gateway: SocketAddr, every: Duration) -> io::Result<Self> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
        let proxy = Self { address: listener.local_addr()?, seen: Arc::default() };
        let seen = proxy.seen.clone();
        thread::spawn(move || {
            for agent in listener.incoming().flatten() {
                // An agent that cannot be passed on sees its connection end, and dials again.
                let _ = join(agent, gateway, every, &seen);
            }
        });
        Ok(proxy)
    }

    /// What was seen since the last time.
    pub fn take(&self) -> RoundTrips {
        std::mem::take(&mut lock(&self.seen).trips)
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn join(agent: TcpStream, gateway: SocketAddr, every: Duration, seen: &Arc<Mutex<Seen>>) -> io::Result<()> {
    let gateway = TcpStream::connect(gateway)?;
    agent.set_nodelay(true)?;
    gateway.set_nodelay(true)?;
    let (ends, seen) = ([agent.try_clone()?, gateway.try_clone()?], seen.clone());
    thread::spawn(move || {
        // It ends with the connection, and nothing is left to say then.
        let _ = pass(agent, gateway, every, &seen);
        ends.into_iter().for_each(|end| {
            let _ = end.shutdown(Shutdown::Both);
        });
    });
    Ok(())
}

fn pass(agent: TcpStream, gateway: TcpStream, every: Duration, seen: &Arc<Mutex<Seen>>) -> io::Result<()> {
    let mut from_agent = BufReader::with_capacity(BUFFER, agent.try_clone()?);
    let mut from_gateway = BufReader::with_capacity(BUFFER, gateway.try_clone()?);
    let (mut to_agent, to_gateway) = (agent, Arc::new(Mutex::new(gateway)));
    let request = head(&mut from_agent)?;
    lock(&to_gateway).write_all(&request)?;
    to_agent.write_all(&head(&mut from_gateway)?)?;

    // A ping of the gateway that has no pong yet.
    let asked = Arc::new(Mutex::new(None::<Instant>));
    if !request.windows(9).any(|window| window == b"conn=data") {
        let (to_gateway, seen) = (to_gateway.clone(), seen.clone());
        thread::spawn(move || {
            while ask(&to_gateway, &seen).is_ok() {
                thread::sleep(every);
            }
        });
    }
    let (of_gateway, notes) = (asked.clone(), seen.clone());
    thread::spawn(move || -> io::Result<()> {
        loop {
            frame(
                &mut from_gateway,
                |bytes| to_agent.write_all(bytes),
                |opcode, payload| match opcode {
                    PING => {
                        lock(&of_gateway).get_or_insert_with(Instant::now);
                    }
                    TEXT => answered(payload, &notes),
                    _ => {}
                },
            )?;
        }
    });
    loop {
        // A frame goes out whole before the next ping does.
        from_agent.fill_buf()?;
        let mut to_gateway = lock(&to_gateway);
        frame(
            &mut from_agent,
            |bytes| to_gateway.write_all(bytes),
            |opcode, _| {
                if opcode == PONG
                    && let Some(at) = lock(&asked).take()
                {
                    lock(seen).trips.of_gateway.push(at.elapsed().as_secs_f64() * 1e3);
                }
            },
        )?;
    }
}

/// Sends a ping of the protocol's, as a masked text frame whose mask changes nothing.
fn ask(to_gateway: &Mutex<TcpStream>, seen: &Mutex<Seen>) -> io::Result<()> {
    let id = {
        let mut seen = lock(seen);
        seen.next += 1;
        let id = format!("heartbeat-{}", seen.next);
        seen.asked.insert(id.clone(), Instant::now());
        id
    };
    let text = json!({ "type": "ping", "event_id": id, "timestamp": 0, "uamp_version": "1.0" }).to_string();
    let Ok(length @ ..126) = u8::try_from(text.len()) else { return Err(io::ErrorKind::InvalidData.into()) };
    let frame = [&[0x80 | TEXT, 0x80 | length, 0, 0, 0, 0], text.as_bytes()].concat();
    lock(to_gateway).write_all(&frame)
}

fn answered(text: &[u8], seen: &Mutex<Seen>) {
    let Ok(frame) = serde_json::from_slice::<Value>(text) else { return };
    let mut seen = lock(seen);
    if let Some(begun) = frame["event_id"].as_str().and_then(|id| seen.asked.remove(id)) {
        seen.trips.of_agent.push(begun.elapsed().as_secs_f64() * 1e3);
    }
}

/// The head of an HTTP message.
fn head(from: &mut BufReader<TcpStream>) -> io::Result<Vec<u8>> {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        if from.read_until(b'\n', &mut head)? == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
    }
    Ok(head)
}

/// Passes one frame on (RFC 6455 section 5.2), and shows what a short one holds, as it is on the wire.
fn frame(
    from: &mut BufReader<TcpStream>,
    mut to: impl FnMut(&[u8]) -> io::Result<()>,
    look: impl FnOnce(u8, &[u8]),
) -> io::Result<()> {
    let mut head = [0; 14];
    from.read_exact(&mut head[..2])?;
    let extended = match head[1] & 0x7f {
        126 => 2,
        127 => 8,
        _ => 0,
    };
    let end = 2 + extended + if head[1] & 0x80 != 0 { 4 } else { 0 };
    from.read_exact(&mut head[2..end])?;
    let length = match extended {
        0 => u64::from(head[1] & 0x7f),
        _ => head[2..2 + extended].iter().fold(0, |length, byte| (length << 8) | u64::from(*byte)),
    };
    if length <= LOOKED_AT {
        let mut whole = head[..end].to_vec();
        whole.resize(end + length as usize, 0);
        from.read_exact(&mut whole[end..])?;
        look(head[0] & 0x0f, &whole[end..]);
        return to(&whole);
    }
    to(&head[..end])?;
    let mut left = length;
    while left > 0 {
        let buffer = from.fill_buf()?;
        if buffer.is_empty() {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        let now = buffer.len().min(usize::try_from(left).unwrap_or(usize::MAX));
        to(&buffer[..now])?;
        from.consume(now);
        left -= now as u64;
    }
    Ok(())
}
