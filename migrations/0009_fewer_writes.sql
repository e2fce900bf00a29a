-- An index over a column that changes with every version makes Postgres write each of a file's index entries anew for
-- it. What an announcement brought is told by the statement that brings it.
DROP INDEX files_by_announcement;
