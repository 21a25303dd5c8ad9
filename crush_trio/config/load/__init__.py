"""Loads the configuration files into a snapshot, in two steps.

The first step (`draft`) finds the files, checks the types in each, merges them and checks the result. It
is synchronous, is run in a thread, and returns a `Draft`. A change is checked on a draft before it is
written.

The second step (`expansion`) fills in `env`, which may run commands, and then decides which providers
can be used and which models are selected. Other templates are filled in when their values are needed.
"""

from crush_trio.config.load.draft import Draft, Overlay, known_for, read_draft
from crush_trio.config.load.expansion import finish_draft, load_config

__all__ = ["Draft", "Overlay", "finish_draft", "known_for", "load_config", "read_draft"]
