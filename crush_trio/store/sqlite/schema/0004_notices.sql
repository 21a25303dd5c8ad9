-- Sentences about a run for people, as a JSON list; NULL if there are none. See `RunView.notices`.
ALTER TABLE runs ADD COLUMN notices TEXT;
