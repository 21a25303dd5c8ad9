"""How long a workspace waits; sizes and numbers are in `crush_trio.limits`."""

from attrs import frozen


@frozen(kw_only=True)
class Limits:
    """How long a workspace waits, in seconds."""

    accept: float = 5.0
    """How long the store may take for an acceptance before the prompt is refused."""
    notice: float = 0.25
    """How long the store may take for an ending before the run is shown as ending."""
    retry: float = 1.0
    """The time between two attempts to store an ending."""
    join: float = 15.0
    """How long closing waits for the runs to end; endings that are not stored then never are."""
    courtesy: int = 0
    """Checkpoints that a stored run yields before it begins, so that its caller is answered first.

    The caller is woken in that moment and takes one step, which may come after the first of these:
    with two the answer is out before the run begins to work.
    """
