//! The network between an agent and its gateway, which can be pulled out at an exact byte.

use std::io::{Read as _, Write as _};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;

/// Carries every connection made to [`address`](Self::address) on to the gateway.
pub struct Cable {
    pub address: SocketAddr,
    state: Arc<State>,
}

#[derive(Default)]
struct State {
    /// Bytes that may still come from the agents before everything is cut.
    until_cut: Mutex<Option<usize>>,
    cuts: AtomicUsize,
    sockets: Mutex<Vec<TcpStream>>,
}

impl Cable {
    pub fn to(gateway: SocketAddr) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let state = Arc::new(State::default());
        let shared = Arc::clone(&state);
        // Ends with the test's process.
        thread::spawn(move || {
            for agent in listener.incoming().map_while(Result::ok) {
                let Ok(gateway) = TcpStream::connect(gateway) else { continue };
                let both = [agent.try_clone().unwrap(), gateway.try_clone().unwrap()];
                shared.sockets.lock().unwrap().extend(both);
                carry(agent.try_clone().unwrap(), gateway.try_clone().unwrap(), Some(Arc::clone(&shared)));
                carry(gateway, agent, None);
            }
        });
        Self { address, state }
    }

    /// Cuts every connection when `bytes` more have come from the agents, once.
    pub fn cut_after(&self, bytes: usize) {
        *self.state.until_cut.lock().unwrap() = Some(bytes);
    }

    /// How often it was cut.
    pub fn cuts(&self) -> usize {
        self.state.cuts.load(Ordering::SeqCst)
    }
}

impl State {
    /// Counts bytes on their way, and says whether the cut comes before them.
    fn cut_by(&self, bytes: usize) -> bool {
        let mut until_cut = self.until_cut.lock().unwrap();
        let Some(left) = *until_cut else { return false };
        *until_cut = left.checked_sub(bytes);
        if until_cut.is_some() {
            return false;
        }
        self.cuts.fetch_add(1, Ordering::SeqCst);
        for socket in self.sockets.lock().unwrap().drain(..) {
            let _ = socket.shutdown(Shutdown::Both);
        }
        true
    }
}

fn carry(mut from: TcpStream, mut to: TcpStream, counted: Option<Arc<State>>) {
    thread::spawn(move || {
        let mut buffer = vec![0; 16 << 10];
        while let Ok(n @ 1..) = from.read(&mut buffer) {
            if counted.as_ref().is_some_and(|state| state.cut_by(n)) || to.write_all(&buffer[..n]).is_err() {
                break;
            }
        }
        let _ = to.shutdown(Shutdown::Both);
        let _ = from.shutdown(Shutdown::Both);
    });
}
