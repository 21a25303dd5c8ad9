"""docs/library.md is complete and true: every public name is on it, with the parameters it really has."""

import importlib
import inspect
import re
from pathlib import Path

import pytest

PAGE = Path(__file__).parents[1] / "docs" / "library.md"
PACKAGES = ["crush_trio", "crush_trio.client", "crush_trio.testing"]


def sections():
    """Return the text below each heading that names a module, by the name of the module."""
    pieces = re.split(r"^## .*?`(crush_trio[\w.]*)`$", PAGE.read_text("utf-8"), flags=re.MULTILINE)
    return dict(zip(pieces[1::2], pieces[2::2], strict=True))


def shown_signatures():
    """Return (module, name, parameters) for everything that a table shows with parentheses."""
    return [
        (module, name, parameters)
        for module, text in sections().items()
        for row in re.findall(r"^\| (`.*?`) \|", text, flags=re.MULTILINE)
        for name, parameters in re.findall(r"`([\w.]+)\(([^)`]*)\)`", row)
    ]


def parameters_of(function):
    """Return the parameters as the page writes them."""
    words, named = [], False
    for parameter in inspect.signature(function).parameters.values():
        if parameter.name in {"self", "cls"}:
            continue
        if parameter.kind is parameter.KEYWORD_ONLY and not named:
            words.append("*")
        named = named or parameter.kind in {parameter.KEYWORD_ONLY, parameter.VAR_POSITIONAL}
        star = "*" if parameter.kind is parameter.VAR_POSITIONAL else ""
        words.append(f"{star}{parameter.name}")
    return ", ".join(words)


@pytest.mark.parametrize(("module", "name", "parameters"), shown_signatures())
def test_what_the_page_shows_has_these_parameters(module, name, parameters):
    value = importlib.import_module(module)
    for each in name.split("."):
        value = getattr(value, each)
    assert parameters_of(value) == parameters


def test_the_page_shows_enough_to_be_a_reference():
    assert len(shown_signatures()) > 60


@pytest.mark.parametrize("package", PACKAGES)
def test_every_public_name_is_on_the_page(package):
    text = sections()[package]
    named = set(re.findall(r"`(\w+)(?:[.(][^`]*)?`", text))
    wanted = set(importlib.import_module(package).__all__) - {"__version__"}
    assert wanted - named == set()
