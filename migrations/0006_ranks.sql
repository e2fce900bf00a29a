-- Who announced a blob first. What a set lists that an earlier state of its task listed keeps that state's place among
-- the announcements of the blob, although the state itself has made way: position is the entry's, since the id of the
-- announcement that listed it first. Where there is no row, an announcement stands at its own id.
CREATE TABLE ranks (
    announcement BIGINT NOT NULL REFERENCES announcements (id) ON DELETE CASCADE,
    position BIGINT NOT NULL,
    since BIGINT NOT NULL,
    PRIMARY KEY (announcement, position)
);

-- Names an entry's chunk list, so that two lists are compared without being read. NULL where there is none, and for
-- lists from before this column, each of which counts as another than every other.
ALTER TABLE entries ADD COLUMN chunks_sha256 TEXT;
