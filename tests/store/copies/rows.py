"""Rows of a workspace as Hypothesis draws them, and files with such rows."""

import json
import sqlite3
from contextlib import closing

from hypothesis import strategies as st

from crush_trio.store.copies.tables import workspace_tables
from crush_trio.store.sqlite.database import DATABASE_NAME
from crush_trio.store.sqlite.migrations import known_migrations, migrate

LIMIT = 2**63 - 1
TABLES = {table.name: table for table in workspace_tables()}
ENDED = ("completed", "cancelled", "errored", "interrupted")

odd = st.sampled_from(
    ["", "\0", "\x01", "\x01\x02", "a\0b\x01\x03", "\\N", "\\.", "\t\r\n", "\ufeff", "\U0010ffff"]
)
texts = st.one_of(odd, st.text(max_size=20))
names = st.one_of(st.text(min_size=1, max_size=12), odd.filter(bool))
numbers = st.one_of(st.sampled_from([0, 1, LIMIT]), st.integers(0, LIMIT))
times = st.one_of(st.sampled_from([-LIMIT - 1, LIMIT, 0]), st.integers(-(2**40), 2**40))
costs = st.one_of(
    st.sampled_from([0.0, 0.1, 5e-324, 1.7976931348623157e308, float("inf")]),
    st.floats(0, allow_nan=False),
)
bits = st.integers(0, 1)


def some(strategy, key=None):
    return st.lists(strategy, max_size=3, unique_by=key)


def numbered(rows, n):
    """Give *rows* the numbers from *n* on."""
    return [{**row, "n": n + place} for place, row in enumerate(rows)]


@st.composite
def workspaces(draw):
    """Draw the rows of a workspace: for each table, dictionaries of columns."""
    first = draw(st.sampled_from([1, 7, LIMIT - 50]))

    def unique(**columns):
        return numbered(draw(some(st.fixed_dictionaries(columns), lambda row: row["id"])), first)

    found = {}
    found["boots"] = unique(
        id=texts,
        started_at=times,
        holder=texts,
        closed_at=st.none() | times,
        trimmed_seq=st.none() | times,
    )
    found["sessions"] = unique(
        id=names,
        parent_session_id=st.none() | names,
        title=texts,
        message_count=st.integers(0, 2**62),
        prompt_tokens=numbers,
        completion_tokens=numbers,
        total_prompt_tokens=numbers,
        total_completion_tokens=numbers,
        cost=costs,
        summary_message_id=st.none() | texts,
        todos=st.lists(texts, max_size=2).map(json.dumps),
        last_seq=numbers,
        created_at=times,
        updated_at=times,
    )
    sessions = [row["id"] for row in found["sessions"]]
    a_session = st.sampled_from(sessions) if sessions else st.nothing()
    found["messages"] = numbered(
        draw(
            st.lists(
                st.fixed_dictionaries(
                    {
                        "id": names,
                        "session_id": a_session,
                        "seq": st.integers(1, LIMIT),
                        "role": texts,
                        "model": texts,
                        "provider": texts,
                        "is_summary_message": bits,
                        "created_at": times,
                        "updated_at": times,
                        "finished_at": st.none() | times,
                        "run_id": st.none() | texts,
                        "withdrawn": bits,
                    }
                ),
                max_size=4,
                unique_by=(lambda row: row["id"], lambda row: (row["session_id"], row["seq"])),
            )
            if sessions
            else st.just([])
        ),
        first,
    )
    found["parts"] = [
        {"message_id": row["id"], "idx": idx, "type": draw(texts), "data": draw(texts)}
        for row in found["messages"]
        for idx in draw(st.sets(numbers, max_size=2))
    ]
    found["chunks"] = [
        {"message_id": row["message_id"], "idx": row["idx"], "n": n, "text": draw(texts)}
        for row in found["parts"]
        for n in draw(st.sets(numbers, max_size=2))
    ]
    found["runs"] = numbered(
        [draw(runs(identity)) for identity in draw(st.sets(names, max_size=3))], first
    )
    found["recordings"] = [
        {"run_id": draw(texts), "n": n, "session_id": session, "data": draw(texts)}
        for n, session in enumerate(sessions)
    ]
    found["files"] = [
        {
            "id": draw(names) + str(place),
            "session_id": session,
            "path": "/" + draw(texts),
            "content": draw(texts),
            "version": place,
            "created_at": draw(times),
            "updated_at": draw(times),
        }
        for place, session in enumerate(sessions)
    ]
    found["read_files"] = [
        {"session_id": session, "path": "/" + draw(texts), "read_at": draw(times)}
        for session in sessions
    ]
    found["asks"] = unique(
        id=names,
        kind=texts,
        session_id=texts,
        run_id=texts,
        tool_call_id=texts,
        payload=texts,
        created_at=times,
        resolved_at=st.none() | times,
        resolution=st.none(),
    )
    for row in found["asks"]:
        if row["resolved_at"] is not None:
            row["resolution"] = draw(texts)
    found["event_tail"] = numbered(
        [
            {"boot_id": boot, "seq": seq, "terminal": draw(bits), "event": draw(texts)}
            for boot, seq in draw(st.sets(st.tuples(texts, times), max_size=3))
        ],
        first,
    )
    found["usage"] = [
        {
            "day": day,
            "prompt_tokens": draw(times),
            "completion_tokens": draw(times),
            "cost": draw(costs),
        }
        for day in draw(st.sets(times, max_size=2))
    ]
    return found


@st.composite
def runs(draw, identity):
    state = draw(st.sampled_from(("accepted", "queued", "active", "folded", *ENDED)))
    optional = st.none() | texts
    return {
        "id": identity,
        "run_id": draw(st.none() | st.just(f"caller of {identity}")),
        "session_id": draw(texts),
        "kind": draw(texts),
        "state": state,
        "seq": draw(times),
        "boot_id": draw(texts),
        "prompt": draw(texts),
        "attachments": draw(st.none() | st.binary(max_size=40)),
        "message_id": draw(texts),
        "text": draw(texts),
        "error": draw(texts),
        "folded_into": draw(texts) if state == "folded" else None,
        "notices": draw(optional),
        "accepted_at": draw(times),
        "started_at": draw(st.none() | times),
        "ended_at": None if state in {"accepted", "queued", "active"} else draw(times),
        "ending_boot": draw(optional),
        "ending_seq": draw(st.none() | times),
    }


def write_file(folder, rows):
    """Make the file of a data directory with exactly these rows, whatever the triggers would do."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / DATABASE_NAME
    path.unlink(missing_ok=True)
    with closing(sqlite3.connect(path, isolation_level=None)) as made:
        migrate(made, path, known_migrations())
        made.execute("BEGIN")
        for table in reversed(TABLES.values()):  # parents last: no trigger finds a row to change
            for row in rows.get(table.name, ()):
                columns = ", ".join(row)
                places = ", ".join(f":{name}" for name in row)
                made.execute(f"INSERT INTO {table.name} ({columns}) VALUES ({places})", row)
        assert made.execute("PRAGMA foreign_key_check").fetchall() == []
        made.execute("COMMIT")
    return path


def dump(path):
    """Return every row of every table as SQL literals, which differ if any byte or type does."""
    with closing(sqlite3.connect(path)) as found:
        listed = found.execute("SELECT name FROM sqlite_schema WHERE type = 'table'").fetchall()
        return {name: found.execute(_query(found, name)).fetchall() for (name,) in sorted(listed)}


def _query(found, name):
    columns = [row[1] for row in found.execute(f"PRAGMA table_info({name})")]
    wanted = ", ".join(f"typeof({each}), hex({each}), quote({each})" for each in columns)
    return f"SELECT {wanted} FROM {name} ORDER BY {', '.join(columns)}"
