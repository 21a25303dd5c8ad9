"""The embedded store: one SQLite file per data directory, on the standard library's `sqlite3`.

`database` opens the file and offers three verbs to the modules that know the tables: `transact`,
`post` and `read`. Everything else in here serves those three.
"""
