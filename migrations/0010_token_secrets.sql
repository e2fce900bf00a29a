-- The token secrets that gateways of this database have had, by a hash that is keyed with the secret itself, and since
-- when: 0 for the first one.
CREATE TABLE token_secrets (
    hash TEXT PRIMARY KEY,
    since BIGINT NOT NULL
);
