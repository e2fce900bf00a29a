-- Written to every few seconds, to see whether anything can be written.
CREATE TABLE heartbeat (
    id BIGINT PRIMARY KEY,
    at BIGINT NOT NULL
);

-- What the sweep looks for.
CREATE INDEX announcements_by_expiry ON announcements (expires_at) WHERE expires_at IS NOT NULL;
CREATE INDEX sessions_by_age ON sessions (created_at);
