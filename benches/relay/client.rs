//! A reader that costs as little as one can: HTTP/1.1 over a blocking socket, into one buffer that is thrown away.

use std::io::{self, Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail, ensure};

/// What one read of the socket takes at most.
pub const BUFFER: usize = 256 * 1024;
/// Longest head of a response.
const HEAD: usize = 16 * 1024;
/// Without a byte for so long, the measurement has failed.
const SILENCE: Duration = Duration::from_secs(30);

/// A connection that is kept between requests.
#[derive(Debug)]
pub struct Connection {
    stream: TcpStream,
    host: String,
    token: Option<String>,
    buffer: Box<[u8]>,
    /// The part of the buffer that holds bytes of the body which came with the head.
    rest: (usize, usize),
    /// Bytes of the body that are not taken yet.
    remaining: u64,
}

/// What is known of a response once its head is read.
#[derive(Debug)]
pub struct Head {
    /// The value of `Sluice-Verified`, if there is one.
    pub verified: Option<String>,
    /// Bytes of the body.
    pub length: u64,
}

impl Connection {
    /// Connects, to ask with `token` if there is one.
    pub fn open(address: SocketAddr, token: Option<&str>) -> anyhow::Result<Self> {
        let stream = TcpStream::connect(address)?;
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(SILENCE))?;
        stream.set_write_timeout(Some(SILENCE))?;
        Ok(Self {
            stream,
            host: address.to_string(),
            token: token.map(str::to_owned),
            buffer: vec![0; BUFFER].into_boxed_slice(),
            rest: (0, 0),
            remaining: 0,
        })
    }

    /// Asks for `path`, or for a part of it, and reads the head of the answer, which must be a good one.
    pub fn get(&mut self, path: &str, range: Option<(u64, u64)>) -> anyhow::Result<Head> {
        let range = range.map_or(String::new(), |(first, last)| format!("range: bytes={first}-{last}\r\n"));
        self.request("GET", path, &range, "")
    }

    /// Sends a request with a JSON body and drops the answer, which must be a good one.
    pub fn send_json(&mut self, method: &str, path: &str, body: &str) -> anyhow::Result<()> {
        let headers = format!("content-type: application/json\r\ncontent-length: {}\r\n", body.len());
        self.request(method, path, &headers, body)?;
        self.drain(|_| ())
    }

    fn request(&mut self, method: &str, path: &str, headers: &str, body: &str) -> anyhow::Result<Head> {
        ensure!(self.remaining == 0, "the last response was not taken");
        let token = self.token.as_ref().map_or(String::new(), |token| format!("authorization: Bearer {token}\r\n"));
        let request = format!("{method} {path} HTTP/1.1\r\nhost: {}\r\n{token}{headers}\r\n{body}", self.host);
        self.stream.write_all(request.as_bytes())?;
        let mut filled = 0;
        let end = loop {
            let read = read(&mut self.stream, &mut self.buffer[filled..HEAD]).context("no answer came")?;
            ensure!(read > 0, "the connection ended before an answer, or its head is too long");
            filled += read;
            if let Some(at) = self.buffer[..filled].windows(4).position(|window| window == b"\r\n\r\n") {
                break at + 4;
            }
        };
        let head = String::from_utf8_lossy(&self.buffer[..end]).into_owned();
        let status = head.split(' ').nth(1).unwrap_or_default();
        if !status.starts_with('2') {
            let rest = String::from_utf8_lossy(&self.buffer[end..filled]);
            bail!("{method} {path} was answered {status} {rest}");
        }
        let length = header(&head, "content-length").map_or(Ok(0), str::parse).context("a bad Content-Length")?;
        self.rest = (end, filled);
        self.remaining = length;
        Ok(Head { verified: header(&head, "sluice-verified").map(str::to_owned), length })
    }

    /// The next bytes of the body, at most `most`; empty at its end. A body cut short is an error.
    pub fn next(&mut self, most: usize) -> anyhow::Result<&[u8]> {
        if self.remaining == 0 {
            return Ok(&[]);
        }
        if self.rest.0 < self.rest.1 {
            let (start, end) = (self.rest.0, self.rest.1.min(self.rest.0 + most));
            self.rest.0 = end;
            self.remaining -= (end - start) as u64;
            return Ok(&self.buffer[start..end]);
        }
        let most = most.min(BUFFER).min(usize::try_from(self.remaining).unwrap_or(BUFFER));
        let read = read(&mut self.stream, &mut self.buffer[..most]).context("the body stands still")?;
        ensure!(read > 0, "the body was cut {} bytes before its end", self.remaining);
        self.remaining -= read as u64;
        Ok(&self.buffer[..read])
    }

    /// Takes the rest of the body as fast as it comes.
    pub fn drain(&mut self, mut each: impl FnMut(&[u8])) -> anyhow::Result<()> {
        loop {
            match self.next(BUFFER)? {
                [] => return Ok(()),
                bytes => each(bytes),
            }
        }
    }

    /// Takes the rest of the body at `pace` bytes a second until `until`, and says how many bytes that were. What was
    /// missed while none came is caught up on, as a player that buffers would.
    pub fn sip(&mut self, pace: f64, until: Instant) -> anyhow::Result<u64> {
        const TICK: Duration = Duration::from_millis(50);
        let begun = Instant::now();
        let mut taken = 0_u64;
        while Instant::now() < until {
            let due = (begun.elapsed().as_secs_f64() * pace) as u64;
            while taken < due {
                let bytes = self.next((due - taken) as usize)?.len();
                ensure!(bytes > 0, "the body is too short to be read slowly for so long");
                taken += bytes as u64;
            }
            std::thread::sleep(TICK);
        }
        Ok(taken)
    }
}

/// Reads some bytes. A read with a timeout is interrupted when the process is paused and goes on.
fn read(stream: &mut TcpStream, buffer: &mut [u8]) -> io::Result<usize> {
    loop {
        match stream.read(buffer) {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            outcome => return outcome,
        }
    }
}

fn header<'a>(head: &'a str, name: &str) -> Option<&'a str> {
    head.lines().skip(1).find_map(|line| {
        let (key, value) = line.split_once(':')?;
        key.eq_ignore_ascii_case(name).then(|| value.trim())
    })
}
