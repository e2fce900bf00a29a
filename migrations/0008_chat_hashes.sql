-- What a hash stands for in a chat: the blobs that the sets announced there list, and the manifests of their trees
-- (position -1). A search by hash meets the chats of whoever asks and nothing else, and a set that an agent announces in
-- a chat under many tasks once. since is the place among those that list the hash: the id of the announcement that did
-- first, or of an earlier state of its task. Rows go with their chat or manifest; those whose announcements have gone
-- before count for nothing.
CREATE TABLE chat_hashes (
    chat TEXT NOT NULL,
    sha256 TEXT NOT NULL,
    manifest TEXT NOT NULL,
    agent TEXT NOT NULL,
    position BIGINT NOT NULL,
    since BIGINT NOT NULL,
    PRIMARY KEY (chat, sha256, manifest, agent, position)
);
CREATE INDEX chat_hashes_by_manifest ON chat_hashes (manifest);

INSERT INTO chat_hashes (chat, sha256, manifest, agent, position, since)
    SELECT a.chat, e.sha256, a.manifest, a.agent, e.position, MIN(COALESCE(r.since, a.id))
    FROM announcements a JOIN entries e ON e.manifest = a.manifest AND e.leads = 1
    LEFT JOIN ranks r ON r.announcement = a.id AND r.position = e.position
    WHERE a.chat IS NOT NULL GROUP BY a.chat, e.sha256, a.manifest, a.agent, e.position;
INSERT INTO chat_hashes (chat, sha256, manifest, agent, position, since)
    SELECT a.chat, t.manifest, a.manifest, a.agent, -1, MIN(a.id)
    FROM announcements a JOIN manifest_trees t ON t.root = a.manifest
    WHERE a.chat IS NOT NULL GROUP BY a.chat, t.manifest, a.manifest, a.agent;

-- The first announcement of a set by an agent in a chat, and whether there is one for a task, by the index alone.
DROP INDEX announcements_by_chat_manifest;
CREATE INDEX announcements_by_chat_manifest ON announcements (chat, manifest, agent, id);
DROP INDEX announcements_by_manifest;
CREATE INDEX announcements_by_manifest ON announcements (manifest, agent, chat);
DROP INDEX announcements_by_agent_task;
CREATE INDEX announcements_by_agent_task ON announcements (agent, task_id, manifest);
-- The searches start from a chat now.
DROP INDEX entries_by_blob;
