"""Python files beside a file that a recipe names: which of them it imports, and nothing else of them is run.

A file that is imported runs like the file that imports it. So consent to run a file, and its fingerprint, are also for
the files beside it that it imports, found by reading its import statements without running any.
"""

from __future__ import annotations

import ast
import importlib.util
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib.abc import InspectLoader, MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from types import CodeType, ModuleType

from privet.errors import RecipeError

_MOST_FILES, _MOST_BYTES = 500, 4_000_000


def imported_beside(path: Path, text: bytes) -> dict[str, bytes]:
    """Return the files in the folder of a file, and below it, that its import statements lead to; nothing is run.

    Args:
        path: The file.
        text: What it holds.

    Returns:
        Contents by path relative to the folder.

    Raises:
        RecipeError: they are too many or too large, or one cannot be read.
    """
    found: dict[str, bytes] = {}
    waiting = [(text, "")]
    while waiting:
        source, package = waiting.pop()
        for name in _imported(source, package):
            for place in _places(name):
                if place in found or not (path.parent / place).is_file() or path.parent / place == path:
                    continue
                found[place] = _read(path.parent / place)
                if len(found) > _MOST_FILES or sum(map(len, found.values())) > _MOST_BYTES:
                    raise RecipeError(
                        f"{path} imports more than {_MOST_FILES} files or {_MOST_BYTES:,} bytes beside it. Install "
                        "them as a package; files of installed packages are not compared."
                    )
                whole = place.removesuffix("/__init__.py").removesuffix(".py").replace("/", ".")
                waiting.append((found[place], whole if place.endswith("/__init__.py") else whole.rpartition(".")[0]))
    return dict(sorted(found.items()))


def _read(path: Path) -> bytes:
    try:
        with open(path, "rb") as file:
            return file.read(_MOST_BYTES + 1)
    except OSError as error:
        raise RecipeError(f"{path} cannot be read: {error.strerror}.") from None


def _imported(source: bytes, package: str) -> set[str]:
    """Return dotted names that import statements may mean: modules, and names in them that may be modules."""
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return set()  # to run it fails, and says why
    names: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names |= {each.name for each in node.names}
        elif isinstance(node, ast.ImportFrom):
            above = package.split(".")[: len(package.split(".")) - node.level + 1] if node.level else []
            start = ".".join([*(part for part in above if part), *([node.module] if node.module else [])])
            names |= {start, *(f"{start}.{each.name}" if start else each.name for each in node.names)}
    return names - {""}


def _places(name: str) -> Iterator[str]:
    """Return where a module and the packages around it may lie."""
    parts = name.split(".")
    for count in range(1, len(parts) + 1):
        start = "/".join(parts[:count])
        yield f"{start}.py"
        yield f"{start}/__init__.py"


class AsRead(InspectLoader):
    """Runs the text of a file that was read before: neither a newer content of the file nor a compiled copy of it."""

    def __init__(self, path: Path, text: bytes) -> None:
        self._path, self._text = path, text

    def get_source(self, fullname: str) -> str:
        return importlib.util.decode_source(self._text)

    def get_code(self, fullname: str) -> CodeType:
        return self.source_to_code(self._text, str(self._path))

    def is_package(self, fullname: str) -> bool:
        return self._path.name == "__init__.py"


class _Beside(MetaPathFinder):
    """Finds files in a folder, and refuses those that were not read."""

    def __init__(self, folder: Path, texts: Mapping[str, bytes]) -> None:
        self._folder, self._texts = folder, texts

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        top = self._folder / fullname.partition(".")[0]
        among = [str(self._folder)] if path is None else [each for each in path if Path(each).is_relative_to(top)]
        found = PathFinder.find_spec(fullname, among) if among else None
        if found is None or found.origin is None:
            return None
        place = Path(found.origin).relative_to(self._folder).as_posix()
        text = self._texts.get(place)
        if text is None:
            raise RecipeError(
                f"The file imports {found.origin}, which no import statement names, so that nobody has agreed to run "
                "it. Write: import NAME, of a Python file."
            )
        file = Path(found.origin)
        spec = importlib.util.spec_from_loader(fullname, AsRead(file, text), origin=str(file))
        assert spec is not None, "a loader was given"
        if spec.submodule_search_locations is not None:
            spec.submodule_search_locations.append(str(file.parent))
        return spec


@contextmanager
def only_beside(folder: Path, texts: Mapping[str, bytes]) -> Iterator[None]:
    """Let code import, of a folder, the given texts and no other file, whatever was imported from elsewhere before."""
    finder = _Beside(folder, texts)
    for place in texts:
        sys.modules.pop(place.removesuffix("/__init__.py").removesuffix(".py").replace("/", "."), None)
    places = [number for number, each in enumerate(sys.meta_path) if each is PathFinder]
    sys.meta_path.insert(places[0] if places else 0, finder)
    sys.path.insert(0, str(folder))  # as Python does for a script
    try:
        yield
    finally:
        sys.path.remove(str(folder))
        sys.meta_path.remove(finder)
