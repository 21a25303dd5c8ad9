-- A copy of a workspace adds its messages before its sessions, so that the trigger that counts messages finds no
-- session. Otherwise it would make a new version of a session's row with every message, all in one transaction.
ALTER TABLE messages
    ALTER CONSTRAINT messages_workspace_session_id_fkey DEFERRABLE INITIALLY IMMEDIATE;
