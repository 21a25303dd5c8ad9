-- Times are unix seconds; a time that has not come is NULL. Ids are text chosen by the program.
-- JSON columns are written and read by the program only; nothing in here looks inside them. Where
-- there is an n, it is the order in which the rows came.

-- closed_at is NULL for a start that has not ended, or not in good order. trimmed_seq is the highest
-- seq of its events that event_tail no longer has; a trigger keeps it.
CREATE TABLE boots (
    n           INTEGER PRIMARY KEY,
    id          TEXT    NOT NULL UNIQUE,
    started_at  INTEGER NOT NULL,
    pid         INTEGER NOT NULL,
    version     TEXT    NOT NULL,
    closed_at   INTEGER,
    trimmed_seq INTEGER
) STRICT;

-- The first two token columns are gauges, set by every step to what the context holds now. The two
-- totals only grow. last_seq is the seq of the newest message there ever was, so that a place in the
-- order is never given out twice, not even after a deletion; a trigger keeps it.
CREATE TABLE sessions (
    n                       INTEGER PRIMARY KEY,
    id                      TEXT    NOT NULL UNIQUE CHECK (id <> ''),
    parent_session_id       TEXT             CHECK (parent_session_id <> ''),
    title                   TEXT    NOT NULL DEFAULT '',
    message_count           INTEGER NOT NULL DEFAULT 0 CHECK (message_count >= 0),
    prompt_tokens           INTEGER NOT NULL DEFAULT 0 CHECK (prompt_tokens >= 0),
    completion_tokens       INTEGER NOT NULL DEFAULT 0 CHECK (completion_tokens >= 0),
    total_prompt_tokens     INTEGER NOT NULL DEFAULT 0 CHECK (total_prompt_tokens >= 0),
    total_completion_tokens INTEGER NOT NULL DEFAULT 0 CHECK (total_completion_tokens >= 0),
    cost                    REAL    NOT NULL DEFAULT 0 CHECK (cost >= 0),
    summary_message_id      TEXT,
    todos                   TEXT    NOT NULL DEFAULT '[]' CHECK (json_valid(todos)),
    last_seq                INTEGER NOT NULL DEFAULT 0 CHECK (last_seq >= 0),
    created_at              INTEGER NOT NULL,
    updated_at              INTEGER NOT NULL
) STRICT;

CREATE INDEX sessions_by_update ON sessions (updated_at) WHERE parent_session_id IS NULL;
CREATE INDEX sessions_by_parent ON sessions (parent_session_id)
    WHERE parent_session_id IS NOT NULL;

CREATE TABLE messages (
    n                  INTEGER PRIMARY KEY,
    id                 TEXT    NOT NULL UNIQUE CHECK (id <> ''),
    session_id         TEXT    NOT NULL REFERENCES sessions (id) ON DELETE CASCADE,
    seq                INTEGER NOT NULL CHECK (seq > 0),
    role               TEXT    NOT NULL,
    model              TEXT    NOT NULL DEFAULT '',
    provider           TEXT    NOT NULL DEFAULT '',
    is_summary_message INTEGER NOT NULL DEFAULT 0 CHECK (is_summary_message IN (0, 1)),
    created_at         INTEGER NOT NULL,
    updated_at         INTEGER NOT NULL,
    finished_at        INTEGER,
    UNIQUE (session_id, seq)
) STRICT;

CREATE INDEX messages_unfinished ON messages (session_id, seq) WHERE finished_at IS NULL;
CREATE INDEX messages_of_users ON messages (created_at) WHERE role = 'user';

-- The fixed piece of a part. The text of a part that grows while it is streamed goes on in its chunks,
-- in the order of n: appending costs what is appended, not what is already there. A message that is
-- finished has no chunks: its text is all in data.
CREATE TABLE parts (
    message_id TEXT    NOT NULL REFERENCES messages (id) ON DELETE CASCADE,
    idx        INTEGER NOT NULL CHECK (idx >= 0),
    type       TEXT    NOT NULL,
    data       TEXT    NOT NULL,
    PRIMARY KEY (message_id, idx)
) STRICT, WITHOUT ROWID;

CREATE TABLE chunks (
    message_id TEXT    NOT NULL,
    idx        INTEGER NOT NULL,
    n          INTEGER NOT NULL CHECK (n >= 0),
    text       TEXT    NOT NULL,
    PRIMARY KEY (message_id, idx, n),
    FOREIGN KEY (message_id, idx) REFERENCES parts (message_id, idx) ON DELETE CASCADE
) STRICT, WITHOUT ROWID;

-- Every accepted submission, from acceptance to its one ending. No foreign key to the session: a run
-- may be accepted for a session that does not exist (A5), and outlives one that is deleted. seq is the
-- order of acceptance within one start of the program. Attachments go when the run has ended.
CREATE TABLE runs (
    n                 INTEGER PRIMARY KEY,
    id                TEXT    NOT NULL UNIQUE CHECK (id <> ''),
    run_id            TEXT             CHECK (run_id <> ''),
    session_id        TEXT    NOT NULL,
    kind              TEXT    NOT NULL,
    state             TEXT    NOT NULL CHECK (state IN (
        'accepted', 'queued', 'active', 'completed', 'cancelled', 'errored', 'folded', 'interrupted'
    )),
    seq               INTEGER NOT NULL,
    boot_id           TEXT    NOT NULL,
    prompt            TEXT    NOT NULL DEFAULT '',
    attachments       BLOB,
    prompt_message_id TEXT,
    message_id        TEXT    NOT NULL DEFAULT '',
    text              TEXT    NOT NULL DEFAULT '',
    error             TEXT    NOT NULL DEFAULT '',
    folded_into       TEXT,
    accepted_at       INTEGER NOT NULL,
    started_at        INTEGER,
    ended_at          INTEGER,
    CHECK ((ended_at IS NULL) = (state IN ('accepted', 'queued', 'active'))),
    CHECK ((folded_into IS NOT NULL) = (state = 'folded'))
) STRICT;

CREATE UNIQUE INDEX runs_by_run_id ON runs (run_id) WHERE run_id IS NOT NULL;
CREATE INDEX runs_by_time ON runs (accepted_at, seq);
CREATE INDEX runs_by_session ON runs (session_id, accepted_at, seq);
CREATE INDEX runs_unended ON runs (boot_id) WHERE state IN ('accepted', 'queued', 'active');

CREATE TABLE files (
    id         TEXT    NOT NULL PRIMARY KEY CHECK (id <> ''),
    session_id TEXT    NOT NULL REFERENCES sessions (id) ON DELETE CASCADE,
    path       TEXT    NOT NULL CHECK (path GLOB '/*'),
    content    TEXT    NOT NULL,
    version    INTEGER NOT NULL CHECK (version >= 0),
    created_at INTEGER NOT NULL,
    updated_at INTEGER NOT NULL,
    UNIQUE (path, session_id, version)
) STRICT;

CREATE INDEX files_by_version ON files (path, version);
CREATE INDEX files_by_session ON files (session_id, path);

CREATE TABLE read_files (
    session_id TEXT    NOT NULL CHECK (session_id <> '')
        REFERENCES sessions (id) ON DELETE CASCADE,
    path       TEXT    NOT NULL CHECK (path GLOB '/*'),
    read_at    INTEGER NOT NULL,
    PRIMARY KEY (path, session_id)
) STRICT, WITHOUT ROWID;

CREATE INDEX read_files_by_session ON read_files (session_id);

-- What waits, or waited, for a person's answer.
CREATE TABLE asks (
    n            INTEGER PRIMARY KEY,
    id           TEXT    NOT NULL UNIQUE CHECK (id <> ''),
    kind         TEXT    NOT NULL,
    session_id   TEXT    NOT NULL,
    run_id       TEXT    NOT NULL,
    tool_call_id TEXT    NOT NULL,
    payload      TEXT    NOT NULL,
    created_at   INTEGER NOT NULL,
    resolved_at  INTEGER,
    resolution   TEXT,
    CHECK ((resolved_at IS NULL) = (resolution IS NULL))
) STRICT;

CREATE INDEX asks_pending ON asks (created_at) WHERE resolved_at IS NULL;

-- The last events a reader can still ask for after a restart. Only the oldest are ever removed, so
-- their n have no gaps and the newest k are those above max(n) - k.
CREATE TABLE event_tail (
    n        INTEGER PRIMARY KEY,
    boot_id  TEXT    NOT NULL,
    seq      INTEGER NOT NULL,
    terminal INTEGER NOT NULL CHECK (terminal IN (0, 1)),
    event    TEXT    NOT NULL,
    UNIQUE (boot_id, seq)
) STRICT;

CREATE TRIGGER event_tail_trimmed AFTER DELETE ON event_tail BEGIN
    UPDATE boots
    SET trimmed_seq = max(coalesce(trimmed_seq, OLD.seq), OLD.seq)
    WHERE id = OLD.boot_id;
END;

-- Text that was appended belongs to the part it was appended to, not to its place.
CREATE TRIGGER parts_replaced AFTER UPDATE OF type ON parts WHEN NEW.type <> OLD.type BEGIN
    DELETE FROM chunks WHERE message_id = OLD.message_id AND idx = OLD.idx;
END;

-- A session is as fresh as its freshest message. The stamps come with the rows, not from the
-- database's idea of now, and a late row does not turn the clock back.
CREATE TRIGGER messages_inserted AFTER INSERT ON messages BEGIN
    UPDATE sessions
    SET message_count = message_count + 1,
        last_seq = max(last_seq, NEW.seq),
        updated_at = max(updated_at, NEW.updated_at)
    WHERE id = NEW.session_id;
END;

CREATE TRIGGER messages_updated AFTER UPDATE OF updated_at ON messages
WHEN NEW.updated_at > OLD.updated_at BEGIN
    UPDATE sessions
    SET updated_at = max(updated_at, NEW.updated_at)
    WHERE id = NEW.session_id;
END;

CREATE TRIGGER messages_deleted AFTER DELETE ON messages BEGIN
    UPDATE sessions
    SET message_count = message_count - 1
    WHERE id = OLD.session_id;
END;
