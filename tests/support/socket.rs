//! One connection of the scriptable agent: a task that serves reads as its behaviour says and logs everything.

use std::collections::{HashMap, VecDeque};
use std::net::Shutdown;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures_util::stream::SplitSink;
use futures_util::{SinkExt as _, StreamExt as _};
use serde_json::{Value, json};
use tokio::net::TcpStream;
use tokio::sync::mpsc;
use tokio::task::JoinHandle;
use tokio::time::timeout;
use tokio_tungstenite::WebSocketStream;
use tokio_tungstenite::tungstenite::protocol::frame::CloseFrame;
use tokio_tungstenite::tungstenite::{Error, Message};

use super::behaviour::{Behaviour, Fault, data_frame};
use super::log::{Kind, Log, What};

/// Frames between the task and the socket. What is logged as sent may still be here.
const WRITE_QUEUE: usize = 4;
/// How long the platform may take to end a connection that is over.
const FAREWELL: Duration = Duration::from_secs(5);

/// What the connections of one agent share.
pub(super) struct Shared {
    pub(super) log: Log,
    pub(super) blobs: Mutex<HashMap<String, Arc<Vec<u8>>>>,
    pub(super) behaviour: Mutex<Behaviour>,
    /// By blob; these come before the general one.
    pub(super) behaviours: Mutex<HashMap<String, Behaviour>>,
}

pub(super) enum Command {
    Send(Message),
    Cut,
    Close(u16),
}

/// A running connection. Dropping it resets the TCP connection.
pub(super) struct Socket {
    pub(super) number: usize,
    pub(super) commands: mpsc::Sender<Command>,
    task: JoinHandle<()>,
}

impl Drop for Socket {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Socket {
    pub(super) fn start(
        shared: Arc<Shared>,
        kind: Kind,
        number: usize,
        socket: WebSocketStream<TcpStream>,
        raw: std::net::TcpStream,
    ) -> Self {
        let (commands, inbox) = mpsc::channel(64);
        let (sink, stream) = socket.split();
        let (written, queue) = mpsc::channel(WRITE_QUEUE);
        shared.log.add(kind, number, What::Opened);
        let serving = Serving { shared, kind, number, raw, reads: VecDeque::new(), outbox: VecDeque::new() };
        let writer = spawn(write(sink, queue));
        let task = spawn(serving.run(stream, inbox, written, AbortOnDrop(writer)));
        Self { number, commands, task }
    }

    /// Waits until the task is over.
    pub(super) async fn ended(&mut self) {
        _ = (&mut self.task).await;
    }

    pub(super) fn is_over(&self) -> bool {
        self.task.is_finished()
    }
}

#[expect(clippy::disallowed_methods, reason = "tests have no task tracker to wait for")]
fn spawn(task: impl Future<Output = ()> + Send + 'static) -> JoinHandle<()> {
    tokio::spawn(task)
}

struct AbortOnDrop(JoinHandle<()>);

impl Drop for AbortOnDrop {
    fn drop(&mut self) {
        self.0.abort();
    }
}

async fn read_to_end(mut stream: impl futures_util::Stream<Item = Result<Message, Error>> + Unpin) {
    _ = timeout(FAREWELL, async { while let Some(Ok(_)) = stream.next().await {} }).await;
}

async fn write(mut sink: SplitSink<WebSocketStream<TcpStream>, Message>, mut queue: mpsc::Receiver<Message>) {
    while let Some(message) = queue.recv().await {
        if sink.send(message).await.is_err() {
            break;
        }
    }
}

struct Read {
    request_id: String,
    blob: Arc<Vec<u8>>,
    start: u64,
    end: u64,
    next: u64,
    credit: u64,
    stalled: bool,
    /// This read has had its fault.
    faulted: bool,
    behaviour: Behaviour,
}

impl Read {
    fn is_sendable(&self) -> bool {
        !self.stalled && (self.next == self.end || self.credit > 0 || self.behaviour.greedy)
    }
}

/// What becomes of the connection.
enum Fate {
    Lives,
    /// The platform has closed it.
    Closed,
    /// FIN after everything sent.
    Dies,
    Resets,
    HalfOpen,
}

struct Serving {
    shared: Arc<Shared>,
    kind: Kind,
    number: usize,
    raw: std::net::TcpStream,
    reads: VecDeque<Read>,
    outbox: VecDeque<Message>,
}

impl Drop for Serving {
    fn drop(&mut self) {
        // Whatever is still open is reset when its last handle goes.
        _ = socket2::SockRef::from(&self.raw).set_linger(Some(Duration::ZERO));
    }
}

impl Serving {
    fn log(&self, what: What) {
        self.shared.log.add(self.kind, self.number, what);
    }

    async fn run(
        mut self,
        mut stream: impl futures_util::Stream<Item = Result<Message, Error>> + Unpin,
        mut commands: mpsc::Receiver<Command>,
        written: mpsc::Sender<Message>,
        writer: AbortOnDrop,
    ) {
        loop {
            let sendable = !self.outbox.is_empty() || self.reads.iter().any(Read::is_sendable);
            let fate = tokio::select! {
                biased;
                command = commands.recv() => self.obey(command),
                message = stream.next() => match message {
                    Some(Ok(message)) => self.receive(message),
                    Some(Err(_)) | None => return self.log(What::Lost),
                },
                permit = written.reserve(), if sendable => match permit {
                    Ok(permit) => {
                        let fate = if self.outbox.is_empty() { self.serve() } else { Fate::Lives };
                        if let Some(message) = self.outbox.pop_front() {
                            permit.send(message);
                        }
                        fate
                    }
                    Err(_) => return self.log(What::Lost),
                },
            };
            match fate {
                Fate::Lives => {}
                Fate::Closed => {
                    // Reading on sends the answer to the close frame.
                    return read_to_end(stream).await;
                }
                Fate::Resets => return self.reset(writer).await,
                Fate::Dies => return self.die(written, writer, stream).await,
                Fate::HalfOpen => {
                    while !matches!(commands.recv().await, Some(Command::Cut) | None) {}
                    return self.reset(writer).await;
                }
            }
        }
    }

    fn obey(&mut self, command: Option<Command>) -> Fate {
        match command {
            Some(Command::Send(message)) => self.outbox.push_back(message),
            Some(Command::Close(code)) => {
                self.outbox.push_back(Message::Close(Some(CloseFrame { code: code.into(), reason: "".into() })));
            }
            Some(Command::Cut) | None => return Fate::Resets,
        }
        Fate::Lives
    }

    async fn reset(self, mut writer: AbortOnDrop) {
        self.log(What::Cut);
        writer.0.abort();
        _ = (&mut writer.0).await;
    }

    /// Ends the connection behind everything that was sent, and reads on until the platform has ended it too: closing
    /// with unread bytes would reset it.
    async fn die(
        self,
        written: mpsc::Sender<Message>,
        mut writer: AbortOnDrop,
        stream: impl futures_util::Stream<Item = Result<Message, Error>> + Unpin,
    ) {
        drop(written);
        _ = (&mut writer.0).await;
        self.log(What::Cut);
        _ = self.raw.shutdown(Shutdown::Write);
        read_to_end(stream).await;
    }

    fn receive(&mut self, message: Message) -> Fate {
        let text = match message {
            Message::Text(text) => text,
            Message::Ping(_) => {
                self.log(What::Ping);
                return Fate::Lives;
            }
            Message::Close(frame) => {
                let (code, reason) = frame.map_or((1005, String::new()), |f| (f.code.into(), f.reason.to_string()));
                self.log(What::Closed { code, reason });
                return Fate::Closed;
            }
            _ => return Fate::Lives,
        };
        let frame: Value = serde_json::from_str(&text).expect("the platform sent text that is not JSON");
        let what = What::of_frame(frame);
        self.log(what.clone());
        match what {
            What::Read { request_id, sha256, offset, length, credit } => {
                self.start(request_id, &sha256, offset, length, credit);
            }
            What::Credit { request_id, frames } => {
                if let Some(read) = self.reads.iter_mut().find(|read| read.request_id == request_id) {
                    read.credit += frames;
                }
            }
            What::Cancel { request_id } => {
                self.reads.retain(|read| read.request_id != request_id || read.behaviour.ignores_cancel);
            }
            _ => {}
        }
        Fate::Lives
    }

    fn start(&mut self, request_id: String, sha256: &str, offset: u64, length: u64, credit: Option<u64>) {
        let blob = self.shared.blobs.lock().unwrap().get(sha256).cloned();
        let Some(blob) = blob else { return self.error(&request_id, "unknown_blob") };
        if self.reads.iter().any(|read| read.request_id == request_id) {
            return self.error(&request_id, "duplicate_request");
        }
        if offset.checked_add(length).is_none_or(|end| end > blob.len() as u64) {
            return self.error(&request_id, "range_invalid");
        }
        let own = self.shared.behaviours.lock().unwrap().get(sha256).cloned();
        let behaviour = own.unwrap_or_else(|| self.shared.behaviour.lock().unwrap().clone());
        self.reads.push_back(Read {
            request_id,
            blob,
            start: offset,
            end: offset + length,
            next: offset,
            credit: credit.unwrap_or(4),
            stalled: false,
            faulted: false,
            behaviour,
        });
    }

    /// Gives one read its turn.
    fn serve(&mut self) -> Fate {
        let Some(position) = self.reads.iter().position(Read::is_sendable) else { return Fate::Lives };
        let Some(mut read) = self.reads.remove(position) else { return Fate::Lives };
        let due = read.behaviour.pending().filter(|_| !read.faulted);
        let fault = match due {
            Some((_, fault)) if fault.is_at_end() => (read.next == read.end).then_some(fault),
            Some((offset, fault)) => (read.next == offset && read.next < read.end).then_some(fault),
            None => None,
        };
        if let Some(fault) = fault
            && read.behaviour.take()
        {
            read.faulted = true;
            self.log(What::Misbehaved { request_id: read.request_id.clone() });
            return self.misbehave(read, fault);
        }
        if read.next == read.end {
            self.end(&read, read.end - read.start);
            return Fate::Lives;
        }
        // A fault further on starts a frame of its own.
        let stop = due.map(|(offset, _)| offset).filter(|offset| (read.next + 1..read.end).contains(offset));
        let len = frame_len(&read, stop.unwrap_or(read.end));
        let payload = read.blob[read.next as usize..][..len].to_vec();
        self.data(&mut read, payload);
        self.reads.push_back(read);
        Fate::Lives
    }

    fn misbehave(&mut self, mut read: Read, fault: Fault) -> Fate {
        let (id, at) = (read.request_id.clone(), read.next);
        let len = frame_len(&read, read.end);
        let mut payload = read.blob[read.next as usize..][..len].to_vec();
        let frame = data_frame(&id, read.next, &payload);
        match fault {
            Fault::Die => return Fate::Dies,
            Fault::Reset => return Fate::Resets,
            Fault::HalfOpen => return Fate::HalfOpen,
            Fault::Error(code) => {
                self.error(&id, code);
                return Fate::Lives;
            }
            Fault::Short => {
                self.end(&read, read.next - read.start);
                return Fate::Lives;
            }
            Fault::ShortLie | Fault::WrongEndBytes | Fault::EndTwice => {
                let more = u64::from(fault == Fault::WrongEndBytes);
                self.end(&read, read.end - read.start + more);
                if fault == Fault::EndTwice {
                    self.end(&read, read.end - read.start);
                }
                return Fate::Lives;
            }
            Fault::Stall | Fault::NoEnd => read.stalled = true,
            Fault::Corrupt => {
                payload[0] ^= 0xff;
                self.data(&mut read, payload);
            }
            Fault::Duplicate => {
                self.outbox.push_back(Message::binary(frame));
                self.data(&mut read, payload);
            }
            Fault::Gap => read.next += len as u64,
            Fault::WrongOffset => self.wrong(&mut read, data_frame(&id, at + 1, &payload), len),
            Fault::WrongRequestId => self.wrong(&mut read, data_frame("no-such-read", at, &payload), len),
            Fault::WrongVersion => self.wrong(&mut read, [&[2], &frame[1..]].concat(), len),
            Fault::WrongKind => self.wrong(&mut read, [&[1, 7], &frame[2..]].concat(), len),
            Fault::Truncated => self.wrong(&mut read, frame[..8.min(frame.len())].to_vec(), len),
            Fault::Oversize => {
                payload.resize(256 * 1024 + 1, 0);
                self.wrong(&mut read, data_frame(&id, at, &payload), len);
            }
            Fault::Empty => self.wrong(&mut read, data_frame(&id, at, &[]), 0),
            Fault::TooLong => self.wrong(&mut read, data_frame(&id, at, &[0x55]), 0),
        }
        self.reads.push_back(read);
        Fate::Lives
    }

    fn data(&mut self, read: &mut Read, payload: Vec<u8>) {
        let what = What::SentData { request_id: read.request_id.clone(), offset: read.next, len: payload.len() };
        self.log(what);
        let (frame, len) = (data_frame(&read.request_id, read.next, &payload), payload.len());
        self.wrong(read, frame, len);
    }

    /// Sends any frame in the place of `len` bytes.
    fn wrong(&mut self, read: &mut Read, frame: Vec<u8>, len: usize) {
        self.outbox.push_back(Message::binary(frame));
        read.next += len as u64;
        read.credit = read.credit.saturating_sub(1);
    }

    fn end(&mut self, read: &Read, bytes: u64) {
        let length = read.end - read.start;
        let id = &read.request_id;
        let end = json!({"type": "blob.end", "request_id": id, "offset": read.start, "length": length, "bytes": bytes});
        self.outbox.push_back(Message::text(end.to_string()));
        self.log(What::SentEnd { request_id: read.request_id.clone() });
    }

    fn error(&mut self, request_id: &str, code: &str) {
        let error = json!({"type": "blob.error", "request_id": request_id, "error": {"code": code, "message": code}});
        self.outbox.push_back(Message::text(error.to_string()));
        self.log(What::SentError { request_id: request_id.to_owned(), code: code.to_owned() });
    }
}

fn frame_len(read: &Read, stop: u64) -> usize {
    read.behaviour.frame_size.min((stop - read.next) as usize)
}
