"""The store on PostgreSQL, which many servers share; on psycopg 3 (the extra `postgres`).

`store` satisfies the store's protocols with the SQL of `statements/`. A process has one `database` per
URL: one writer thread, which commits the works of all its workspaces in groups, and a few connections
for reads. `opening` opens the store of a workspace, `lease` is the right to write it, `transaction` what
the statements of one work get, `connection` connects, `migrations` keeps the schema, `faults` translates
errors.
"""
