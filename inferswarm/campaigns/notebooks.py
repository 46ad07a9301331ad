"""Notebooks of arms, read as plain JSON: what the source must look like, and what an executed copy must show.

The source is scanned before anything starts, and by every verifier. The executed copy is a witness of little weight:
what papermill writes into it can say "completed" of cells that never ran. It shows what went wrong more reliably
than that all went well, so it is one condition of three, beside the parent's outcome and the arm's seal.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from inferswarm.campaigns.execution_traces import output_faults
from inferswarm.campaigns.findings import broken, proven, unproven
from inferswarm.campaigns.laws import Finding
from inferswarm.campaigns.layout import EXECUTED, NOTEBOOK
from inferswarm.campaigns.notebook_calls import forbidden
from inferswarm.campaigns.notebook_code import (
    assigned_values,
    finish_fault,
    literal_parameters,
    opening_fault,
    parse_code,
)
from inferswarm.campaigns.records import Parameter, Request
from inferswarm.campaigns.spec import RUN_PARAMETER
from inferswarm.documents import read_json
from inferswarm.errors import DocumentError

SCAN = "notebook-scan"
SOURCE = "notebook-source"
PARAMETERS = "parameters"
PARAMETERS_TAG = "parameters"
"""The only tag that a cell of an arm may have: others make cells be skipped, or their errors be forgiven."""
INJECTED_TAG = "injected-parameters"
ERROR_TAG = "papermill-error-cell-tag"
"""Of cells that papermill adds to a notebook that failed."""
NOTEBOOK_FORMAT = (4, 5)
"""The least version in which every cell has an id, which nbformat would otherwise make up anew each time."""
KERNEL_NAME = "python3"
LANGUAGE = "python"


class Cell(NamedTuple):
    """One cell: its kind, its text, its tags, and what an execution left."""

    kind: str
    text: str
    tags: tuple[str, ...]
    metadata: dict[str, Any]
    execution_count: object
    outputs: list[Any]


class Notebook(NamedTuple):
    """A notebook's cells and metadata."""

    cells: tuple[Cell, ...]
    metadata: dict[str, Any]

    @property
    def code(self) -> tuple[Cell, ...]:
        """Return the cells that are executed."""
        return tuple(cell for cell in self.cells if cell.kind == "code")


def read_notebook(data: bytes, source: str) -> Notebook:
    """Read a notebook of the current format. Raises DocumentError naming `source`."""
    fields = read_json(data, source)
    if not isinstance(fields, dict):
        raise DocumentError(source, "is not a notebook")
    version = (fields.get("nbformat"), fields.get("nbformat_minor"))
    major, minor = NOTEBOOK_FORMAT
    if type(version[1]) is not int or version[0] != major or version[1] < minor:
        raise DocumentError(source, f"is of format {version[0]}.{version[1]}, needed {major}.{minor}")
    metadata, cells = fields.get("metadata"), fields.get("cells")
    if not isinstance(metadata, dict) or not isinstance(cells, list):
        raise DocumentError(source, "has no metadata, or no list of cells")
    read = tuple(_cell(cell, f"{source}: cell {number}") for number, cell in enumerate(cells, start=1))
    ids = [cell["id"] for cell in cells]
    if len(set(ids)) < len(ids):
        raise DocumentError(source, "has two cells with one id")
    return Notebook(read, metadata)


def parameters_of(data: bytes) -> tuple[Parameter, ...]:
    """Return the parameters of an arm's notebook with their defaults, without `run`.

    Raises DocumentError where the scan finds fault with them.
    """
    tagged = [cell for cell in read_notebook(data, NOTEBOOK).code if PARAMETERS_TAG in cell.tags]
    if len(tagged) != 1:
        raise DocumentError(NOTEBOOK, f"has {len(tagged)} cells tagged {PARAMETERS_TAG!r}, needed 1")
    found = literal_parameters(tagged[0].text)
    if isinstance(found, str):
        raise DocumentError(f"{NOTEBOOK}: parameters", found)
    return found[1:]


def scan_source(data: bytes) -> tuple[Finding, ...]:
    """Return what is wrong with an arm's notebook as it is committed; one finding that all is well, where it is."""
    try:
        notebook = read_notebook(data, NOTEBOOK)
        names = tuple(item.name for item in parameters_of(data))
    except DocumentError as error:
        return (broken(SCAN, NOTEBOOK, "an arm's notebook", f"{error.source}: {error.reason}"),)
    findings = [
        *_metadata_faults(notebook),
        *(fault for number, cell in enumerate(notebook.cells, start=1) for fault in _cell_faults(number, cell)),
    ]
    if not findings:  # only then every cell of code is known to be Python
        findings = _frame_faults(notebook, names)
    return tuple(findings) or (proven(SCAN, NOTEBOOK, f"{len(notebook.code)} cells of plain Python, stripped"),)


def scan_executed(data: bytes, source: bytes, request: Request) -> tuple[Finding, ...]:
    """Return what an executed copy shows: that all of its cells ran, in order, and which cells they were.

    That it did not come to its end is UNPROVEN; other cells or parameters than those of the source and the request
    are BROKEN.
    """
    try:
        original = read_notebook(source, NOTEBOOK)
        notebook = read_notebook(data, EXECUTED)
    except DocumentError as error:
        return (unproven(SCAN, EXECUTED, "two notebooks that can be compared", f"{error.source}: {error.reason}"),)
    return (*_execution(notebook), _same_cells(notebook, original), _injected(notebook, request))


def _cell(fields: Any, source: str) -> Cell:
    if not isinstance(fields, dict) or fields.get("cell_type") not in ("code", "markdown", "raw"):
        raise DocumentError(source, "is not a cell")
    text, metadata = fields.get("source"), fields.get("metadata")
    if isinstance(text, list) and all(isinstance(line, str) for line in text):
        text = "".join(text)
    outputs = fields.get("outputs", [])
    if not isinstance(text, str) or not isinstance(metadata, dict) or not isinstance(outputs, list):
        raise DocumentError(source, "has no text, no metadata or no list of outputs")
    tags = metadata.get("tags", [])
    if not isinstance(tags, list) or not all(isinstance(tag, str) for tag in tags):
        raise DocumentError(source, "has tags that are not texts")
    if not isinstance(fields.get("id"), str):
        raise DocumentError(source, "has no id")
    return Cell(fields["cell_type"], text, tuple(tags), metadata, fields.get("execution_count"), outputs)


def _metadata_faults(notebook: Notebook) -> list[Finding]:
    found = []
    for field, needed in (("kernelspec", KERNEL_NAME), ("language_info", LANGUAGE)):
        named = notebook.metadata.get(field)
        name = named.get("name") if isinstance(named, dict) else None
        if name != needed:
            found.append(broken(SCAN, NOTEBOOK, f"{field}.name {needed!r}", repr(name)))
    if extra := sorted({"papermill", "widgets"} & notebook.metadata.keys()):
        found.append(broken(SCAN, NOTEBOOK, "a notebook that was never executed", f"metadata of {', '.join(extra)}"))
    return found


def _cell_faults(number: int, cell: Cell) -> list[Finding]:
    place = f"{NOTEBOOK}: cell {number}"
    found = []
    if extra := sorted(set(cell.tags) - {PARAMETERS_TAG}):
        found.append(broken(SCAN, place, f"no tag but {PARAMETERS_TAG!r}", ", ".join(extra)))
    if cell.outputs or cell.execution_count is not None or "execution" in cell.metadata:
        found.append(broken(SCAN, place, "no outputs and no execution count", "they are there: strip the notebook"))
    if cell.kind == "code":
        tree = parse_code(cell.text)
        if isinstance(tree, str):
            found.append(broken(SCAN, place, "plain Python", tree))
    elif cell.tags:
        found.append(broken(SCAN, place, "tags on cells of code only", ", ".join(cell.tags)))
    return found


def _frame_faults(notebook: Notebook, names: tuple[str, ...]) -> list[Finding]:
    """Look at what frames an arm: its parameters first, then the opening, the finish last."""
    code = notebook.code
    trees = [tree for cell in code if not isinstance(tree := parse_code(cell.text), str)]
    if PARAMETERS_TAG not in code[0].tags or len(code) < 3:
        return [broken(SCAN, NOTEBOOK, "the parameters, Arm.open and arm.finish() in three cells", "another order")]
    second, last = opening_fault(trees[1], names), finish_fault(trees)
    found = [
        broken(SCAN, f"{NOTEBOOK}: {which} cell of code", fault, "another text")
        for which, fault in (("second", second), ("last", last))
        if fault is not None
    ]
    numbers = [number for number, cell in enumerate(notebook.cells, start=1) if cell.kind == "code"]
    for place, fault in forbidden(trees, names):
        found.append(broken(SCAN, f"{NOTEBOOK}: cell {numbers[place]}", "code whose failures show", fault))
    return found


def _execution(notebook: Notebook) -> list[Finding]:
    """Return whether every cell ran, in order and without an error, as far as the copy shows."""
    counts = [cell.execution_count for cell in notebook.code]
    errors = [
        number
        for number, cell in enumerate(notebook.cells, start=1)
        if ERROR_TAG in cell.tags
        or any(isinstance(output, dict) and output.get("output_type") == "error" for output in cell.outputs)
    ]
    odd = [
        f"cell {number}: {fault}"
        for number, cell in enumerate(notebook.cells, start=1)
        for fault in output_faults({"outputs": cell.outputs, "metadata": cell.metadata})
    ]
    states = [_papermill(cell.metadata).get("status") for cell in notebook.code]
    said = _papermill(notebook.metadata)
    wanted = list(range(1, len(counts) + 1))
    found = [
        unproven(SCAN, EXECUTED, expected, shown)
        for expected, shown, is_right in (
            (f"execution counts 1 to {len(counts)}", str(counts), counts == wanted and bool(counts)),
            ("no cell with an error", f"cells {errors}", not errors),
            ("outputs of known kinds and no exception", "; ".join(odd), not odd),
            ("every cell completed", str(states), all(state == "completed" for state in states)),
            ("an end", "none", isinstance(said.get("end_time"), str) and bool(said["end_time"])),
            ("no exception", repr(said.get("exception")), said.get("exception") in (None, False)),
        )
        if not is_right
    ]
    if extra := sorted(
        {tag for cell in notebook.cells for tag in cell.tags} - {PARAMETERS_TAG, INJECTED_TAG, ERROR_TAG}
    ):
        found.append(broken(SCAN, EXECUTED, f"no tag but {PARAMETERS_TAG!r} and {INJECTED_TAG!r}", ", ".join(extra)))
    return found or [proven(SCAN, EXECUTED, f"execution counts 1 to {len(counts)}, no error, an end")]


def _same_cells(notebook: Notebook, original: Notebook) -> Finding:
    added = {INJECTED_TAG, ERROR_TAG}
    mine = [(cell.kind, cell.text, cell.tags) for cell in notebook.cells if not added & set(cell.tags)]
    theirs = [(cell.kind, cell.text, cell.tags) for cell in original.cells]
    wanted = f"the {len(theirs)} cells of {NOTEBOOK}"
    if mine == theirs:
        return proven(SOURCE, EXECUTED, wanted)
    pairs = enumerate(zip(mine, theirs, strict=False), start=1)
    first = next((number for number, (left, right) in pairs if left != right), min(len(mine), len(theirs)) + 1)
    return broken(SOURCE, EXECUTED, wanted, f"{len(mine)} cells, of which cell {first} is the first other one")


def _injected(notebook: Notebook, request: Request) -> Finding:
    """Compare what was injected, by the cell that ran and by what papermill recorded, with what was requested."""
    wanted = (Parameter(RUN_PARAMETER, request.run_id), *request.parameters)
    expected = f"one injected cell, behind the parameters, with the {len(wanted)} values of the request"
    places = [number for number, cell in enumerate(notebook.code) if INJECTED_TAG in cell.tags]
    if not places:
        return unproven(PARAMETERS, EXECUTED, expected, "no injected cell")
    if places != [1] or PARAMETERS_TAG not in notebook.code[0].tags:
        return broken(PARAMETERS, EXECUTED, expected, f"injected cells at {places}")
    injected = assigned_values(notebook.code[1].text)
    if isinstance(injected, str):
        return broken(PARAMETERS, EXECUTED, expected, injected)
    recorded = _papermill(notebook.metadata).get("parameters")
    needed = _typed({item.name: item.value for item in wanted})
    for values, where in ((injected, "the cell"), (recorded, "papermill's record")):
        found = _typed(values) if isinstance(values, dict) else {}
        if found != needed:
            names = sorted(name for name in found.keys() | needed.keys() if found.get(name) != needed.get(name))
            return broken(PARAMETERS, EXECUTED, expected, f"{where} differs in {', '.join(names)}")
    return proven(PARAMETERS, EXECUTED, expected)


def _typed(values: dict[str, Any]) -> dict[str, tuple[str, Any]]:
    """Return values with their kinds; JSON has one kind of number, and a truth is none."""
    return {
        name: ("number" if type(value) in (int, float) else type(value).__name__, value)
        for name, value in values.items()
    }


def _papermill(metadata: dict[str, Any]) -> dict[str, Any]:
    said = metadata.get("papermill")
    return said if isinstance(said, dict) else {}
