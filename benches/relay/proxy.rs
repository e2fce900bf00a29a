//! Between an agent and the gateway: passes bytes on, counts what the agent sent, and cuts when told to.

use std::io::{self, Read, Write as _};
use std::net::{Ipv4Addr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

const BUFFER: usize = 64 * 1024;
/// After a cut, how long an agent that goes on sending is listened to. It is told of the cut only then, so that all
/// that it had leave to send is counted.
const LINGER: Duration = Duration::from_millis(20);

/// A proxy that runs until the bench ends.
#[derive(Debug)]
pub struct Proxy {
    /// Where agents dial.
    pub address: SocketAddr,
    shared: Arc<Shared>,
}

#[derive(Debug, Default)]
struct Shared {
    /// Bytes that agents sent.
    sent: AtomicU64,
    links: Mutex<Links>,
}

#[derive(Debug, Default)]
struct Links {
    /// The sides towards the gateway.
    open: Vec<TcpStream>,
    /// When an agent dialled first since the last cut.
    returned: Option<Instant>,
}

impl Proxy {
    /// Listens, and passes on to `gateway`.
    pub fn start(gateway: SocketAddr) -> io::Result<Self> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
        let proxy = Self { address: listener.local_addr()?, shared: Arc::default() };
        let shared = proxy.shared.clone();
        thread::spawn(move || {
            for agent in listener.incoming().flatten() {
                // An agent that cannot be passed on sees its connection end, and dials again.
                let _ = join(agent, gateway, &shared);
            }
        });
        Ok(proxy)
    }

    /// Cuts every connection.
    pub fn cut(&self) {
        let mut links = self.shared.links();
        links.returned = None;
        for gateway in links.open.drain(..) {
            // It may have ended by itself.
            let _ = gateway.shutdown(Shutdown::Both);
        }
    }

    /// When an agent dialled first since the last cut.
    pub fn returned(&self) -> Option<Instant> {
        self.shared.links().returned
    }

    /// Bytes that agents sent so far, the protocol's own included.
    pub fn sent(&self) -> u64 {
        self.shared.sent.load(Ordering::Relaxed)
    }
}

impl Shared {
    fn links(&self) -> MutexGuard<'_, Links> {
        self.links.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn join(agent: TcpStream, gateway: SocketAddr, shared: &Arc<Shared>) -> io::Result<()> {
    let gateway = TcpStream::connect(gateway)?;
    agent.set_nodelay(true)?;
    gateway.set_nodelay(true)?;
    let (mut to_agent, mut from_gateway) = (agent.try_clone()?, gateway.try_clone()?);
    let mut links = shared.links();
    links.returned.get_or_insert_with(Instant::now);
    links.open.push(gateway.try_clone()?);
    drop(links);
    // Ends with the connection: nothing is left to say when it breaks.
    thread::spawn(move || io::copy(&mut from_gateway, &mut to_agent));
    let shared = shared.clone();
    thread::spawn(move || pass_on(agent, gateway, &shared.sent));
    Ok(())
}

/// Agent to gateway, counted.
fn pass_on(mut agent: TcpStream, mut gateway: TcpStream, sent: &AtomicU64) {
    let mut buffer = vec![0; BUFFER];
    let mut cut = false;
    while let Ok(read @ 1..) = agent.read(&mut buffer) {
        sent.fetch_add(read as u64, Ordering::Relaxed);
        if !cut && gateway.write_all(&buffer[..read]).is_err() {
            cut = agent.set_read_timeout(Some(LINGER)).is_ok();
        }
    }
    let _ = agent.shutdown(Shutdown::Both);
    let _ = gateway.shutdown(Shutdown::Both);
}
