"""`Trace`: what happened in a simulation, in order, for people and for comparing two runs."""

import trio
from attrs import define, field


@define(eq=False)
class Trace:
    """Lines with virtual times."""

    lines: list[str] = field(factory=list)

    def note(self, who: str, what: str) -> None:
        """Add a line."""
        self.lines.append(f"{trio.current_time():9.3f}  {who:<8} {what}")

    def text(self) -> str:
        """Return the lines."""
        return "\n".join(self.lines)
