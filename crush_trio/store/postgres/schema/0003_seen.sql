-- What people ask about the servers: when each was heard of last, by the clock of the database, and whether
-- it is about to end and takes no new work.
ALTER TABLE nodes
    ADD COLUMN seen_at timestamptz NOT NULL DEFAULT now(),
    ADD COLUMN draining boolean NOT NULL DEFAULT false;
