-- The recording of a run that was asked to be recorded, in pieces. Deleted with the session of the run.
CREATE TABLE recordings (
    run_id     TEXT    NOT NULL,
    n          INTEGER NOT NULL CHECK (n >= 0),
    session_id TEXT    NOT NULL REFERENCES sessions (id) ON DELETE CASCADE,
    data       TEXT    NOT NULL,
    PRIMARY KEY (run_id, n)
) STRICT;

CREATE INDEX recordings_by_session ON recordings (session_id);
