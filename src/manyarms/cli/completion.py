"""``manyarms completion``: a script in which the shell finds all it needs, so that TAB starts no Python."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal, NamedTuple, get_args

import tyro

from manyarms import plugins
from manyarms.cli import COMMANDS, config_of, module_of
from manyarms.cli.help import Flag, Guide, flags_of
from manyarms.cli.options import parse
from manyarms.errors import UnknownName, did_you_mean
from manyarms.learning.recipes import recipes
from manyarms.simulators import registry as simulators

Shell = Literal["bash", "zsh", "fish"]

#: Fields whose values have names: what completes them.
_BY_FIELD = {
    "simulator": "simulators",
    "simulators": "simulators",
    "tasks": "tasks",
    "policy": "policies",
    "config": "configs",
}


@dataclass(frozen=True)
class CompletionConfig:
    """Print a script that completes commands, flags, simulators, tasks, policies and recipes.

    Its head says where it goes; it knows the plug-ins that were installed when it was printed.
    """

    shell: Annotated[tyro.conf.Positional[Shell], tyro.conf.arg(metavar="SHELL")]
    """bash, zsh or fish."""
    guide: ClassVar[Guide] = Guide(
        examples=(
            "manyarms completion bash > ~/.local/share/bash-completion/completions/manyarms",
            'manyarms completion zsh > "${fpath[1]}/_manyarms"',
            "manyarms completion fish > ~/.config/fish/completions/manyarms.fish",
        ),
    )

    def __post_init__(self) -> None:
        if self.shell not in get_args(Shell):
            raise UnknownName(f"there is no script for {self.shell!r}", do=did_you_mean(self.shell, get_args(Shell)))


class Choices(NamedTuple):
    """What may stand in a place."""

    kind: str
    """simulators, tasks, policies, configs, files, choices (those in `words`), nothing to tell, or switch: no value."""
    words: Sequence[str] = ()


class Command(NamedTuple):
    """What a command takes."""

    name: str
    about: str
    words: Sequence[Choices]
    """Without a name, in their order; the last may be repeated."""
    flags: Sequence[tuple[Flag, Choices]]


class Words(NamedTuple):
    """The names there are."""

    simulators: Mapping[str, Sequence[str]]
    """Their names -> their tasks."""
    policies: Sequence[str]
    configs: Sequence[str]

    @property
    def ids(self) -> list[str]:
        """Every ``<simulator>/<task>``, and the simulators that do not tell their tasks."""
        return [f"{name}/{task}" if task else name for name, tasks in self.simulators.items() for task in tasks or [""]]

    def of(self, choices: Choices) -> Sequence[str]:
        """Return the words that a plain list of them completes."""
        return {"policies": self.policies, "configs": self.configs}.get(choices.kind, choices.words)


def run(config: CompletionConfig) -> str:
    """Return the script."""
    write = {"bash": bash, "zsh": zsh, "fish": fish}[config.shell]
    return write([_command(name) for name in COMMANDS], _vocabulary())


def _vocabulary() -> Words:
    tasks = {name: tuple(simulators.tasks_of(name)) for name in simulators.BUILT_IN}
    return Words(
        simulators={**dict.fromkeys(plugins.plug_ins("simulators"), ()), **tasks},
        policies=tuple(plugins.names("policies")),
        configs=tuple(recipes()),
    )


def _command(name: str) -> Command:
    flags = flags_of(config_of(name))
    subcommands = getattr(module_of(name), "SUBCOMMANDS", ())
    first = (Choices("choices", subcommands),) if subcommands else ()
    return Command(
        name,
        COMMANDS[name],
        words=(*first, *(_choices(flag) for flag in flags if not flag.spellings)),
        flags=tuple((flag, _choices(flag)) for flag in flags if flag.spellings),
    )


def _choices(flag: Flag) -> Choices:
    """Return what may stand behind a flag, or in its place."""
    if not flag.metavar:
        return Choices("switch")
    if flag.choices:
        return Choices("choices", flag.choices)
    if flag.metavar.startswith(("INT", "FLOAT", "KEY=")):
        return Choices("nothing")
    return Choices(_BY_FIELD.get(flag.field, "files"))


def main(arguments: Sequence[str]) -> int:
    """Parse, print."""
    print(run(parse(CompletionConfig, "completion", arguments)), end="")
    return 0


# -- in the words of each shell ---------------------------------------------------------------------------------------


_OF_ALL = ("--help", "--help-all")

_BASH = """\
# Completes manyarms in bash: manyarms completion bash > ~/.local/share/bash-completion/completions/manyarms
_manyarms() {{
  local cur=${{COMP_WORDS[COMP_CWORD]}} prev=${{COMP_WORDS[COMP_CWORD-1]}} kind=files words='' flags='' valued='' i
  local -i place=0
  COMPREPLY=()
  if [ "$cur" = = ]; then
    cur=''
  elif [ "$prev" = = ]; then
    prev=${{COMP_WORDS[COMP_CWORD-2]}}
  fi
  if [ "$COMP_CWORD" -eq 1 ]; then
    COMPREPLY=($(compgen -W '{commands} --help --version' -- "$cur"))
    return
  fi
  case ${{COMP_WORDS[1]}} in
{flags}
  esac
  for ((i = 2; i < COMP_CWORD; i++)); do
    case "${{COMP_WORDS[i]}}/ $valued " in
      -*) ;;
      *" ${{COMP_WORDS[i-1]}} "*) ;;
      *) place+=1 ;;
    esac
  done
  case "${{COMP_WORDS[1]}} $prev $place" in
{kinds}
  esac
  case $cur in -*) kind=words words=$flags ;; esac
  case $kind in
    simulators)
      case $cur in
        */*) words='{ids}' ;;
        *) words='{simulators}'; compopt -o nospace 2>/dev/null ;;
      esac ;;
    tasks)
      for i in "${{COMP_WORDS[@]:2}}"; do
        case $i in
{tasks}
        esac
      done
      compopt -o nospace 2>/dev/null
      local before=''
      case $cur in *,*) before=${{cur%,*}}, ;; esac
      COMPREPLY=($(compgen -P "$before" -W "$words" -- "${{cur##*,}}"))
      return ;;
  esac
  COMPREPLY=($(compgen -W "$words" -- "$cur"))
  case $kind in simulators | policies | configs | files)
    if [ ${{#COMPREPLY[@]}} -eq 0 ]; then
      local IFS=$'\\n'
      compopt -o filenames 2>/dev/null
      COMPREPLY=($(compgen -f -- "$cur"))
    fi ;;
  esac
}}
complete -F _manyarms manyarms
"""


def bash(commands: Sequence[Command], words: Words) -> str:
    """Return a function for bash."""
    flags, kinds = [], []
    for command in commands:
        valued = [word for flag, choices in command.flags if choices.kind != "switch" for word in flag.spellings]
        every = [*(word for flag, _ in command.flags for word in flag.spellings), *_OF_ALL]
        flags.append(f"    {command.name}) flags='{' '.join(every)}' valued='{' '.join(valued)}' ;;")
        for flag, choices in command.flags:
            patterns = [f'"{command.name} {word} "*' for word in flag.spellings]
            if choices.kind != "switch":
                kinds.append(f"    {' | '.join(patterns)}) {_bash_kind(choices, words)} ;;")
        last = len(command.words) - 1
        for i, choices in enumerate(command.words):
            where = f'"{command.name} "*' + ("" if i == last else f'" {i}"')
            kinds.append(f"    {where}) {_bash_kind(choices, words)} ;;")
    return _BASH.format(
        commands=" ".join(command.name for command in commands),
        flags="\n".join(flags),
        kinds="\n".join(kinds),
        ids=" ".join(words.ids),
        simulators=" ".join(f"{name}/" if tasks else name for name, tasks in words.simulators.items()),
        tasks="\n".join(
            f"          {name} | {name}/) words='{' '.join(tasks)}' ;;" for name, tasks in words.simulators.items()
        ),
    )


def _bash_kind(choices: Choices, words: Words) -> str:
    listed = words.of(choices)
    return f"kind={choices.kind}" + (f" words='{' '.join(listed)}'" if listed else "")


_ZSH = """\
#compdef manyarms
# Completes manyarms in zsh: manyarms completion zsh > "${{fpath[1]}}/_manyarms", then open a new shell
_manyarms_simulators() {{
  _multi_parts / '({ids})' || _files
}}

_manyarms_configs() {{
  _alternative 'recipes:recipe:({configs})' 'files:file:_files -g "*.y(a|)ml(-.)"'
}}

_manyarms_tasks() {{
  local word
  local -a tasks
  for word in $words; do
    case $word in
{tasks}
    esac
  done
  _values -s , task $tasks
}}

_manyarms() {{
  local -a commands
  commands=(
{commands}
  )
  if (( CURRENT == 2 )); then
    _describe command commands
    return
  fi
  local command=$words[2]
  shift words
  (( CURRENT-- ))
  case $command in
{cases}
  esac
}}

if [ "$funcstack[1]" = _manyarms ]; then
  _manyarms "$@"
else
  compdef _manyarms manyarms
fi
"""


def zsh(commands: Sequence[Command], words: Words) -> str:
    """Return a function for zsh."""
    cases = []
    for command in commands:
        specs = [spec for flag, choices in command.flags for spec in _zsh_flag(flag, choices, words)]
        last = len(command.words) - 1
        for i, choices in enumerate(command.words):
            place = "*" if i == last and i else i + 1
            specs.append(f"{place}:{choices.kind}:{_zsh_action(choices, words)}")
        specs += ["--help[show the flags most people use]", "--help-all[show every flag]"]
        lines = " \\\n        ".join(shlex.quote(spec) for spec in specs)
        cases.append(f"    {command.name})\n      _arguments -S \\\n        {lines} ;;")
    return _ZSH.format(
        ids=" ".join(words.ids),
        configs=" ".join(words.configs),
        tasks="\n".join(
            f"      {name} | {name}/) tasks=({' '.join(tasks)}) ;;" for name, tasks in words.simulators.items()
        ),
        commands="\n".join(f"    {shlex.quote(f'{command.name}:{command.about}')}" for command in commands),
        cases="\n".join(cases),
    )


def _zsh_flag(flag: Flag, choices: Choices, words: Words) -> Iterable[str]:
    text = re.sub(r"[\[\]\\]", "", _first_sentence(flag.text)).replace(":", "\\:")
    value = "" if choices.kind == "switch" else f":{choices.kind}:{_zsh_action(choices, words)}"
    return [f"{spelling}[{text}]{value}" for spelling in flag.spellings]


def _zsh_action(choices: Choices, words: Words) -> str:
    if choices.kind in ("simulators", "tasks", "configs"):
        return f"_manyarms_{choices.kind}"
    listed = words.of(choices)
    return f"({' '.join(listed)})" if listed else "_files" if choices.kind == "files" else " "


_FISH = """\
# Completes manyarms in fish: manyarms completion fish > ~/.config/fish/completions/manyarms.fish
function __manyarms_first
    test (count (commandline -opc)) -eq 1
end

function __manyarms_is
    set -l words (commandline -opc)
    test (count $words) -ge 2; and test "$words[2]" = $argv[1]
    and begin
        test (count $argv) -lt 2; or test (count $words) $argv[2..-1]
    end
end

function __manyarms_tasks
    for word in (commandline -opc)
        switch $word
{tasks}
        end
    end
end

complete -c manyarms -f
{lines}
"""


def fish(commands: Sequence[Command], words: Words) -> str:
    """Return rules for fish."""
    lines = [
        f"complete -c manyarms -n __manyarms_first -a {command.name} -d {shlex.quote(command.about)}"
        for command in commands
    ]
    for command in commands:
        here = f"complete -c manyarms -n '__manyarms_is {command.name}"
        last = len(command.words) - 1
        for i, choices in enumerate(command.words):
            place = "" if not last else " -ge 3" if i == last else f" -eq {i + 2}"
            lines.append(f"{here}{place}' {_fish_action(choices, words)}")
        for flag, choices in command.flags:
            text = shlex.quote(_first_sentence(flag.text))
            value = "" if choices.kind == "switch" else f" -r {_fish_action(choices, words)}"
            lines += [f"{here}' -l {spelling[2:]}{value} -d {text}" for spelling in flag.spellings]
        lines += [f"{here}' -l help -d 'show the flags most people use'", f"{here}' -l help-all -d 'show every flag'"]
    tasks = [
        f"            case {name} {name}/\n                printf '%s\\n' {' '.join(tasks)}"
        for name, tasks in words.simulators.items()
        if tasks
    ]
    return _FISH.format(tasks="\n".join(tasks), lines="\n".join(lines))


def _fish_action(choices: Choices, words: Words) -> str:
    if choices.kind == "tasks":
        return "-f -a '(__manyarms_tasks)'"
    listed = words.ids if choices.kind == "simulators" else words.of(choices)
    files = "-F" if choices.kind in ("files", "simulators", "configs", "policies") else "-f"
    return f"{files} -a '{' '.join(listed)}'" if listed else files


def _first_sentence(text: str) -> str:
    return re.split(r"[;.] ", text + " ")[0].strip().rstrip(".").replace("'", "’")
