"""The baseline: a simple server to compare with, as an engineer would write it in an afternoon.

FastAPI on uvicorn with uvloop and httptools, a task per run, an asyncio queue per client, JSON
encoded per client, httpx to the model. It has the part of the wire that the benchmarks use, in both
forms, and does the same work: it reads the same crush.json, sends the whole conversation to the
model, runs the prompts of a session in order, and cancels them. It keeps everything in memory.

Each piece of the model's answer becomes an event for every client: in native form the piece, in
crush form the whole message so far. With `--paced` it waits 33 ms between two events of an answer.
"""
