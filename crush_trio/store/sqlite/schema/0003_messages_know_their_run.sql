-- run_id is the run whose turn a message belongs to; NULL for what was written outside of runs. A prompt
-- that another run has folded belongs to that run's turn. withdrawn marks the turn of a run that was
-- cancelled, or cut short, before a model was asked: it is shown, and no model is ever told of it.
ALTER TABLE messages ADD COLUMN run_id TEXT;
ALTER TABLE messages ADD COLUMN withdrawn INTEGER NOT NULL DEFAULT 0 CHECK (withdrawn IN (0, 1));

-- A message belongs to the run whose prompt is the last one before it. A prompt bears the id of its run.
UPDATE messages SET run_id = (
    SELECT coalesce(runs.folded_into, runs.id)
    FROM messages AS prompts JOIN runs ON runs.id = prompts.id
    WHERE prompts.session_id = messages.session_id AND prompts.seq <= messages.seq
    ORDER BY prompts.seq DESC LIMIT 1
);

CREATE INDEX messages_by_run ON messages (run_id) WHERE run_id IS NOT NULL;

ALTER TABLE runs DROP COLUMN prompt_message_id;
