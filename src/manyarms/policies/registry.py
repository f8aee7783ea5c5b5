"""From a name to a policy: built in, a plug-in's (entry points ``manyarms.policies``), a folder or an import string."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from manyarms import plugins
from manyarms.errors import ConfigError, did_you_mean
from manyarms.policies.base import Policy
from manyarms.simulators.base import Spec


class About(NamedTuple):
    """What is known of a policy before it is imported."""

    what: str
    chunk: str
    """Actions a decision."""
    factory: str
    """Its import string, and in brackets what `pip install manyarms[…]` must have brought."""

    @property
    def extra(self) -> str:
        return self.factory.partition("[")[2].rstrip("]")


#: Our own. Nothing is imported before it is asked for.
FACTS = {
    "random": About("actions drawn at random", "1 (option chunk)", "manyarms.policies.scripted:RandomPolicy"),
    "expert": About(
        "the way points of a task's own expert, where it has one", "1", "manyarms.policies.scripted:ExpertPolicy"
    ),
    "mlp": About("a small network that sees numbers", "8 (option chunk)", "manyarms.policies.small:MlpPolicy [torch]"),
    "pixel": About(
        "a small network that sees images", "8 (option chunk)", "manyarms.policies.small:PixelPolicy [torch]"
    ),
    "openvla_oft": About(
        "OpenVLA-OFT, from a checkpoint",
        "8, or as the checkpoint says",
        "manyarms.policies.openvla_oft.policy:OpenVlaOftPolicy [torch,vla]",
    ),
    "replay": About("the actions of a recording", "1 (option chunk)", "manyarms.reporting.recording:replay_policy"),
    "remote": About(
        "whatever `manyarms serve` or openpi serves",
        "as the server says",
        "manyarms.policies.remote:RemotePolicy [serve]",
    ),
    "pi0": About(
        "PI0, from a checkpoint", "as the checkpoint says", "manyarms.policies.pi0.policy:Pi0Policy [torch,vla]"
    ),
}

BUILT_IN = {name: about.factory for name, about in FACTS.items()}

_NAMED = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)

_CHECKPOINT = "manyarms.learning.checkpoint:CheckpointPolicy"


def find_policy(name: str, *, trust_code: bool = False) -> Any:
    """Return what makes a policy: called with the simulator's spec and options.

    The name is its user's own and may be an import string. It may also be a checkpoint's folder, and what is in there
    may come from anybody: only with `trust_code` does it name code that is not installed.
    """
    if name in plugins.names("policies"):
        return plugins.resolve("policies", name, trusted=True)
    if (Path(name) / "policy.json").is_file():
        return plugins.import_object(_CHECKPOINT)(name, trust_code=trust_code)
    if not plugins.is_import_string(name) and ("/" in name or Path(name).is_dir()):
        raise _no_checkpoint(Path(name))
    return plugins.resolve("policies", name, trusted=True)


def in_checkpoints() -> set[str]:
    """Return the policies that a checkpoint may be of: those of ours that learn, and plug-ins."""
    return {"mlp", "pixel", "pi0", "openvla_oft", *plugins.plug_ins("policies")}


def _no_checkpoint(path: Path) -> ConfigError:
    """Say what a path is that is no checkpoint, and where one may be."""
    found = sorted(path.glob("checkpoints/global_step_*/policy.json"), key=lambda file: file.stat().st_mtime)
    if found:
        return ConfigError(f"{path} is a run, not a checkpoint", do=f"take its newest: {found[-1].parent}")
    what = f"{path} is no checkpoint of ours" if path.exists() else f"there is no {path}"
    return ConfigError(
        what, do="`manyarms policy inspect PATH` says what a folder is; pi0 and openvla_oft take model_path"
    )


def make_policy(name: str, spec: Spec, options: Mapping[str, Any] | None = None, *, trust_code: bool = False) -> Policy:
    """Make a policy for a simulator; `trust_code` is for checkpoints, see `find_policy`."""
    factory = find_policy(name, trust_code=trust_code)
    options = dict(options or {})
    parameters = inspect.signature(factory).parameters
    if not any(p.kind is inspect.Parameter.VAR_KEYWORD for p in parameters.values()):
        unknown = [option for option in options if option not in parameters]
        if unknown:
            known = [parameter for parameter in parameters if parameter != "spec"]
            raise ConfigError(f"policy {name!r} has no option {unknown[0]!r}", do=did_you_mean(unknown[0], known))
    missing = [
        n for n, p in list(parameters.items())[1:] if p.default is p.empty and p.kind in _NAMED and n not in options
    ]
    if missing:
        raise ConfigError(f"policy {name!r} needs the option {missing[0]!r}", do=f"--policy-options {missing[0]}=…")
    return factory(spec, **options)


__all__ = ["BUILT_IN", "FACTS", "find_policy", "in_checkpoints", "make_policy"]
