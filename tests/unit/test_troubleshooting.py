"""The messages that the troubleshooting page quotes are those that the source has."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parents[2]
SOURCE = REPOSITORY / "src/manyarms"
PAGE = REPOSITORY / "docs/troubleshooting.md"

#: Stands where a message has something that differs from case to case.
BLANK = "\0"

KIND = re.compile(r"^([A-Z][A-Za-z]+): ")
LABEL = re.compile(r"^ +(?:why|do|log): +")


def quoted() -> list[str]:
    """Return every line of the page's blocks of text."""
    blocks = re.findall(r"```text\n(.*?)```", PAGE.read_text(), re.DOTALL)
    return [line for block in blocks for line in block.splitlines()]


def constant_parts(line: str) -> list[str]:
    """Return what a quoted line has besides the kind of error, its label and what differs."""
    words = LABEL.sub("", KIND.sub("", line))
    # `<first node>` is part of a command that the message tells to run.
    parts = re.split(r"<(?!first node>)[^<>]+>", words)
    return [part.strip() for part in parts if re.search(r"\w", part)]


def template_of(node: ast.AST) -> str:
    """Return a string as written, with blanks for what is filled in."""
    if isinstance(node, ast.Constant):
        return re.sub(r"%[-+.\d,]*[srdgf]", BLANK, node.value) if isinstance(node.value, str) else BLANK
    if isinstance(node, ast.JoinedStr):
        return "".join(template_of(part) for part in node.values)
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        return template_of(node.left) + template_of(node.right)
    return BLANK


@cache
def templates() -> list[str]:
    """Return all strings of the source."""
    kinds = (ast.Constant, ast.JoinedStr, ast.BinOp)
    trees = [ast.parse(path.read_text()) for path in SOURCE.rglob("*.py")]
    return [template_of(node) for tree in trees for node in ast.walk(tree) if isinstance(node, kinds)]


@cache
def errors() -> set[str]:
    """Return the names of all classes."""
    return {name for path in SOURCE.rglob("*.py") for name in re.findall(r"^class (\w+)", path.read_text(), re.M)}


def test_the_page_quotes_messages() -> None:
    assert len(quoted()) > 60


@pytest.mark.parametrize("line", sorted(set(quoted())))
def test_a_quoted_message_is_one_of_ours(line: str) -> None:
    kind = KIND.match(line)
    assert kind is None or kind[1] in errors(), f"there is no error {kind[1]}"
    parts = constant_parts(line)
    assert parts, "a quote needs words of its own"
    message = re.compile(".*".join(map(re.escape, parts)), re.DOTALL)
    assert any(map(message.search, templates())), f"the source does not say {' … '.join(parts)}"
