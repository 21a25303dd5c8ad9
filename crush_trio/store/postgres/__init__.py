"""The store on PostgreSQL, which many servers share; on psycopg 3 (the extra `postgres`).

`store` satisfies the store's protocols with the SQL of `statements/`. A process has one `database` per
URL: one writer thread, which commits the works of all its workspaces in groups, and a few connections
for reads. `lease` is the right to write a workspace, `session` what one transaction of a workspace
gets, `connection` connects, `migrations` keeps the schema, `faults` translates errors.
"""
