"""What the database of a chaos test records about itself, and the promises that are checked by it.

Triggers note three things, which the program under test neither knows nor could keep from being noted:

* every claim of a lease: its epoch, and which start of which node made it;
* every transaction that wrote rows of a workspace: which start of which node ran it, the epoch of the lease
  at that moment, and its id, by which the database knows when it was committed;
* every ending that was stored.

So a write under an old epoch is seen in any of two ways: its node is not the one that had claimed the epoch,
or it was committed after the next claim. The names of connections (`application_name`) tell the nodes apart:
each start gets a URL of its own, and gives the transactions that write the id by which leases name it.
"""

from collections import Counter
from collections.abc import Iterable
from typing import Final

from attrs import define, field, frozen

from benchmarks.soak.ledger import ENDED, Violation
from crush_trio.store.postgres.workspaces import TABLES

_TRIGGERS: Final = """
    CREATE TABLE chaos_claims (
        workspace bigint, epoch bigint, start text, boot text, xid xid8, at timestamptz,
        PRIMARY KEY (workspace, epoch)
    );
    CREATE TABLE chaos_writes (
        workspace bigint, xid xid8, epoch bigint, boot text, what text,
        PRIMARY KEY (workspace, xid, epoch)
    );
    CREATE TABLE chaos_endings (workspace bigint, id text, before text, state text, boot text);

    CREATE FUNCTION chaos_claim() RETURNS trigger LANGUAGE plpgsql AS $$
    BEGIN
        INSERT INTO chaos_claims VALUES (NEW.workspace, NEW.epoch,
            current_setting('application_name'), NEW.node_id, pg_current_xact_id(),
            clock_timestamp());
        RETURN NULL;
    END $$;
    CREATE TRIGGER chaos AFTER UPDATE OF epoch ON leases
        FOR EACH ROW WHEN (NEW.epoch <> OLD.epoch) EXECUTE FUNCTION chaos_claim();

    CREATE FUNCTION chaos_write() RETURNS trigger LANGUAGE plpgsql AS $$
    BEGIN
        INSERT INTO chaos_writes
            SELECT workspace, pg_current_xact_id(), epoch, current_setting('application_name'),
                TG_TABLE_NAME
            FROM leases WHERE workspace = coalesce(NEW.workspace, OLD.workspace)
        ON CONFLICT DO NOTHING;
        RETURN NULL;
    END $$;

    CREATE FUNCTION chaos_ending() RETURNS trigger LANGUAGE plpgsql AS $$
    BEGIN
        INSERT INTO chaos_endings VALUES (NEW.workspace, NEW.id,
            CASE TG_OP WHEN 'UPDATE' THEN OLD.state ELSE '' END, NEW.state,
            current_setting('application_name'));
        RETURN NULL;
    END $$;
    CREATE TRIGGER chaos_ended AFTER UPDATE OF state ON runs
        FOR EACH ROW WHEN (NEW.state <> OLD.state AND NEW.ended_at IS NOT NULL)
        EXECUTE FUNCTION chaos_ending();
    CREATE TRIGGER chaos_ended_at_once AFTER INSERT ON runs
        FOR EACH ROW WHEN (NEW.ended_at IS NOT NULL) EXECUTE FUNCTION chaos_ending();
"""

INSTALL: Final = _TRIGGERS + "".join(
    f"CREATE TRIGGER chaos_written AFTER INSERT OR UPDATE OR DELETE ON {table}"
    " FOR EACH ROW EXECUTE FUNCTION chaos_write();"
    for table in TABLES
)
"""What is run once in a database that has the schema of the program."""

_STALE: Final = """
    SELECT w.workspace, w.what, w.boot, w.epoch, coalesce(c.boot, 'nobody'),
        pg_xact_commit_timestamp(w.xid::xid), pg_xact_commit_timestamp(later.xid::xid)
    FROM chaos_writes AS w
    LEFT JOIN chaos_claims AS c ON c.workspace = w.workspace AND c.epoch = w.epoch
    LEFT JOIN chaos_claims AS later ON later.workspace = w.workspace AND later.epoch = w.epoch + 1
    WHERE w.boot IS DISTINCT FROM 'crush-trio ' || c.boot
        OR pg_xact_commit_timestamp(w.xid::xid) > pg_xact_commit_timestamp(later.xid::xid)
    LIMIT 5
"""

_TWICE: Final = f"""
    SELECT workspace, id, array_agg(state || ' by ' || boot) FROM chaos_endings
    GROUP BY workspace, id
    HAVING count(*) > 1 OR bool_or(before = ANY (ARRAY{sorted(ENDED)!r}))
    LIMIT 5
"""

_RUNS: Final = """
    SELECT run_id, runs.id, state, text, message_id, runs.session_id, error FROM runs
    JOIN workspaces ON number = workspace WHERE path = '{path}' AND kind = 'prompt'
"""

_TEXTS: Final = """
    SELECT m.id, m.run_id, coalesce(string_agg(t.text, '' ORDER BY t.idx, t.n), ''),
        m.finished_at IS NOT NULL
    FROM messages AS m
    JOIN workspaces AS w ON w.number = m.workspace
    LEFT JOIN LATERAL (
        SELECT p.idx, -1::bigint AS n, p.data::json ->> 'text' AS text FROM parts AS p
        WHERE p.workspace = m.workspace AND p.message_id = m.id AND p.type = 'text'
        UNION ALL
        SELECT c.idx, c.n, c.text FROM chunks AS c JOIN parts AS p USING (workspace, message_id, idx)
        WHERE c.workspace = m.workspace AND c.message_id = m.id AND p.type = 'text'
    ) AS t ON true
    WHERE w.path = '{path}' AND m.role = 'assistant'
    GROUP BY m.workspace, m.id
"""

_CLAIMS: Final = """
    SELECT start, extract(epoch FROM at)::float8 FROM chaos_claims
    JOIN workspaces ON number = workspace WHERE path = '{path}' ORDER BY chaos_claims.epoch
"""


@frozen(kw_only=True)
class RunRow:
    """A run as it is stored."""

    tag: str
    id: str
    state: str
    text: str
    message_id: str
    session: str
    error: str


@frozen(kw_only=True)
class Text:
    """The text of an answer as it is stored."""

    message_id: str
    tag: str
    text: str
    finished: bool


@frozen
class Claim:
    """A claim of the lease of a workspace, and when it was made, in unix seconds."""

    start: str
    at: float


@define(eq=False)
class Rows:
    """What the database has about one workspace."""

    runs: dict[str, list[RunRow]] = field(factory=dict)
    """The runs, by the caller's run id."""
    texts: dict[str, Text] = field(factory=dict)
    """The answers, by the id of the message."""
    claims: list[Claim] = field(factory=list)

    def owner_at(self, at: float) -> str:
        """Return which start of which node had the workspace at a time."""
        found = [claim.start for claim in self.claims if claim.at <= at]
        return found[-1] if found else ""

    def endings(self) -> Counter[str]:
        """Return how many runs ended in which way."""
        return Counter(row.state for rows in self.runs.values() for row in rows)


def queries(path: str) -> tuple[str, str, str]:
    """Return what is asked about the workspace of a directory."""
    return _RUNS.format(path=path), _TEXTS.format(path=path), _CLAIMS.format(path=path)


def rows_of(
    runs: Iterable[tuple[object, ...]],
    texts: Iterable[tuple[object, ...]],
    claims: Iterable[tuple[object, ...]],
) -> Rows:
    """Return the answers to `queries`."""
    rows = Rows()
    names = {}
    for run_id, key, state, text, message, session, error in runs:
        row = RunRow(
            tag=str(run_id or ""),
            id=str(key),
            state=str(state),
            text=str(text),
            message_id=str(message),
            session=str(session),
            error=str(error),
        )
        rows.runs.setdefault(row.tag, []).append(row)
        names[row.id] = row.tag
    for message_id, run, text, finished in texts:
        rows.texts[str(message_id)] = Text(
            message_id=str(message_id),
            tag=names.get(str(run), ""),
            text=str(text),
            finished=bool(finished),
        )
    rows.claims = [Claim(str(start), float(str(at))) for start, at in claims]
    return rows


FENCE_QUERIES: Final = (_STALE, _TWICE)


def check_fence(stale: Iterable[tuple[object, ...]], twice: Iterable[tuple[object, ...]]) -> None:
    """Raise `Violation` for a write under an old epoch, and for a run that ended more than once."""
    for workspace, what, start, epoch, owner, at, claimed in stale:
        raise Violation(
            f"workspace {workspace}: {start} wrote {what} under epoch {epoch} of {owner},"
            f" committed at {at}; the next claim was at {claimed}"
        )
    for workspace, key, endings in twice:
        raise Violation(f"workspace {workspace}: run {key} has ended more than once: {endings}")
