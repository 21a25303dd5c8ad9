"""Skills on a disk, for tests."""


def put_skill(place, name, description="what it does", *more, text="Do it.\n"):
    """Write a skill into a directory of skills; return its file."""
    file = place / name / "SKILL.md"
    file.parent.mkdir(parents=True, exist_ok=True)
    lines = ["---", f"name: {name}", f"description: {description}", *more, "---", text]
    file.write_text("\n".join(lines))
    return file
