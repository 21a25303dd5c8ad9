-- The servers that share this database, each start of each of them: a row is theirs until expires_at,
-- by the clock of the database. boot is the id of the start, which leases name; address is where other
-- nodes reach it, empty for one that they cannot.
CREATE TABLE nodes (
    id         text COLLATE "C" PRIMARY KEY CHECK (id <> ''),
    boot       text COLLATE "C" NOT NULL UNIQUE,
    address    text COLLATE "C" NOT NULL,
    site       text COLLATE "C" NOT NULL,
    host       text NOT NULL,
    pid        bigint NOT NULL,
    version    text NOT NULL,
    started_at bigint NOT NULL,
    expires_at timestamptz NOT NULL
);

-- path is the directory of a workspace; it was its data directory, by default .crush in it. terms are
-- what its first client asked for, without the environment; wanted says that it was open when its last
-- owner ended, so that another node opens it for the next request.
ALTER TABLE workspaces
    ADD COLUMN terms text NOT NULL DEFAULT '',
    ADD COLUMN wanted boolean NOT NULL DEFAULT false;

UPDATE workspaces SET path = left(path, -7)
WHERE path LIKE '_%/.crush' AND NOT EXISTS (
    SELECT FROM workspaces AS other
    WHERE other.site = workspaces.site AND other.path = left(workspaces.path, -7)
);

CREATE INDEX leases_by_node ON leases (node_id);
