"""The guard of a command: two small processes that own every process the command starts.

`__main__` is the program that the server runs, `pair` are the two processes it becomes, `subreaper`
stops everything below them, `process_table` reads /proc. For sandboxes, `placeholder` reserves names in
the file system and `restriction` restricts the command's process. These six import only each other and a
few modules of the standard library, because every command waits for them to start.

The other modules run in the server: `link` starts a guard and reads its reports, `orphans` finds and kills
what is left if both processes of a guard were killed, and `descendants` knows which guards run and which
processes are below them.
"""
