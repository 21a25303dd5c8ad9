"""The roster: what all sessions of a server do, followed while pages read it; and streams of pages."""
