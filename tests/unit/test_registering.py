"""Environments of packages that register them when imported are found by name alone."""

from __future__ import annotations

from pathlib import Path

import gymnasium
import pytest

from manyarms.simulators import gymnasium as adapter


def test_installed_packages_are_imported_when_a_name_is_unknown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "registers_on_import.py").write_text(
        "import gymnasium\n"
        "gymnasium.register('OnlyAfterImport-v0', 'gymnasium.envs.classic_control:PendulumEnv', max_episode_steps=3)\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(adapter, "REGISTERING", ("registers_on_import", "not_installed_here"))
    try:
        assert adapter.GymnasiumSimulator("OnlyAfterImport-v0").spec.horizon == 3
    finally:
        gymnasium.registry.pop("OnlyAfterImport-v0", None)
    with pytest.raises(adapter.UnknownTask, match="OnlyNever"):
        adapter.GymnasiumSimulator("OnlyNever-v0")
