-- The process of a start is described by one JSON text, as in the other stores.
ALTER TABLE boots ADD COLUMN holder TEXT NOT NULL DEFAULT '';
UPDATE boots
SET holder = json_object('host', '', 'pid', pid, 'version', version, 'started', started_at);
ALTER TABLE boots DROP COLUMN pid;
ALTER TABLE boots DROP COLUMN version;
