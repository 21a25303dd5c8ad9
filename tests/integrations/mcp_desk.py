"""A small MCP server to test with: run as a program it speaks over its standard streams."""

import os
import subprocess
import sys
from pathlib import Path

from mcp.server.mcpserver import Context, Image, MCPServer

PNG = bytes.fromhex(
    "89504e470d0a1a0a0000000d4948445200000001000000010806000000 1f15c489".replace(" ", "")
)


def make_server():
    """Return a server that has one of everything."""
    server = MCPServer("desk", instructions="Count with add.\nNothing else.", version="1")

    @server.tool()
    def add(a: int, b: int) -> str:
        """Add two numbers."""
        return str(a + b)

    @server.tool()
    def fail() -> str:
        """Go wrong."""
        raise ValueError("the abacus is broken")

    @server.tool()
    def picture() -> list:
        """Return a picture."""
        return ["a dot", Image(data=PNG, format="png")]

    @server.tool()
    def variables() -> str:
        """Return the environment."""
        return "\n".join(f"{name}={value}" for name, value in sorted(os.environ.items()))

    @server.tool()
    async def learn(ctx: Context) -> str:
        """Become able to do one thing more."""
        server.add_tool(lambda: "new", name="fresh", description="A new one.")
        await ctx.session.send_tool_list_changed()
        return "learned"

    @server.tool()
    def spawn(pid_file: str) -> str:
        """Start a process that stays, out of this group."""
        child = subprocess.Popen(["sleep", "600"], start_new_session=True)
        Path(pid_file).write_text(f"{os.getpid()} {child.pid}")
        return "started"

    @server.tool()
    def die() -> str:
        """End at once."""
        os._exit(3)

    @server.prompt(title="Review")
    def review(focus: str) -> str:
        """Review something."""
        return f"Review the {focus}."

    @server.resource("desk://note", name="note", mime_type="text/plain")
    def note() -> str:
        """A note."""
        return "remember the milk"

    return server


if __name__ == "__main__":
    sys.stderr.write("desk: starting\n")
    make_server().run("stdio")
