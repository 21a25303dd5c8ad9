"""Replays capsules: recorded runs, offline, on the virtual clock, through the real agent and server."""

from crush_trio.testing.capsule.compare import Difference
from crush_trio.testing.capsule.file import CapsuleFile, CapsuleInvalid, read_capsule
from crush_trio.testing.capsule.playback import NotReplayable, Replay, capsule_test, replay

__all__ = [
    "CapsuleFile",
    "CapsuleInvalid",
    "Difference",
    "NotReplayable",
    "Replay",
    "capsule_test",
    "read_capsule",
    "replay",
]
