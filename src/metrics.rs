//! What an operator can count. Names start with `sluice_`, units are base units, and no label names an agent, a chat
//! or a principal. Every series exists from the start, so that no panel is empty on a fresh gateway.

use prometheus::{
    Encoder as _, Histogram, HistogramOpts, IntCounter, IntCounterVec, IntGauge, IntGaugeVec, Opts, Registry,
    TextEncoder,
};

/// The process's metrics, created once and handed to the parts.
#[derive(Debug)]
pub struct Metrics {
    registry: Registry,
    /// Transfers started.
    pub transfers_started: IntCounter,
    /// Transfers ended, by `outcome`.
    pub transfers_ended: IntCounterVec,
    /// Transfers running.
    pub transfers_running: IntGauge,
    /// Bytes received from agents in valid frames.
    pub bytes_received: IntCounter,
    /// Bytes handed to readers.
    pub bytes_sent: IntCounter,
    /// Reads asked of agents.
    pub reads_started: IntCounter,
    /// Reads ended, by `outcome`.
    pub reads_ended: IntCounterVec,
    /// Reads in flight.
    pub reads_running: IntGauge,
    /// Feeds waiting for a read slot.
    pub slot_waits: IntGauge,
    /// Times a highest rate held bytes back, by `limit`: the transfer's, its reader's, or the agent's.
    pub rate_waits: IntCounterVec,
    /// Times an agent had used up a read's credit while its reader had not drained.
    pub credit_waits: IntCounter,
    /// Times a transfer asked for its remaining bytes again, by `reason`.
    pub resumes: IntCounterVec,
    /// Seconds from a reader's request to the first byte that may be released.
    pub first_byte_seconds: Histogram,
    /// Connections held, by `kind`.
    pub connections: IntGaugeVec,
    /// Connections ended, by `reason`.
    pub connections_ended: IntCounterVec,
    /// Agents online.
    pub agents_online: IntGauge,
    /// Signed requests judged, by `outcome`: `verified`, `unavailable` or the code of the refusal.
    pub signatures: IntCounterVec,
    /// Sessions asked for, by `outcome`.
    pub sessions: IntCounterVec,
    /// Announcements decided, by `outcome`: `accepted` or the code of the refusal.
    pub announcements: IntCounterVec,
    /// Announcements that wait for their manifests to be read.
    pub announcements_reading: IntGauge,
    /// Broken rules of the protocol, by `rule`.
    pub violations: IntCounterVec,
    /// Chunks and files whose hash was not the announced one.
    pub hash_mismatches: IntCounter,
    /// Places asked for bytes, by `kind` and `outcome`: `answered`, or why they were passed over.
    pub locations: IntCounterVec,
    /// Reads handed to the audit, by `outcome`: `written`, or `lost` where it could not keep up.
    pub audit_records: IntCounterVec,
    /// Rows removed because they had had their time, by `what`.
    pub swept: IntCounterVec,
    /// Requests told to come later, by the `limit` that was met.
    pub requests_limited: IntCounterVec,
    /// The gateway's own fetches, by `outcome`: `answered` or the error's code.
    pub fetches: IntCounterVec,
    /// Readers of chats' events.
    pub event_subscribers: IntGauge,
    /// Events that readers were too slow for.
    pub events_dropped: IntCounter,
    /// HTTP requests answered, by `route` and `status`.
    pub requests: IntCounterVec,
    /// Objects looked for in the cache, by `outcome`: `found`, `absent`, or `not_served` by an agent that would count.
    pub cache_lookups: IntCounterVec,
    /// Objects begun to be written to the cache, by `outcome`: `kept`, `dropped` unfinished, `slow` or `failed` where the
    /// disk was.
    pub cache_writes: IntCounterVec,
    /// Waits for an object that was being written for another reader, by `outcome`: `over` when it was held or dropped,
    /// `given_up` when it came no nearer.
    pub cache_waits: IntCounterVec,
    /// 1 while the cache is not written because the disk refused something.
    pub cache_refused: IntGauge,
    /// Bytes read from the cache.
    pub cache_read_bytes: IntCounter,
    /// Bytes that the cache's objects count for.
    pub cache_bytes: IntGauge,
    /// Objects in the cache.
    pub cache_objects: IntGauge,
    /// Objects removed from the cache to make room.
    pub cache_evicted: IntCounter,
    /// Files of the cache that did not have their hash any more.
    pub cache_spoilt: IntCounter,
    /// 1 while the database answers and takes what is written.
    pub database_up: IntGauge,
}

const FIRST_BYTE_BUCKETS: [f64; 12] = [0.000_5, 0.001, 0.002_5, 0.005, 0.01, 0.025, 0.1, 0.25, 1.0, 2.5, 10.0, 60.0];

impl Metrics {
    /// Registers every metric on a registry of its own.
    pub fn new() -> Result<Self, prometheus::Error> {
        let r = Registry::new();
        let metrics = Self {
            transfers_started: counter(&r, "sluice_transfers_started_total", "Transfers started.")?,
            transfers_ended: counters(&r, "sluice_transfers_ended_total", "Transfers ended.", &["outcome"])?,
            transfers_running: gauge(&r, "sluice_transfers_running", "Transfers running.")?,
            bytes_received: counter(&r, "sluice_received_bytes_total", "Bytes received from agents in valid frames.")?,
            bytes_sent: counter(&r, "sluice_sent_bytes_total", "Bytes handed to readers.")?,
            reads_started: counter(&r, "sluice_reads_started_total", "Reads asked of agents.")?,
            reads_ended: counters(&r, "sluice_reads_ended_total", "Reads ended.", &["outcome"])?,
            reads_running: gauge(&r, "sluice_reads_running", "Reads in flight.")?,
            slot_waits: gauge(&r, "sluice_read_slot_waits", "Feeds waiting for a read slot.")?,
            rate_waits: counters(&r, "sluice_rate_waits_total", "Times a highest rate held bytes back.", &["limit"])?,
            credit_waits: counter(&r, "sluice_credit_waits_total", "Times a read's credit was used up by its agent.")?,
            resumes: counters(&r, "sluice_resumes_total", "Times remaining bytes were asked for again.", &["reason"])?,
            first_byte_seconds: first_byte(&r)?,
            connections: gauges(&r, "sluice_agent_connections", "Agents' connections held.", &["kind"])?,
            connections_ended: counters(
                &r,
                "sluice_agent_connections_ended_total",
                "Agents' connections ended.",
                &["reason"],
            )?,
            agents_online: gauge(&r, "sluice_agents_online", "Agents online.")?,
            signatures: counters(&r, "sluice_signatures_total", "Signed requests judged.", &["outcome"])?,
            sessions: counters(&r, "sluice_sessions_total", "Sessions asked for.", &["outcome"])?,
            announcements: counters(&r, "sluice_announcements_total", "Announcements decided.", &["outcome"])?,
            announcements_reading: gauge(
                &r,
                "sluice_announcements_reading",
                "Announcements that wait for their manifests to be read.",
            )?,
            violations: counters(&r, "sluice_violations_total", "Rules of the protocol that agents broke.", &["rule"])?,
            hash_mismatches: counter(&r, "sluice_hash_mismatches_total", "Hashes that were not the announced ones.")?,
            swept: counters(&r, "sluice_swept_total", "Rows removed because they had had their time.", &["what"])?,
            locations: counters(&r, "sluice_locations_total", "Places asked for bytes.", &["kind", "outcome"])?,
            audit_records: counters(&r, "sluice_audit_records_total", "Reads handed to the audit.", &["outcome"])?,
            requests_limited: counters(
                &r,
                "sluice_http_requests_limited_total",
                "Requests told to come later.",
                &["limit"],
            )?,
            fetches: counters(&r, "sluice_fetches_total", "The gateway's own fetches.", &["outcome"])?,
            event_subscribers: gauge(&r, "sluice_event_subscribers", "Readers of chats' events.")?,
            events_dropped: counter(&r, "sluice_events_dropped_total", "Events that readers were too slow for.")?,
            requests: counters(
                &r,
                "sluice_http_requests_total",
                "HTTP requests answered; those whose sender left before have the status none.",
                &["route", "status"],
            )?,
            cache_lookups: counters(
                &r,
                "sluice_cache_lookups_total",
                "Objects looked for in the cache.",
                &["outcome"],
            )?,
            cache_writes: counters(&r, "sluice_cache_writes_total", "Objects written to the cache.", &["outcome"])?,
            cache_waits: counters(
                &r,
                "sluice_cache_waits_total",
                "Waits for objects that were being written for another reader.",
                &["outcome"],
            )?,
            cache_refused: gauge(
                &r,
                "sluice_cache_refused",
                "1 while the cache is not written because the disk refused something.",
            )?,
            cache_read_bytes: counter(&r, "sluice_cache_read_bytes_total", "Bytes read from the cache.")?,
            cache_bytes: gauge(&r, "sluice_cache_bytes", "Bytes that the cache's objects count for.")?,
            cache_objects: gauge(&r, "sluice_cache_objects", "Objects in the cache.")?,
            cache_evicted: counter(&r, "sluice_cache_evicted_total", "Objects removed from the cache to make room.")?,
            cache_spoilt: counter(&r, "sluice_cache_spoilt_total", "Files of the cache that lost their hash.")?,
            database_up: gauge(&r, "sluice_database_up", "1 while the database answers and takes what is written.")?,
            registry: r,
        };
        Ok(metrics)
    }

    /// The text exposition of everything.
    pub fn render(&self) -> Result<String, prometheus::Error> {
        let mut text = Vec::new();
        TextEncoder::new().encode(&self.registry.gather(), &mut text)?;
        Ok(String::from_utf8_lossy(&text).into_owned())
    }
}

fn counter(registry: &Registry, name: &str, help: &str) -> Result<IntCounter, prometheus::Error> {
    let metric = IntCounter::new(name, help)?;
    registry.register(Box::new(metric.clone()))?;
    Ok(metric)
}

fn counters(registry: &Registry, name: &str, help: &str, labels: &[&str]) -> Result<IntCounterVec, prometheus::Error> {
    let metric = IntCounterVec::new(Opts::new(name, help), labels)?;
    registry.register(Box::new(metric.clone()))?;
    Ok(metric)
}

fn gauge(registry: &Registry, name: &str, help: &str) -> Result<IntGauge, prometheus::Error> {
    let metric = IntGauge::new(name, help)?;
    registry.register(Box::new(metric.clone()))?;
    Ok(metric)
}

fn gauges(registry: &Registry, name: &str, help: &str, labels: &[&str]) -> Result<IntGaugeVec, prometheus::Error> {
    let metric = IntGaugeVec::new(Opts::new(name, help), labels)?;
    registry.register(Box::new(metric.clone()))?;
    Ok(metric)
}

fn first_byte(registry: &Registry) -> Result<Histogram, prometheus::Error> {
    let help = "Seconds from a reader's request to the first byte that may be released.";
    let opts = HistogramOpts::new("sluice_first_byte_seconds", help).buckets(FIRST_BYTE_BUCKETS.to_vec());
    let metric = Histogram::with_opts(opts)?;
    registry.register(Box::new(metric.clone()))?;
    Ok(metric)
}
