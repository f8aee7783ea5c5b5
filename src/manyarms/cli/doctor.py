"""``manyarms doctor``: whether this machine can run manyarms and its simulators, and what mends it if not."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Annotated, ClassVar

import tyro

import manyarms
from manyarms.cli.help import Guide
from manyarms.cli.options import parse
from manyarms.doctor import simulators
from manyarms.doctor.examination import Check, Examination
from manyarms.errors import ConfigError, printable
from manyarms.reporting.console import Shown, Table, Telling, console_of, say
from manyarms.simulators.about import ABSENT, FAULT, OK, Finding
from manyarms.vector.config import find_interpreter


@dataclass(frozen=True)
class DoctorConfig:
    """Check this machine: Python, memory, rendering, video, every simulator, and what earlier runs left behind."""

    simulators: Annotated[tuple[str, ...], tyro.conf.Positional, tyro.conf.arg(metavar="[SIMULATOR…]")] = ()
    """Check these only, and that they are there; default: all that are known."""
    json: bool = False
    """Print one JSON document."""
    python: str | None = None
    """The interpreter the simulators run in: a path, a command or a virtual environment."""
    timeout: float = 60.0
    """Seconds after which a check has failed."""
    guide: ClassVar[Guide] = Guide(
        examples=(
            "manyarms doctor",
            "manyarms doctor rlbench   # and that it is there",
            "manyarms doctor libero --python .venvs/libero --timeout 120",
        ),
    )

    def __post_init__(self) -> None:
        if not (math.isfinite(self.timeout) and self.timeout > 0):
            raise ConfigError(f"timeout is {self.timeout}; it must be a positive number of seconds")


@dataclass(frozen=True, repr=False)
class DoctorResult(Shown):
    """What was found, a row for each thing."""

    rows: tuple[Finding, ...]

    @property
    def faults(self) -> list[Finding]:
        """What must be mended."""
        return [row for row in self.rows if row.status == FAULT]

    @property
    def healthy(self) -> bool:
        return not self.faults

    def told(self) -> Telling:
        counts = {status: sum(row.status == status for row in self.rows) for status in (OK, ABSENT, FAULT)}
        return Telling(
            f"{counts[OK]} well, {counts[ABSENT]} optional and absent, {counts[FAULT]} to mend",
            [Table([(row.mark, row.name, row.found) for row in self.rows])],
            [f"{row.mark} {row.name}: {row.fix}" for row in self.rows if row.fix],
        )


def run(config: DoctorConfig, hear: Callable[[list[Finding]], None] = lambda _: None) -> DoctorResult:
    """Make every check and return what was found; `hear` gets the rows as they come."""
    found: list[Finding] = []
    with Examination(checks(config), config.timeout) as examination:
        for rows in examination.findings():
            found += rows
            hear(rows)
    return DoctorResult(tuple(found))


def checks(config: DoctorConfig) -> list[Check]:
    """Return what is checked, in the order in which it is told."""
    python = find_interpreter(config.python) if config.python is not None else None
    names = simulators.known(python, config.timeout)
    simulators.check_names(config.simulators, names)
    wanted = list(dict.fromkeys(config.simulators)) or names
    limit = {"seconds": config.timeout}
    needs_xvfb = not config.simulators or any(map(simulators.needs_xvfb, wanted))
    return [
        Check("machine", "manyarms.doctor.machine:findings", {**limit, "python": python}),
        Check("GPU", "manyarms.doctor.machine:graphics_card", limit),
        Check("EGL, OSMesa", "manyarms.doctor.rendering:without_display", limit),
        Check("Xvfb", "manyarms.doctor.rendering:on_display", {**limit, "needed": needs_xvfb}),
        Check("video", "manyarms.doctor.machine:video"),
        *(
            Check(
                name,
                "manyarms.doctor.simulators:findings",
                {**limit, "simulator": name, "python": python, "named": bool(config.simulators)},
            )
            for name in wanted
        ),
        Check("stray processes", "manyarms.doctor.strays:findings"),
    ]


def examine(config: DoctorConfig) -> DoctorResult:
    """Check and show: a table in a terminal, a line a row elsewhere."""
    from rich.text import Text

    console = console_of()
    if not console.is_terminal:
        return run(config, hear=lambda rows: say(*map(line, rows)))
    with console_of(stderr=True).status("checking …") as status:
        result = run(config, hear=lambda rows: status.update(Text(f"checking … {rows[-1].name}: {rows[-1].mark}")))
    draw(result, console)
    return result


def line(row: Finding) -> str:
    """Put a row as plain text."""
    return f"{row.mark} {row.name}: {row.found}" + (f"\n    {row.fix}" if row.fix else "")


def draw(result: DoctorResult, console: object) -> None:
    """Draw the table; commands stand below it, where they can be copied."""
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    assert isinstance(console, Console)
    colours = {OK: "green", FAULT: "bold red", ABSENT: "dim"}
    drawn = Table(show_header=False, box=None, padding=(0, 2, 0, 0))
    for ratio in (None, None, 1):
        drawn.add_column(overflow="fold", ratio=ratio)
    for row in result.rows:
        drawn.add_row(Text(row.mark, style=colours[row.status]), Text(printable(row.name)), Text(printable(row.found)))
    console.print(drawn)
    for status, title in ((ABSENT, "optional, and not there:"), (FAULT, "to mend:")):
        rows = [row for row in result.rows if row.status == status and row.fix]
        if rows:
            say(f"\n{title}")
        for row in rows:
            say(f"  {row.mark} {row.name}", f"      {row.fix}")


def main(arguments: Sequence[str]) -> int:
    """Parse, check, show; the exit status is 1 when there is something to mend."""
    config = parse(DoctorConfig, "doctor", arguments)
    if config.json:
        result = run(config)
        document = {"manyarms": manyarms.__version__, "healthy": result.healthy}
        print(json.dumps({**document, "rows": [asdict(row) for row in result.rows]}, indent=2))
    else:
        result = examine(config)
        say(f"\n{result.told().headline}")
    return 0 if result.healthy else 1
