"""The tokenizer in a checkpoint's folder, which anyone may have written: texts in, tokens out."""

from __future__ import annotations

from pathlib import Path

from manyarms.errors import ConfigError


class Tokens:
    """Turns texts into tokens; what a file says of padding and of cutting is left out."""

    def __init__(self, path: str | Path, vocabulary: int, whose: str) -> None:
        """Read a `tokenizer.json`, or the one in a folder; `vocabulary` is how many tokens the network knows."""
        try:
            from tokenizers import Tokenizer
        except ImportError as error:
            raise ConfigError(f"{whose} needs tokenizers", do="pip install 'manyarms[vla]'") from error
        path = Path(path).expanduser()
        self._path, self._vocabulary = path / "tokenizer.json" if path.is_dir() else path, vocabulary
        if not self._path.is_file():
            raise ConfigError(
                f"there is no tokenizer {self._path}",
                why=f"{whose} reads its instructions with the tokenizer of its checkpoint, and nothing is downloaded",
                do="put tokenizer.json there, or name it: tokenizer=PATH",
            )
        try:
            self._tokenizer = Tokenizer.from_file(str(self._path))
            self._tokenizer.no_padding()
            self._tokenizer.no_truncation()
        except Exception as error:  # the library raises nothing more special
            raise ConfigError(f"{self._path} is no tokenizer", why=str(error)) from error

    def __call__(self, text: str, *, special: bool = True) -> list[int]:
        """Return the tokens of a text, with those that the tokenizer puts around it if they are wanted."""
        try:
            return self._tokenizer.encode(text, add_special_tokens=special).ids
        except (KeyboardInterrupt, SystemExit):
            raise
        except BaseException as error:  # it panics, which is no Exception, where its parts do not fit together
            raise ConfigError(f"{self._path} is no tokenizer", why=f"it fails at {text[:80]!r}: {error}") from error

    def checked(self, ids: list[int]) -> list[int]:
        """Return tokens, all of which the network must know."""
        if max(ids) >= self._vocabulary:
            raise ConfigError(
                f"{self._path} makes token {max(ids)}, but the network knows {self._vocabulary}",
                why="it is another model's tokenizer",
            )
        return ids
