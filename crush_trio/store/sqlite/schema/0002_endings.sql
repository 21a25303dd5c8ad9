-- The place of each run's ending among the events of the start in which the run ended. The start is
-- noted together with the ending, the seq when the event is kept. A run that has ended without a seq
-- was stored by a start that is still running, or was killed before it could tell any reader.
ALTER TABLE runs ADD COLUMN ending_boot TEXT;
ALTER TABLE runs ADD COLUMN ending_seq INTEGER;

CREATE INDEX runs_by_ending ON runs (ending_boot, ending_seq) WHERE ending_boot IS NOT NULL;

-- Of runs that ended before this version, the places of those are known whose events are still kept.
-- The others count as known to every reader.
UPDATE runs
SET ending_boot = kept.boot_id, ending_seq = kept.seq
FROM (
    SELECT json_extract(event, '$.run') AS run, boot_id, seq FROM event_tail WHERE terminal = 1
) AS kept
WHERE runs.id = kept.run;
