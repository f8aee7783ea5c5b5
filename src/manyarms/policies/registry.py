"""From a name to a policy: built in, a plug-in's (entry points ``manyarms.policies``), a folder or an import string."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from manyarms import plugins
from manyarms.errors import ConfigError, did_you_mean
from manyarms.policies.base import Policy
from manyarms.simulators.base import Spec

if TYPE_CHECKING:
    from manyarms.policies.trainable import Batched


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

#: How a policy that learns is asked, whichever it is.
OF_BATCHED = frozenset({"sample", "batch_size", "deterministic"})

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
    """Make a policy for a simulator; `trust_code` is for checkpoints, see `find_policy`.

    One that learns comes from `make_trainable`.
    """
    factory = find_policy(name, trust_code=trust_code)
    if _learns(factory):
        return make_trainable(name, spec, options, trust_code=trust_code)
    made = _made(name, factory, spec, options or {})
    if not _learns(made):
        return made
    from manyarms.policies.trainable import Batched

    return Batched(made)


def make_trainable(
    name: str, spec: Spec, options: Mapping[str, Any] | None = None, *, trust_code: bool = False
) -> Batched:
    """Make a policy that learns (`policy` of what is returned); one that cannot is refused.

    Besides its own options it takes `sample` (draw actions, or take the best), `batch_size`, and `deterministic` (pad
    every batch to that size).
    """
    from manyarms.policies.trainable import Batched

    options = options or {}
    factory = find_policy(name, trust_code=trust_code)
    own = {option: value for option, value in options.items() if option not in OF_BATCHED}
    made = _made(name, factory, spec, own) if _learns(factory) or not isinstance(factory, type) else None
    policy = made.policy if isinstance(made, Batched) else made
    if policy is None or not _learns(policy):
        raise ConfigError(
            f"policy {name!r} cannot be trained",
            why="it has no weights that training could change: it is no TrainablePolicy",
            do="use mlp, pixel, pi0 or openvla_oft, or write one (docs/add/policy.md)",
        )
    size, pad = options.get("batch_size", 32), options.get("deterministic", False)
    return Batched(policy, size, pad=pad, explore=options.get("sample"))


def accepts(factory: Any, option: str) -> bool:
    """Tell whether what makes a policy takes an option."""
    parameters = inspect.signature(factory).parameters
    return option in parameters or any(p.kind is inspect.Parameter.VAR_KEYWORD for p in parameters.values())


def _made(name: str, factory: Any, spec: Spec, options: Mapping[str, Any]) -> Any:
    """Call what makes a policy; options that it does not have are refused."""
    parameters = inspect.signature(factory).parameters
    options = with_critic(options, parameters)
    takes_any = any(p.kind is inspect.Parameter.VAR_KEYWORD for p in parameters.values())
    first, known = [*parameters][:1], [*parameters][1:]
    unknown = [option for option in options if option in first or not (takes_any or option in known)]
    if unknown:
        raise ConfigError(f"policy {name!r} has no option {unknown[0]!r}", do=did_you_mean(unknown[0], known))
    missing = [
        n for n, p in list(parameters.items())[1:] if p.default is p.empty and p.kind in _NAMED and n not in options
    ]
    if missing:
        raise ConfigError(f"policy {name!r} needs the option {missing[0]!r}", do=f"--policy-options {missing[0]}=…")
    return factory(spec, **options)


def with_critic(options: Mapping[str, Any], parameters: Mapping[str, Any]) -> dict[str, Any]:
    """Return options in which `critic` says what `value_head` and `value_type` said in earlier versions."""
    found = dict(options)
    if "value_head" in parameters or not {"value_head", "value_type"} & {*options}:
        return found
    wanted, level = found.pop("value_head", False), found.pop("value_type", "chunk_level")
    return {**found, "critic": level} if wanted else found


def _learns(policy: Any) -> bool:
    """Tell whether a policy, or the class of one, is a `TrainablePolicy`: without importing PyTorch."""
    return getattr(policy, "is_trainable", False)


__all__ = ["BUILT_IN", "FACTS", "find_policy", "in_checkpoints", "make_policy", "make_trainable"]
