//! Server-sent events, read as a browser's `EventSource` reads them (HTML Standard, section 9.2.6).

use std::time::{Duration, Instant};

use http::{HeaderMap, StatusCode};
use serde_json::Value;

use super::gateway::{Client, Download, Gateway};

/// An event, as a browser's page is handed it.
#[derive(Debug, Clone, PartialEq)]
pub struct Told {
    pub id: String,
    pub name: String,
    pub data: Value,
}

/// A stream that is being read.
pub struct EventStream {
    download: Download,
    unread: Vec<u8>,
    pub last_event_id: String,
    pub retry: Option<u64>,
    pub comments: usize,
}

impl EventStream {
    /// Opens a chat's events, and passes the stream's first events up to and with `transfers`, which are returned.
    pub async fn open(gateway: &Gateway, chat: &str, token: &str, last_event_id: &str) -> (Self, Vec<Told>) {
        Self::open_by(gateway.client(), gateway, chat, &[bearer(token)], last_event_id).await
    }

    /// The same by another client, with other headers.
    pub async fn open_by(
        client: Client,
        gateway: &Gateway,
        chat: &str,
        headers: &[(&'static str, String)],
        last_event_id: &str,
    ) -> (Self, Vec<Told>) {
        let mut stream = Self::head(client, gateway, chat, headers, last_event_id).await;
        assert_eq!(stream.status(), 200);
        let mut first = Vec::new();
        while first.last().is_none_or(|told: &Told| told.name != "transfers") {
            first.push(stream.next().await.expect("the stream begins"));
        }
        (stream, first)
    }

    /// As far as the head, which may be that of a refusal.
    pub async fn head(
        client: Client,
        gateway: &Gateway,
        chat: &str,
        headers: &[(&'static str, String)],
        last_event_id: &str,
    ) -> Self {
        let mut request = gateway.request(http::Method::GET, &format!("/v1/chats/{chat}/events"), "", None);
        for (name, value) in headers {
            request.headers_mut().insert(*name, value.parse().unwrap());
        }
        if !last_event_id.is_empty() {
            request.headers_mut().insert("last-event-id", last_event_id.parse().unwrap());
        }
        let download = client.send(request).await;
        Self { download, unread: Vec::new(), last_event_id: last_event_id.to_owned(), retry: None, comments: 0 }
    }

    pub fn status(&self) -> StatusCode {
        self.download.status
    }

    pub fn headers(&self) -> &HeaderMap {
        &self.download.headers
    }

    /// The next event; none at the end, or when the stream was cut.
    pub async fn next(&mut self) -> Option<Told> {
        let (mut name, mut data) = (String::new(), Vec::new());
        loop {
            let line = self.line().await?;
            if line.is_empty() {
                if !data.is_empty() {
                    let data = serde_json::from_str(&data.join("\n")).unwrap();
                    return Some(Told { id: self.last_event_id.clone(), name, data });
                }
                name.clear();
                continue;
            }
            let (field, value) = line.split_once(':').unwrap_or((&line, ""));
            let value = value.strip_prefix(' ').unwrap_or(value).to_owned();
            match field {
                "" => self.comments += 1,
                "event" => name = value,
                "data" => data.push(value),
                "id" => self.last_event_id = value,
                "retry" => self.retry = Some(value.parse().unwrap()),
                other => panic!("{other} is no field"),
            }
        }
    }

    /// The next event, which is of this kind.
    pub async fn expect(&mut self, name: &str) -> Value {
        let told = self.next().await.unwrap_or_else(|| panic!("the stream ends instead of {name}"));
        assert_eq!(told.name, name, "{told:?}");
        told.data
    }

    /// Reads on until the stream is over; what was told last, and how long that took.
    pub async fn end(&mut self) -> (Option<Told>, Duration) {
        let begun = Instant::now();
        let mut last = None;
        while let Some(told) = self.next().await {
            last = Some(told);
        }
        (last, begun.elapsed())
    }

    async fn line(&mut self) -> Option<String> {
        loop {
            if let Some(end) = self.unread.iter().position(|byte| *byte == b'\n') {
                let line: Vec<u8> = self.unread.drain(..=end).collect();
                return Some(String::from_utf8(line).unwrap().trim_end_matches(['\r', '\n']).to_owned());
            }
            self.unread.extend_from_slice(&self.download.chunk().await?.ok()?);
        }
    }
}

/// A token as a header.
pub fn bearer(token: &str) -> (&'static str, String) {
    ("authorization", format!("Bearer {token}"))
}
