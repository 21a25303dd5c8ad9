-- What the model calls of one day used; a day is the number of whole days since the epoch, in UTC. It stays when
-- sessions are deleted. What was used before this table existed is not in it.
CREATE TABLE usage (
    day               INTEGER PRIMARY KEY,
    prompt_tokens     INTEGER NOT NULL DEFAULT 0,
    completion_tokens INTEGER NOT NULL DEFAULT 0,
    cost              REAL    NOT NULL DEFAULT 0
) STRICT;
