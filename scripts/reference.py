"""Write docs/reference from the code: the commands, the settings of a training run, the Python API, and every file.

python scripts/reference.py            # writes what has changed
python scripts/reference.py --check    # only says what has changed, and fails then
"""

from __future__ import annotations

import argparse
import ast
import dataclasses
import functools
import importlib
import inspect
import re
import sys
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

OUT = Path(__file__).resolve().parents[1] / "docs" / "reference"

_NOTE = "<!-- Written by scripts/reference.py from the code; change it there. -->\n"

_CLI = """# Commands

Every command answers to `--help`, and to `--help-all` where it has many flags. Flags may be written `--num-envs` or
`--num_envs`. Options that belong to a simulator or a policy are words `key=value`, read as YAML, after `--options` or
`--policy-options`.
"""

_SETTINGS = """# Settings of a training run

What a YAML file for `manyarms train` may hold, and what `key=value` words may change. Where there is no default, the
text says what happens. `manyarms train CONFIG --dry-run` prints all of them as they are in a run; how they play
together is in [training](../training.md), [placement](../placement.md) and [distributed runs](../distributed.md).
"""

_API = """# Python API

Functions that are named like [commands](cli.md) take what the commands' flags are called, and return what the command
prints: paths may be strings, options mappings.
"""

_FILES = """# The code, file by file

In the order of the flow: from what runs in a worker to what people type. Each line is the file's own first sentence.
Why things are as they are is in [architecture](../architecture.md); a walk through them in [concepts](../concepts.md).
"""

#: Packages in the order in which data passes through them; import-linter keeps it.
FLOW = (
    *("simulators", "workers", "vector", "policies", "serving", "rollout", "algorithms", "reporting", "learning"),
    *("placement", "testing", "doctor", "cli"),
)

#: Commands that have commands of their own.
_CALLED = {"policy": "policy inspect"}

#: Module -> the names in it that users build on; what `manyarms` itself has comes first.
API = {
    "manyarms.simulators.base": (
        "Simulator",
        "LockstepSimulator",
        "Spec",
        "Field",
        "Task",
        "StepResult",
        "Start",
        "put",
    ),
    "manyarms.policies": ("make_policy", "Policy", "Observations", "ActionChunk"),
    "manyarms.policies.network": ("NetworkPolicy", "NetworkConfig"),
    "manyarms.rollout": ("Runner", "RunnerConfig", "Episode"),
    "manyarms.testing": ("Subject", "check_simulator"),
    "manyarms.errors": ("ManyarmsError",),
}


# -- reading the code -----------------------------------------------------------------------------------------------


@functools.cache
def field_texts(config: type) -> dict[str, str]:
    """Return what stands under each field of a class, those it inherits included."""
    texts: dict[str, str] = {}
    for part in reversed([base for base in config.__mro__ if base.__module__.startswith("manyarms")]):
        source = textwrap.dedent(inspect.getsource(part))
        (tree,) = ast.parse(source).body
        assert isinstance(tree, ast.ClassDef)
        for line, following in zip(tree.body, [*tree.body[1:], ast.Pass()], strict=True):
            match line, following:
                case ast.AnnAssign(target=ast.Name(id=name)), ast.Expr(value=ast.Constant(value=str(text))):
                    texts[name] = text
                case ast.AnnAssign(target=ast.Name(id=name)), _:
                    texts[name] = _comment(source, line)
    return texts


def _comment(source: str, line: ast.stmt) -> str:
    """Return the comment behind a line, which is a shape where there is one: `[rows, K]`."""
    text = source.splitlines()[(line.end_lineno or line.lineno) - 1].partition("  # ")[2]
    return f"`{text}`" if text.startswith("[") else ""


def default_of(field: dataclasses.Field[Any]) -> Any:
    """Return a field's default, `MISSING` where it has none."""
    if field.default_factory is not dataclasses.MISSING:
        return field.default_factory()
    return field.default


def signature_of(function: Callable[..., Any], name: str) -> str:
    """Return how a function is called, in the words of its source, without `self`."""
    if hasattr(function, "__signature__"):
        signature = inspect.signature(function)
        return _call(name, list(map(_argument, signature.parameters.values())), signature.return_annotation)
    (tree,) = ast.parse(textwrap.dedent(inspect.getsource(inspect.unwrap(function)))).body
    assert isinstance(tree, ast.FunctionDef)
    if tree.args.args and tree.args.args[0].arg in ("self", "cls"):
        del tree.args.args[0]
    gives = ast.unparse(tree.returns) if tree.returns and name == tree.name else ""
    return _call(name, _at_commas(ast.unparse(tree.args)), gives)


def _argument(parameter: inspect.Parameter) -> str:
    if parameter.default is parameter.empty:
        return parameter.name
    default = str(parameter.default) if isinstance(parameter.default, Path) else parameter.default
    return f"{parameter.name}={default!r}"


def _call(name: str, arguments: list[str], gives: str) -> str:
    """Write a signature as ruff would: in one line where it fits."""
    after = f") -> {gives.rpartition('.')[2] if '[' not in gives else gives}" if gives else ")"
    spaced = [re.sub(r"^(\w+: [^=]*[^= ])=", r"\1 = ", argument) for argument in arguments]
    line = f"{name}({', '.join(spaced)}{after}"
    return line if len(line) <= 96 else "\n    ".join([f"{name}(", *(f"{each}," for each in spaced)]) + f"\n{after}"


def _at_commas(arguments: str) -> list[str]:
    """Split at the commas that stand in no bracket."""
    parts, depth, start = [], 0, 0
    for i, letter in enumerate(arguments):
        depth += (letter in "([{") - (letter in ")]}")
        if letter == "," and not depth:
            parts.append(arguments[start:i].strip())
            start = i + 1
    return [part for part in (*parts, arguments[start:].strip()) if part]


# -- writing --------------------------------------------------------------------------------------------------------


def prose(text: str) -> str:
    """Turn a docstring into Markdown that shows what it says."""
    said, prompt, example = inspect.cleandoc(text).replace("``", "`").partition(">>> ")
    parts = re.split(r"(`[^`]*`)", said)
    said = "".join(part if part.startswith("`") else part.replace("<", "&lt;") for part in parts)
    code = re.sub(r"^(>>>|\.\.\.) ", "", prompt + example, flags=re.MULTILINE)
    return f"{said}```python\n{code}\n```" if code else said


def cell(text: str) -> str:
    """Turn a docstring into one cell of a table."""
    return " ".join(prose(text).split()).replace("|", "&#124;")


def _code(text: str) -> str:
    """Write code for a cell: a bar would end the cell, escaped or not, for one reader of Markdown or another."""
    return f"`{text}`" if "|" not in text else f"<code>{text.replace('|', '&#124;')}</code>"


def shown(value: Any) -> str:
    """Write a default as one would in a config; nothing where the help text says what happens."""
    if value is dataclasses.MISSING:
        return "required"
    if value in (None, "", (), {}):
        return ""
    if isinstance(value, bool):
        return f"`{str(value).lower()}`"
    if isinstance(value, tuple):
        return f"`[{', '.join(map(str, value))}]`"
    return f"`{getattr(value, 'value', value)}`"


def kind_of(annotation: str) -> str:
    """Name a type as one would in a config."""
    name = annotation.replace(" | None", "")
    name = re.sub(r"tuple\[(.*), \.\.\.\]", r"list of \1", name)
    return "mapping" if name.startswith("dict[") else cell(name)


def table(head: tuple[str, ...], rows: list[tuple[str, ...]]) -> str:
    lines = [head, ("---",) * len(head), *rows]
    return "\n".join(f"| {' | '.join(row)} |" for row in lines) + "\n"


# -- the pages ------------------------------------------------------------------------------------------------------


def cli_page() -> str:
    from manyarms.cli import COMMANDS, config_of

    rows = [(f"[`{name}`](#manyarms-{name})", cell(what)) for name, what in COMMANDS.items()]
    parts = [
        _NOTE,
        _CLI,
        table(("command", "what it does"), rows),
    ]
    for name in COMMANDS:
        parts.append(f"## manyarms {name}\n")
        parts.extend(_command(config_of(name), _CALLED.get(name, name)))
    return "\n".join(parts)


def _command(config: type, command: str) -> Iterator[str]:
    from manyarms.cli.help import flags_of, guide_of

    guide, flags = guide_of(config), flags_of(config)
    words = [flag for flag in flags if not flag.spellings]
    usage = " ".join(["manyarms", command, *(flag.in_usage for flag in words), "[flags]"])
    yield f"{prose(config.__doc__ or '')}\n"
    yield "```sh\n" + "\n".join((f"# {usage}", *guide.examples)) + "\n```\n"
    grouped = {title: [flag for flag in flags if flag.field in names] for title, names in guide.groups.items()}
    known = {flag.field for group in (words, *grouped.values()) for flag in group}
    rest = [flag for flag in flags if flag.field not in known]
    tables = {"argument": words, **grouped, "more": rest} if grouped else {"argument": flags}
    for title, group in tables.items():
        if group:
            yield table((title, "meaning"), [(_code(flag.head), cell(flag.text)) for flag in group])


def _help(config: type, field: dataclasses.Field[Any]) -> str:
    return cell(field_texts(config).get(field.name, ""))


def settings_page() -> str:
    from manyarms.learning.config import TrainConfig

    parts = [_NOTE, _SETTINGS]
    for field in dataclasses.fields(TrainConfig):
        if field.name == "algorithm":
            parts.extend(_algorithms())
        else:
            parts.extend(_section(field.name, type(_default_settings(field)), 2))
    return "\n".join(parts)


def _algorithms() -> Iterator[str]:
    """Yield the settings that all algorithms have, then those of each."""
    from manyarms.algorithms import BUILT_IN, find_algorithm
    from manyarms.algorithms.base import Algorithm

    yield from _section("algorithm", Algorithm, 2)
    shared = {field.name: default_of(field) for field in dataclasses.fields(Algorithm)}
    for name in BUILT_IN:
        kind = find_algorithm(name)
        about = prose((sys.modules[kind.__module__].__doc__ or "") + "\n\n" + (kind.__doc__ or ""))
        yield f"### adv_type: {name}\n\n{about}\n"
        own = [f for f in dataclasses.fields(kind) if f.name != "adv_type" and shared.get(f.name, ...) != default_of(f)]
        rows = [(f"`algorithm.{f.name}`", kind_of(str(f.type)), shown(default_of(f)), _help(kind, f)) for f in own]
        yield table(("key", "type", "default", ""), rows)


def _default_settings(field: dataclasses.Field[Any]) -> Any:
    """Return the settings that a key stands for where it is left out."""
    value = default_of(field)
    assert dataclasses.is_dataclass(value), field.name
    return value


def _section(path: str, config: type, level: int) -> Iterator[str]:
    """Yield a heading and a table, then the same for the mappings inside."""
    yield f"{'#' * level} {path}\n\n{prose(config.__doc__ or '')}\n"
    rows, below, seen = [], [], {}
    for field in dataclasses.fields(config):
        value, key = default_of(field), f"{path}.{field.name}"
        if not dataclasses.is_dataclass(value):
            rows.append((f"`{key}`", kind_of(str(field.type)), shown(value), _help(config, field)))
        elif type(value) in seen:
            rows.append((f"`{key}`", "mapping", "", f"The same keys as `{seen[type(value)]}`."))
        else:
            seen[type(value)] = key
            below.append((key, type(value)))
    if rows:
        yield table(("key", "type", "default", ""), rows)
    for key, inner in below:
        yield from _section(key, inner, min(level + 1, 3))


def api_page() -> str:
    import manyarms

    parts = [_NOTE, _API]
    names = [name for name in manyarms.__all__ if not name.startswith("__")]
    for module, chosen in [("manyarms", tuple(names)), *API.items()]:
        parts.append(f"## {module}\n")
        for name in chosen:
            parts.extend(_entry(name, getattr(importlib.import_module(module), name)))
    return "\n".join(parts)


def _entry(name: str, value: Any) -> Iterator[str]:
    yield f"### {name}\n"
    if not inspect.isclass(value):
        yield f"```python\n{signature_of(value, name)}\n```\n\n{prose(value.__doc__ or '')}\n"
        return
    if not dataclasses.is_dataclass(value) and inspect.isfunction(value.__init__) and _is_ours(value.__init__):
        yield f"```python\n{signature_of(value.__init__, name)}\n```\n"
    yield f"{prose(value.__doc__ or '')}\n"
    if dataclasses.is_dataclass(value) or hasattr(value, "_fields"):
        yield _fields_table(value)
    for method, found in _methods(value):
        if isinstance(found, property):
            yield f"**`{method}`**{_after(found.__doc__)}\n"
        else:
            yield f"```python\n{signature_of(found, method)}\n```\n\n{prose(found.__doc__ or '')}\n"


def _after(text: str | None) -> str:
    return f" — {cell(text)}" if text else ""


def _fields_table(value: Any) -> str:
    texts = field_texts(value)
    if dataclasses.is_dataclass(value):
        known = [(field.name, str(field.type), default_of(field)) for field in dataclasses.fields(value)]
    else:
        defaults = value._field_defaults
        known = [(n, str(t), defaults.get(n, dataclasses.MISSING)) for n, t in value.__annotations__.items()]
    rows = [(f"`{n}`", _code(_plain(t)), shown(d), cell(texts.get(n, ""))) for n, t, d in known]
    return table(("field", "type", "default", ""), rows)


def _plain(annotation: str) -> str:
    return re.sub(r"ForwardRef\('(.*?)'.*?\)", r"\1", annotation)


def _methods(value: type) -> Iterator[tuple[str, Any]]:
    """Yield the public methods and properties that are ours and say what they do, in the order of the source."""
    seen = set()
    for part in value.__mro__:
        for name, found in vars(part).items():
            plain = found.__func__ if isinstance(found, (classmethod, staticmethod)) else found
            if name.startswith("_") or name in seen or not (inspect.isfunction(plain) or isinstance(plain, property)):
                continue
            seen.add(name)
            if part.__module__.startswith("manyarms") and plain.__doc__ and _is_ours(plain):
                yield name, plain


def _is_ours(found: Any) -> bool:
    function = found.fget if isinstance(found, property) else found
    return function.__module__.startswith("manyarms")


def files_page() -> str:
    source = Path(importlib.import_module("manyarms").__file__ or "").parent
    packages = [path for name in FLOW for path in (source / name, *sorted((source / name).glob("*/")))]
    parts = [_NOTE, _FILES]
    for package in [path for path in packages if (path / "__init__.py").exists()]:
        level = "##" if package.parent == source else "###"
        parts.append(f"{level} `{package.relative_to(source)}/`\n\n{first_sentences(package / '__init__.py')}\n")
        files = [path for path in sorted(package.glob("*.py")) if path.name != "__init__.py"]
        if files:
            parts.append(
                table(("file", "what it is about"), [(f"`{f.name}`", cell(first_sentences(f))) for f in files])
            )
    parts.append("## Beside them\n")
    beside = [(f"`{path.name}`", cell(first_sentences(path))) for path in sorted(source.glob("*.py"))]
    parts.append(table(("file", "what it is about"), beside))
    return "\n".join(parts)


def first_sentences(path: Path) -> str:
    """Return the first paragraph of a file's docstring."""
    text = ast.get_docstring(ast.parse(path.read_text())) or ""
    return prose(" ".join(text.partition("\n\n")[0].split()))


PAGES = {"cli.md": cli_page, "settings.md": settings_page, "api.md": api_page, "files.md": files_page}


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument(
        "--check", action="store_true", help="write nothing; fail where a page is not what it should be"
    )
    check = parser.parse_args().check
    stale = []
    for name, page in PAGES.items():
        text, path = page().rstrip() + "\n", OUT / name
        if not path.exists() or path.read_text() != text:
            stale.append(name)
            if not check:
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_text(text)
    if stale and check:
        print(f"not up to date: {', '.join(stale)}; run python scripts/reference.py", file=sys.stderr)
    return int(bool(stale) and check)


if __name__ == "__main__":
    sys.exit(main())
