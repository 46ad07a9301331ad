"""Writes the list of modules in docs/architecture.md: every module of the package with its docstring's first line.

`python -m tests.architecture_index` writes it; with `--check` it only says whether it is up to date.
"""

from __future__ import annotations

import ast
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "architecture.md"
PACKAGE = ROOT / "inferswarm"
COMMAND = "python -m tests.architecture_index"
BEGIN = f"<!-- modules: written by `{COMMAND}`; do not edit below -->"
END = "<!-- end of modules -->"


def first_line(path: Path) -> str:
    """Return the first line of a module's docstring. Raises ValueError when it has none."""
    docstring = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"), filename=str(path)))
    if not docstring:
        raise ValueError(f"{path} has no docstring")
    return docstring.splitlines()[0]


def modules(package: Path = PACKAGE) -> dict[str, dict[str, str]]:
    """Return for each folder with modules, by its path below the repository: file name → first line of docstring."""
    found: dict[str, dict[str, str]] = {}
    for path in sorted(package.rglob("*.py")):
        folder = path.parent.relative_to(package.parent).as_posix()
        found.setdefault(folder, {})[path.name] = first_line(path)
    return found


def render(found: dict[str, dict[str, str]]) -> str:
    """Return the list as Markdown: a heading with the package's own line, then one line for each module."""
    lines: list[str] = []
    for folder, files in found.items():
        lines += [f"### `{folder}/`", ""]
        own = files.get("__init__.py")
        if own is not None:
            lines += [own, ""]
        listed = [f"- `{name}`: {text}" for name, text in files.items() if name != "__init__.py"]
        lines += [*listed, ""] if listed else []
    return "\n".join(lines).rstrip("\n")


def with_list(page: str, listing: str) -> str:
    """Return the page with the list between its two marks. Raises ValueError unless each mark is there once."""
    if page.count(BEGIN) != 1 or page.count(END) != 1:
        raise ValueError(f"the page needs the lines {BEGIN!r} and {END!r}, each once")
    head, rest = page.split(BEGIN)
    _, tail = rest.split(END)
    return f"{head}{BEGIN}\n\n{listing}\n\n{END}{tail}"


def main(arguments: list[str]) -> int:
    """Write the page, or compare it when called with `--check`. Returns the exit status."""
    if arguments not in ([], ["--check"]):
        sys.stderr.write(f"usage: {COMMAND} [--check]\n")
        return 2
    current = PAGE.read_text(encoding="utf-8")
    wanted = with_list(current, render(modules()))
    if arguments == ["--check"]:
        if current != wanted:
            sys.stderr.write(f"{PAGE.relative_to(ROOT)} is out of date; run: {COMMAND}\n")
            return 1
        return 0
    PAGE.write_text(wanted, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
