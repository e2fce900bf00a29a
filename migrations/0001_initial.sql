-- The same statements run on SQLite and on Postgres: only TEXT, BIGINT and BYTEA, times in Unix milliseconds,
-- JSON in TEXT, no BOOLEAN.

CREATE TABLE chats (
    id TEXT PRIMARY KEY,
    title TEXT,
    created_at BIGINT NOT NULL
);

CREATE TABLE participants (
    chat TEXT NOT NULL REFERENCES chats (id) ON DELETE CASCADE,
    principal TEXT NOT NULL,
    PRIMARY KEY (chat, principal)
);
CREATE INDEX participants_by_principal ON participants (principal, chat);

CREATE TABLE agents (
    name TEXT PRIMARY KEY,
    principal TEXT NOT NULL,
    created_at BIGINT NOT NULL,
    last_seen_at BIGINT NOT NULL
);
CREATE INDEX agents_by_principal ON agents (principal);

-- A session id is bound once, whoever its agent is, so it is the key by itself.
CREATE TABLE sessions (
    session_id TEXT PRIMARY KEY,
    agent TEXT NOT NULL,
    chat TEXT NOT NULL REFERENCES chats (id) ON DELETE CASCADE,
    created_at BIGINT NOT NULL
);
CREATE INDEX sessions_by_chat ON sessions (chat);

CREATE TABLE manifests (
    sha256 TEXT PRIMARY KEY,
    size BIGINT NOT NULL,
    bytes BYTEA NOT NULL,
    created_at BIGINT NOT NULL,
    expires_at BIGINT,
    producer_task TEXT,
    entry_count BIGINT NOT NULL,
    total_size BIGINT NOT NULL,
    locations TEXT
);

-- No foreign key to manifests: checking it for 10,000 rows costs as much as inserting them, and both are written and
-- removed in one transaction.
-- leads is 1 for the first entry of each blob within its manifest, so that a search by blob meets a manifest once,
-- however often the manifest repeats the blob.
CREATE TABLE entries (
    manifest TEXT NOT NULL,
    position BIGINT NOT NULL,
    path TEXT NOT NULL,
    size BIGINT NOT NULL,
    sha256 TEXT NOT NULL,
    media_type TEXT NOT NULL,
    kind TEXT NOT NULL,
    chunk_size BIGINT,
    chunk_hashes BYTEA,
    locations TEXT,
    leads BIGINT NOT NULL,
    PRIMARY KEY (manifest, position)
);
CREATE UNIQUE INDEX entries_by_path ON entries (manifest, path);
CREATE INDEX entries_by_blob ON entries (sha256) WHERE leads = 1;

-- chat is NULL while the session is not bound, and for good when there is no session.
CREATE TABLE announcements (
    id BIGINT PRIMARY KEY,
    chat TEXT REFERENCES chats (id) ON DELETE CASCADE,
    agent TEXT NOT NULL,
    manifest TEXT NOT NULL REFERENCES manifests (sha256),
    manifest_size BIGINT NOT NULL,
    session_id TEXT,
    task_id TEXT,
    done BIGINT,
    total BIGINT,
    locations TEXT,
    created_at BIGINT NOT NULL,
    updated_at BIGINT NOT NULL,
    expires_at BIGINT
);
CREATE INDEX announcements_by_chat ON announcements (chat, id);
CREATE INDEX announcements_by_chat_manifest ON announcements (chat, manifest);
CREATE INDEX announcements_by_manifest ON announcements (manifest, agent);
CREATE INDEX announcements_by_agent_session ON announcements (agent, session_id);
CREATE INDEX announcements_by_agent_task ON announcements (agent, task_id);
