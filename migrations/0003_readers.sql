-- What readers hold beside tokens, and what they read.

-- Who read what. An id holds the time at which the read ended, so order, pages and retention go by it. A chat may be
-- gone, and what was read in it stays written down.
CREATE TABLE audit (
    id BIGINT PRIMARY KEY,
    started_at BIGINT NOT NULL,
    duration_ms BIGINT NOT NULL,
    principal TEXT NOT NULL,
    chat TEXT,
    agents TEXT NOT NULL,
    sha256 TEXT NOT NULL,
    path TEXT,
    range_start BIGINT NOT NULL,
    range_end BIGINT NOT NULL,
    sent_bytes BIGINT NOT NULL,
    outcome TEXT NOT NULL,
    transfer BIGINT,
    link TEXT
);
CREATE INDEX audit_by_principal ON audit (principal, id);
CREATE INDEX audit_by_chat ON audit (chat, id);
CREATE INDEX audit_by_sha256 ON audit (sha256, id);

-- The same agents as in the row's list, for finding it.
CREATE TABLE audit_agents (
    agent TEXT NOT NULL,
    id BIGINT NOT NULL REFERENCES audit (id) ON DELETE CASCADE,
    PRIMARY KEY (agent, id)
);
CREATE INDEX audit_agents_by_id ON audit_agents (id);

-- A hash is keyed with the gateway's token secret: whoever reads this table can use nothing in it, and a new secret
-- ends everything that was handed out under the old one. chats is the credential's limit, where it has one.

CREATE TABLE browsers (
    hash TEXT PRIMARY KEY,
    principal TEXT NOT NULL,
    chats TEXT,
    created_at BIGINT NOT NULL,
    expires_at BIGINT NOT NULL
);
CREATE INDEX browsers_by_principal ON browsers (principal, created_at);
CREATE INDEX browsers_by_expiry ON browsers (expires_at);

CREATE TABLE signin_codes (
    hash TEXT PRIMARY KEY,
    principal TEXT NOT NULL,
    chats TEXT,
    expires_at BIGINT NOT NULL
);
CREATE INDEX signin_codes_by_expiry ON signin_codes (expires_at);

CREATE TABLE links (
    id TEXT PRIMARY KEY,
    hash TEXT NOT NULL UNIQUE,
    principal TEXT NOT NULL,
    chat TEXT NOT NULL REFERENCES chats (id) ON DELETE CASCADE,
    manifest TEXT NOT NULL,
    path TEXT NOT NULL,
    created_at BIGINT NOT NULL,
    expires_at BIGINT NOT NULL
);
CREATE INDEX links_by_principal ON links (principal, chat, created_at);
CREATE INDEX links_by_chat ON links (chat);
CREATE INDEX links_by_expiry ON links (expires_at);
