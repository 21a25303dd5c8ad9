"""The server that a competent engineer writes in an afternoon, to compare with.

FastAPI on uvicorn with uvloop and httptools, a task per run, an asyncio queue per client, JSON per
client, httpx to the model. It speaks as much of the wire as the benchmarks use, in both forms, and does
the same work over it: it reads the same crush.json, sends the model the whole conversation, keeps runs of
a session in order, cancels them. It keeps everything in memory and nothing after that.

What it does about a growing answer is what one does first: each piece of the model's becomes an event for
every client. In native form that is the piece, in crush form the message so far, as that form has it.
With `--paced` it does what one does second: it waits 33 ms between two events of an answer.
"""
