-- One database for the workspaces of many servers: every row belongs to a workspace. Times are unix
-- seconds; a time that has not come is NULL. Ids are text chosen by the program. JSON columns are text
-- that the program alone writes and reads. Where there is an n, it is the order in which the rows of a
-- workspace came; the one owner of the workspace gives it, never a sequence of the database, whose
-- numbers become visible out of order. Text is compared byte by byte.

CREATE TABLE workspaces (
    number     bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    id         text COLLATE "C" NOT NULL UNIQUE CHECK (id <> ''),
    site       text COLLATE "C" NOT NULL,
    path       text COLLATE "C" NOT NULL,
    created_at bigint NOT NULL,
    UNIQUE (site, path)
);

-- The right to write the rows of a workspace. A claim adds 1 to the epoch, and every write
-- transaction checks node and epoch. Only the clock of the database counts.
CREATE TABLE leases (
    workspace  bigint PRIMARY KEY REFERENCES workspaces (number) ON DELETE CASCADE,
    node_id    text COLLATE "C" NOT NULL DEFAULT '',
    epoch      bigint NOT NULL DEFAULT 0,
    expires_at timestamptz NOT NULL DEFAULT '-infinity',
    holder     text NOT NULL DEFAULT ''
);

-- One row for each writer: the number of its last committed group. A writer whose connection broke in
-- the middle of a commit learns from it whether that group is stored.
CREATE TABLE writers (
    id      text COLLATE "C" PRIMARY KEY,
    commits bigint NOT NULL DEFAULT 0,
    used_at timestamptz NOT NULL DEFAULT now()
);

-- closed_at is NULL for a start that has not ended, or not in good order. trimmed_seq is the highest
-- seq of its events that event_tail no longer has.
CREATE TABLE boots (
    workspace   bigint NOT NULL REFERENCES workspaces (number) ON DELETE CASCADE,
    n           bigint NOT NULL,
    id          text COLLATE "C" NOT NULL,
    started_at  bigint NOT NULL,
    holder      text NOT NULL,
    closed_at   bigint,
    trimmed_seq bigint,
    PRIMARY KEY (workspace, id),
    UNIQUE (workspace, n)
);

-- last_seq is the seq of the newest message there ever was, so that a place in the order is never given
-- out twice; a trigger keeps it.
CREATE TABLE sessions (
    workspace               bigint NOT NULL REFERENCES workspaces (number) ON DELETE CASCADE,
    n                       bigint NOT NULL,
    id                      text COLLATE "C" NOT NULL CHECK (id <> ''),
    parent_session_id       text COLLATE "C" CHECK (parent_session_id <> ''),
    title                   text NOT NULL DEFAULT '',
    message_count           bigint NOT NULL DEFAULT 0 CHECK (message_count >= 0),
    prompt_tokens           bigint NOT NULL DEFAULT 0 CHECK (prompt_tokens >= 0),
    completion_tokens       bigint NOT NULL DEFAULT 0 CHECK (completion_tokens >= 0),
    total_prompt_tokens     bigint NOT NULL DEFAULT 0 CHECK (total_prompt_tokens >= 0),
    total_completion_tokens bigint NOT NULL DEFAULT 0 CHECK (total_completion_tokens >= 0),
    cost                    double precision NOT NULL DEFAULT 0 CHECK (cost >= 0),
    summary_message_id      text COLLATE "C",
    todos                   text NOT NULL DEFAULT '[]',
    last_seq                bigint NOT NULL DEFAULT 0 CHECK (last_seq >= 0),
    created_at              bigint NOT NULL,
    updated_at              bigint NOT NULL,
    PRIMARY KEY (workspace, id),
    UNIQUE (workspace, n)
);

CREATE INDEX sessions_by_update ON sessions (workspace, updated_at, n)
    WHERE parent_session_id IS NULL;
CREATE INDEX sessions_by_parent ON sessions (workspace, parent_session_id)
    WHERE parent_session_id IS NOT NULL;

-- run_id is the run whose turn a message belongs to; NULL for what was written outside of runs.
-- withdrawn marks the turn of a run that was cancelled before a model was asked.
CREATE TABLE messages (
    workspace          bigint NOT NULL,
    n                  bigint NOT NULL,
    id                 text COLLATE "C" NOT NULL CHECK (id <> ''),
    session_id         text COLLATE "C" NOT NULL,
    seq                bigint NOT NULL CHECK (seq > 0),
    role               text COLLATE "C" NOT NULL,
    model              text NOT NULL DEFAULT '',
    provider           text NOT NULL DEFAULT '',
    is_summary_message boolean NOT NULL DEFAULT false,
    created_at         bigint NOT NULL,
    updated_at         bigint NOT NULL,
    finished_at        bigint,
    run_id             text COLLATE "C",
    withdrawn          boolean NOT NULL DEFAULT false,
    PRIMARY KEY (workspace, id),
    UNIQUE (workspace, n),
    UNIQUE (workspace, session_id, seq),
    FOREIGN KEY (workspace, session_id) REFERENCES sessions (workspace, id) ON DELETE CASCADE
);

CREATE INDEX messages_unfinished ON messages (workspace, session_id, seq) WHERE finished_at IS NULL;
CREATE INDEX messages_of_users ON messages (workspace, created_at, n) WHERE role = 'user';
CREATE INDEX messages_by_run ON messages (workspace, run_id) WHERE run_id IS NOT NULL;

-- The fixed piece of a part. Text that is streamed goes on in its chunks, in the order of n. A message
-- that is finished has no chunks: its text is all in data.
CREATE TABLE parts (
    workspace  bigint NOT NULL,
    message_id text COLLATE "C" NOT NULL,
    idx        bigint NOT NULL CHECK (idx >= 0),
    type       text COLLATE "C" NOT NULL,
    data       text NOT NULL,
    PRIMARY KEY (workspace, message_id, idx),
    FOREIGN KEY (workspace, message_id) REFERENCES messages (workspace, id) ON DELETE CASCADE
);

CREATE TABLE chunks (
    workspace  bigint NOT NULL,
    message_id text COLLATE "C" NOT NULL,
    idx        bigint NOT NULL,
    n          bigint NOT NULL CHECK (n >= 0),
    text       text NOT NULL,
    PRIMARY KEY (workspace, message_id, idx, n),
    FOREIGN KEY (workspace, message_id, idx) REFERENCES parts (workspace, message_id, idx)
        ON DELETE CASCADE
);

-- Every accepted submission, from acceptance to its one ending. No foreign key to the session: a run
-- may be accepted for a session that does not exist, and outlives one that is deleted. ending_boot and
-- ending_seq are the place of its ending among the events.
CREATE TABLE runs (
    workspace   bigint NOT NULL REFERENCES workspaces (number) ON DELETE CASCADE,
    n           bigint NOT NULL,
    id          text COLLATE "C" NOT NULL CHECK (id <> ''),
    run_id      text COLLATE "C" CHECK (run_id <> ''),
    session_id  text COLLATE "C" NOT NULL,
    kind        text COLLATE "C" NOT NULL,
    state       text COLLATE "C" NOT NULL CHECK (state IN (
        'accepted', 'queued', 'active', 'completed', 'cancelled', 'errored', 'folded', 'interrupted'
    )),
    seq         bigint NOT NULL,
    boot_id     text COLLATE "C" NOT NULL,
    prompt      text NOT NULL DEFAULT '',
    attachments bytea,
    message_id  text COLLATE "C" NOT NULL DEFAULT '',
    text        text NOT NULL DEFAULT '',
    error       text NOT NULL DEFAULT '',
    folded_into text COLLATE "C",
    notices     text,
    accepted_at bigint NOT NULL,
    started_at  bigint,
    ended_at    bigint,
    ending_boot text COLLATE "C",
    ending_seq  bigint,
    PRIMARY KEY (workspace, id),
    UNIQUE (workspace, n),
    CHECK ((ended_at IS NULL) = (state IN ('accepted', 'queued', 'active'))),
    CHECK ((folded_into IS NOT NULL) = (state = 'folded'))
);

CREATE UNIQUE INDEX runs_by_run_id ON runs (workspace, run_id) WHERE run_id IS NOT NULL;
CREATE INDEX runs_by_time ON runs (workspace, accepted_at, seq, n);
CREATE INDEX runs_by_session ON runs (workspace, session_id, accepted_at, seq, n);
CREATE INDEX runs_unended ON runs (workspace) WHERE state IN ('accepted', 'queued', 'active');
CREATE INDEX runs_by_end ON runs (workspace, ended_at) WHERE ended_at IS NOT NULL;
CREATE INDEX runs_by_ending ON runs (workspace, ending_boot, ending_seq) WHERE ending_boot IS NOT NULL;

-- The recording of a run that was asked to be recorded, in pieces.
CREATE TABLE recordings (
    workspace  bigint NOT NULL,
    run_id     text COLLATE "C" NOT NULL,
    n          bigint NOT NULL CHECK (n >= 0),
    session_id text COLLATE "C" NOT NULL,
    data       text NOT NULL,
    PRIMARY KEY (workspace, run_id, n),
    FOREIGN KEY (workspace, session_id) REFERENCES sessions (workspace, id) ON DELETE CASCADE
);

CREATE INDEX recordings_by_session ON recordings (workspace, session_id);

CREATE TABLE files (
    workspace  bigint NOT NULL,
    id         text COLLATE "C" NOT NULL CHECK (id <> ''),
    session_id text COLLATE "C" NOT NULL,
    path       text COLLATE "C" NOT NULL CHECK (path LIKE '/%'),
    content    text NOT NULL,
    version    bigint NOT NULL CHECK (version >= 0),
    created_at bigint NOT NULL,
    updated_at bigint NOT NULL,
    PRIMARY KEY (workspace, id),
    FOREIGN KEY (workspace, session_id) REFERENCES sessions (workspace, id) ON DELETE CASCADE
);

CREATE INDEX files_by_version ON files (workspace, path, version);
CREATE INDEX files_by_session ON files (workspace, session_id, path, version);

CREATE TABLE read_files (
    workspace  bigint NOT NULL,
    session_id text COLLATE "C" NOT NULL,
    path       text COLLATE "C" NOT NULL CHECK (path LIKE '/%'),
    read_at    bigint NOT NULL,
    PRIMARY KEY (workspace, session_id, path),
    FOREIGN KEY (workspace, session_id) REFERENCES sessions (workspace, id) ON DELETE CASCADE
);

-- What waits, or waited, for a person's answer.
CREATE TABLE asks (
    workspace    bigint NOT NULL REFERENCES workspaces (number) ON DELETE CASCADE,
    n            bigint NOT NULL,
    id           text COLLATE "C" NOT NULL,
    kind         text NOT NULL,
    session_id   text COLLATE "C" NOT NULL,
    run_id       text COLLATE "C" NOT NULL,
    tool_call_id text NOT NULL,
    payload      text NOT NULL,
    created_at   bigint NOT NULL,
    resolved_at  bigint,
    resolution   text,
    PRIMARY KEY (workspace, id),
    UNIQUE (workspace, n),
    CHECK ((resolved_at IS NULL) = (resolution IS NULL))
);

CREATE INDEX asks_pending ON asks (workspace, created_at, n) WHERE resolved_at IS NULL;

-- The last events a reader can still ask for after a restart. Only the oldest are ever removed, so
-- their n have no gaps and the newest k are those above max(n) - k.
CREATE TABLE event_tail (
    workspace bigint NOT NULL REFERENCES workspaces (number) ON DELETE CASCADE,
    n         bigint NOT NULL,
    boot_id   text COLLATE "C" NOT NULL,
    seq       bigint NOT NULL,
    terminal  boolean NOT NULL,
    event     text NOT NULL,
    PRIMARY KEY (workspace, n),
    UNIQUE (workspace, boot_id, seq)
);

-- What the model calls of one day used; a day is the number of whole days since the epoch, in UTC. It
-- stays when sessions are deleted.
CREATE TABLE usage (
    workspace         bigint NOT NULL REFERENCES workspaces (number) ON DELETE CASCADE,
    day               bigint NOT NULL,
    prompt_tokens     bigint NOT NULL DEFAULT 0,
    completion_tokens bigint NOT NULL DEFAULT 0,
    cost              double precision NOT NULL DEFAULT 0,
    PRIMARY KEY (workspace, day)
);

-- Text that was appended belongs to the part it was appended to, not to its place.
CREATE FUNCTION drop_chunks() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    DELETE FROM chunks
    WHERE workspace = OLD.workspace AND message_id = OLD.message_id AND idx = OLD.idx;
    RETURN NULL;
END $$;

CREATE TRIGGER parts_replaced AFTER UPDATE OF type ON parts
    FOR EACH ROW WHEN (NEW.type <> OLD.type) EXECUTE FUNCTION drop_chunks();

-- A session is as fresh as its freshest message. The stamps come with the rows, and a late row does not
-- turn the clock back.
CREATE FUNCTION count_message() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    UPDATE sessions
    SET message_count = message_count + 1,
        last_seq = greatest(last_seq, NEW.seq),
        updated_at = greatest(updated_at, NEW.updated_at)
    WHERE workspace = NEW.workspace AND id = NEW.session_id;
    RETURN NULL;
END $$;

CREATE TRIGGER messages_inserted AFTER INSERT ON messages
    FOR EACH ROW EXECUTE FUNCTION count_message();

CREATE FUNCTION refresh_session() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    UPDATE sessions SET updated_at = NEW.updated_at
    WHERE workspace = NEW.workspace AND id = NEW.session_id AND updated_at < NEW.updated_at;
    RETURN NULL;
END $$;

CREATE TRIGGER messages_updated AFTER UPDATE OF updated_at ON messages
    FOR EACH ROW WHEN (NEW.updated_at > OLD.updated_at) EXECUTE FUNCTION refresh_session();

CREATE FUNCTION uncount_message() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    UPDATE sessions SET message_count = message_count - 1
    WHERE workspace = OLD.workspace AND id = OLD.session_id;
    RETURN NULL;
END $$;

CREATE TRIGGER messages_deleted AFTER DELETE ON messages
    FOR EACH ROW EXECUTE FUNCTION uncount_message();
