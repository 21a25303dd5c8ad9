"""The prompt by which a client has a project introduced to agents."""

_TEXT = """\
Write `{name}` for this project: the file that tells coding agents how to work here.

Look first: the manifest and build files, the CI configuration, the readme, the layout, a few typical \
source and test files, and any instructions for agents that exist already. Then write, in at most 60 lines:

- how to build, lint and test, with the command for a single test;
- how the code is laid out, and what belongs where;
- the conventions that are visible in the code: formatting, imports, types, names, errors, tests;
- what surprised you, and what a newcomer would get wrong.

Write only what you have seen. If `{name}` exists, improve it and keep what is right. Do not copy \
whole files into it, and leave out advice that holds for every project."""


def init_prompt(name: str) -> str:
    """Return what to ask the agent so that it writes the file *name*."""
    return _TEXT.format(name=name)
