"""The embedded store: one SQLite file per data directory, on the standard library's `sqlite3`.

`store` satisfies the store's protocols with the SQL of `statements/`, on top of `database`, which
opens the file and has three operations: `transact`, `post` and `read`. `writer` and `reader` run
them in threads, `directory` locks the data directory, `faults` translates SQLite's errors.
"""
