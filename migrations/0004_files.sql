-- A manifest that is nested in others is kept once by itself, without entries of its own (listed = 0) until somebody
-- announces it as a set.
ALTER TABLE manifests ADD COLUMN listed BIGINT NOT NULL DEFAULT 1;

-- The entries of a set are those of its whole tree, under their full paths. owner is the nested manifest that an entry
-- stands in, NULL for the set's own: its locations are the entry's.
ALTER TABLE entries ADD COLUMN owner TEXT;

-- Which manifests are in whose tree: each set's own, and those nested in it.
CREATE TABLE manifest_trees (
    root TEXT NOT NULL REFERENCES manifests (sha256) ON DELETE CASCADE,
    manifest TEXT NOT NULL REFERENCES manifests (sha256),
    PRIMARY KEY (root, manifest)
);
CREATE INDEX manifest_trees_by_manifest ON manifest_trees (manifest, root);
INSERT INTO manifest_trees (root, manifest) SELECT sha256, sha256 FROM manifests;

-- What a set counts for in quotas. KiB, so that no sum overflows. versioned is 1 once its files have their versions:
-- from then on it is not superseded.
ALTER TABLE announcements ADD COLUMN entries BIGINT NOT NULL DEFAULT 0;
ALTER TABLE announcements ADD COLUMN announced_kib BIGINT NOT NULL DEFAULT 0;
ALTER TABLE announcements ADD COLUMN versioned BIGINT NOT NULL DEFAULT 0;
UPDATE announcements SET
    entries = COALESCE((SELECT m.entry_count FROM manifests m WHERE m.sha256 = announcements.manifest), 0),
    announced_kib = COALESCE((SELECT m.total_size / 1024 FROM manifests m WHERE m.sha256 = announcements.manifest), 0);

-- A path of an agent in a chat, and its latest version. No foreign keys, for the reason given at entries: what belongs
-- to a chat is removed with it, in one transaction.
CREATE TABLE files (
    id BIGINT PRIMARY KEY,
    chat TEXT NOT NULL,
    agent TEXT NOT NULL,
    path TEXT NOT NULL,
    version BIGINT NOT NULL,
    sha256 TEXT NOT NULL,
    size BIGINT NOT NULL,
    media_type TEXT NOT NULL,
    kind TEXT NOT NULL,
    announcement BIGINT NOT NULL
);
CREATE UNIQUE INDEX files_by_path ON files (chat, agent, path);
CREATE INDEX files_by_announcement ON files (announcement);
CREATE INDEX files_by_chat ON files (chat, id);

-- announcement is the one that brought the version.
CREATE TABLE file_versions (
    file BIGINT NOT NULL,
    version BIGINT NOT NULL,
    sha256 TEXT NOT NULL,
    size BIGINT NOT NULL,
    media_type TEXT NOT NULL,
    kind TEXT NOT NULL,
    announcement BIGINT NOT NULL,
    created_at BIGINT NOT NULL,
    PRIMARY KEY (file, version)
);
