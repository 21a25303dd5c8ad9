"""The guard of a command: two small processes that own every process the command starts.

`__main__` is the program that the server runs, `pair` the two processes it becomes, `subreaper` how
they leave nothing, `process_table` what they read in /proc. These four import only each other and a
few modules of the standard library, because every command waits for them.

The other modules are the server's: `report` reads what a guard reports, and `orphans` finds and
stops what is left if both processes of a guard were killed.
"""
