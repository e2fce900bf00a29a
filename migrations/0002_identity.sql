-- The nonces of signatures that may still be sent again. One index for looking up and counting, one for the sweep.
CREATE TABLE nonces (
    principal TEXT NOT NULL,
    nonce TEXT NOT NULL,
    expires_at BIGINT NOT NULL,
    PRIMARY KEY (principal, nonce)
);
CREATE INDEX nonces_by_expiry ON nonces (expires_at);

-- The keys that agents have signed with, by RFC 7638 thumbprint.
CREATE TABLE keys (
    principal TEXT NOT NULL,
    thumbprint TEXT NOT NULL,
    first_seen BIGINT NOT NULL,
    last_seen BIGINT NOT NULL,
    PRIMARY KEY (principal, thumbprint)
);
