-- Who is known at a host and port: agents known by a URL there (announced = 0), and agents known by a token that
-- announced a location there (announced = 1). The gateway signs what it asks for the latter only where nobody else is.
CREATE TABLE endpoints (
    authority TEXT NOT NULL,
    principal TEXT NOT NULL,
    announced BIGINT NOT NULL,
    seen_at BIGINT NOT NULL,
    PRIMARY KEY (authority, principal)
);
CREATE INDEX endpoints_by_principal ON endpoints (principal);
CREATE INDEX sessions_by_agent ON sessions (agent);
CREATE INDEX announcements_unbound ON announcements (agent, manifest_size) WHERE chat IS NULL;
