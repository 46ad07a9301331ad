"""Writes the tables of docs/guides/models.md from the tables that the tests run through.

`python -m tests.models_index` writes them; with `--check` it only says whether they are up to date. With
`--matrix FILE` it first copies the record of a run of the equality matrix to docs/matrix.json.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from inferswarm.artifacts.gguf_types import ENCODINGS, PLAIN_ENCODINGS, READABLE_ENCODINGS
from inferswarm.artifacts.safetensors import BITS
from inferswarm.strategies.text.pretokenizers import PRE_TOKENIZERS, PreTokenizer
from tests import configurations, families, hosted
from tests.matrix_record import CaseName, CaseResult, expected_cases, read_record
from tests.refusals import REFUSED

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "guides" / "models.md"
MATRIX = ROOT / "docs" / "matrix.json"
COMMAND = "python -m tests.models_index"
BEGIN = "<!-- {}: written by `" + COMMAND + "`; do not edit below -->"
END = "<!-- end of {} -->"


def table(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a Markdown table."""
    lines = [f"| {' | '.join(heads)} |", f"| {' | '.join('---' for _ in heads)} |"]
    return "\n".join(
        [*lines, *(f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in row)} |" for row in rows)]
    )


def families_table() -> str:
    """Return every model that is compared with transformers, what it has beyond a plain one, and who computes it."""
    rows = []
    for name, case in families.FAMILIES.items():
        backends = ["torch"]
        backends += ["reference"] if name in families.BY_REFERENCE else []
        rows.append(
            (
                f"`{name}`",
                f"`{case.configuration.removesuffix('Config')}`",
                "cannot state it" if case.architecture is None else f"`{case.architecture}`",
                _arguments(case.arguments) or "nothing",
                ", ".join(backends),
            )
        )
    return table(("Model", "Class", "As GGUF", "Says beyond sizes", "Backends"), rows)


def _arguments(arguments: Mapping[str, Any]) -> str:
    """Return what a configuration says, nested objects opened, lists shortened."""
    words = []
    for key, value in arguments.items():
        if isinstance(value, Mapping):
            words.append(_arguments(value) if key == "rope_parameters" else f"{key} ({_arguments(value)})")
        else:
            words.append(f"{key} {'listed' if isinstance(value, list) else value}")
    return ", ".join(words)


def published_table() -> str:
    """Return the published configurations that are read."""
    rows = [
        (f"`{name}`", f"`{fields['model_type']}`", f"{fields['num_hidden_layers']}")
        for name, fields in configurations.PUBLISHED.items()
    ]
    return table(("Configuration", "`model_type`", "Blocks"), rows)


def encodings_table() -> str:
    """Return the encodings of both formats: those that are read, those that are refused by name."""
    gguf = [encoding.name for encoding in ENCODINGS.values()]
    rows = []
    for form, names, readable in (("GGUF", gguf, READABLE_ENCODINGS), ("safetensors", list(BITS), PLAIN_ENCODINGS)):
        refused = [name for name in names if name not in readable]
        rows.append((form, ", ".join(readable), ", ".join(refused)))
    return table(("Format", "Read", "Refused by name"), rows)


def pretokenizers_table() -> str:
    """Return the names of pre-tokenizers, those that cut alike in one row."""
    names: dict[PreTokenizer, list[str]] = {}
    for name, rule in PRE_TOKENIZERS.items():
        names.setdefault(rule, []).append(name)
    rows = []
    for rule, alike in names.items():
        also = [rule.normal_form] if rule.normal_form else []
        also += ["whole words first"] if rule.whole_words else []
        also += ["begins with BOS"] if rule.adds_bos else []
        rows.append((", ".join(f"`{name}`" for name in alike), ", ".join(also)))
    return table(("`tokenizer.ggml.pre`; one row cuts alike", "Beyond cutting"), rows)


def hosted_table() -> str:
    """Return the families that the transformers backend is tested with."""
    return ", ".join(f"`{name}`" for name in hosted.FAMILIES) + "."


def refusals_table() -> str:
    """Return what is refused, with the line that the command line prints."""
    rows = []
    for refused in REFUSED:
        command = " ".join(word if " " not in word else f'"{word}"' for word in refused.command)
        rows.append((refused.what, f"`{command}`", f"`{_short(refused.line.replace('{path}', 'PATH'))}`"))
    return table(("Model", "Asked", "Answer"), rows)


def _short(line: str, longest: int = 420) -> str:
    """Return a line, the middle of a long list left out."""
    if len(line) <= longest:
        return line
    return f"{line[: longest // 2].rpartition(',')[0]}, …{line[-longest // 4 :].partition(',')[2]}"


def matrix_table(conditions: Mapping[str, str], results: Mapping[CaseName, CaseResult]) -> str:
    """Return the record of the equality matrix, and which of its cases are missing."""
    groups: dict[tuple[str, str, str], list[CaseName]] = {}
    for name in sorted(expected_cases()):
        groups.setdefault((name.model, name.form, name.backend), []).append(name)
    rows = []
    for (model, form, backend), names in groups.items():
        there = [results[name] for name in names if name in results]
        count = f"{len(there)}" if len(there) == len(names) else f"**{len(there)} of {len(names)}**"
        rows.append((f"`{model}`", form, backend, count, *_sums(there)))
    missing = sorted(expected_cases() - set(results))
    total = f"{len(results):,} of {len(expected_cases()):,} cases"
    state = (
        f"All {total.split(' of ')[1]} are there and held." if not missing else f"**Incomplete: {total}.** Missing: "
    )
    state += ", ".join(" ".join(name) for name in missing[:20]) + (" …" if len(missing) > 20 else "")
    made = ", ".join(f"{name} {value}" for name, value in conditions.items())
    heads = (
        "Model",
        "Format",
        "Backend",
        "Cases",
        "Positions",
        "Tokens",
        "Near ties",
        "Largest difference",
        "Splits",
    )
    return f"{state}\n\nMade with: {made}.\n\n{table(heads, rows)}"


def _sums(results: Sequence[CaseResult]) -> tuple[str, ...]:
    if not results:
        return ("", "", "", "", "")
    differences = [result.max_difference for result in results if result.max_difference is not None]
    num_compared = sum(result.num_tokens > 0 for result in results)
    largest = max(differences, default=None)
    shown = "not compared" if largest is None else "same bits" if largest == 0 else f"{largest:.1e}"
    if differences and len(differences) < num_compared:
        shown += f" in {len(differences)} of {num_compared} cases, tokens in all"
    return (
        f"{sum(result.num_positions for result in results):,}",
        f"{sum(result.num_tokens for result in results):,}",
        f"{sum(result.near_ties for result in results)}",
        shown,
        f"{sum(result.num_splits for result in results)}",
    )


def _recorded_matrix() -> str:
    return matrix_table(*read_record(MATRIX))


SECTIONS: Mapping[str, Callable[[], str]] = {
    "families": families_table,
    "published configurations": published_table,
    "encodings": encodings_table,
    "pre-tokenizers": pretokenizers_table,
    "hosted families": hosted_table,
    "refusals": refusals_table,
    "matrix": _recorded_matrix,
}


def with_sections(page: str, sections: Mapping[str, Callable[[], str]] = SECTIONS) -> str:
    """Return the page with every section between its two marks. Raises ValueError unless each mark is there once."""
    for name, render in sections.items():
        begin, end = BEGIN.format(name), END.format(name)
        if page.count(begin) != 1 or page.count(end) != 1 or page.index(begin) > page.index(end):
            raise ValueError(f"the page needs the lines {begin!r} and {end!r}, each once")
        head, rest = page.split(begin)
        page = f"{head}{begin}\n\n{render()}\n\n{end}{rest.split(end)[1]}"
    return page


def main(arguments: list[str]) -> int:
    """Write the page, or compare it when called with `--check`. Returns the exit status."""
    if len(arguments) == 2 and arguments[0] == "--matrix":
        read_record(Path(arguments[1]))
        MATRIX.write_bytes(Path(arguments[1]).read_bytes())
    elif arguments not in ([], ["--check"]):
        sys.stderr.write(f"usage: {COMMAND} [--check | --matrix FILE]\n")
        return 2
    current = PAGE.read_text(encoding="utf-8")
    wanted = with_sections(current)
    if arguments == ["--check"]:
        if current != wanted:
            sys.stderr.write(f"{PAGE.relative_to(ROOT)} is out of date; run: {COMMAND}\n")
            return 1
        return 0
    PAGE.write_text(wanted, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
