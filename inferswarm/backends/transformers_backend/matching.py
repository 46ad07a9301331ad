"""Which tensors of a model's files become which entries of the host's module tree, by the host's own rules.

The host renames what files hold, and makes some entries out of several tensors (a stack of experts out of one tensor
for each) or several entries out of one. A *recipe* is the smallest set of tensors and entries that belong together.
"""

from __future__ import annotations

import bisect
import copy
import itertools
import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple, cast

import torch
from torch import nn
from transformers.conversion_mapping import get_model_conversion_mapping
from transformers.core_model_loading import WeightConverter, WeightRenaming, dot_natural_key, rename_source_key

from inferswarm.errors import ModelError


class RowRun(NamedTuple):
    """Rows [first, end) of one tensor of the files."""

    source: str
    first: int
    end: int


@dataclass
class Recipe:
    """Tensors of files, in the host's order, and the entry that they make (first of several, with a converter)."""

    target: str
    sources: list[str] = field(default_factory=list)
    converter: Any = None
    patterns: list[str] = field(default_factory=list)
    """For each source, the converter's pattern that it matched."""

    def rows(
        self, module: nn.Module, shapes: Mapping[str, tuple[int, ...]], entries: Mapping[str, torch.Tensor]
    ) -> dict[str, list[RowRun]] | None:
        """Return, for each entry that is made, from which rows of which sources its rows come, in order.

        None when the host does more than to put whole rows somewhere. It is asked with one number for each row.
        """
        if self.converter is None:
            return {self.target: [RowRun(self.sources[0], 0, _num_rows(shapes[self.sources[0]]))]}
        ends = list(itertools.accumulate(_num_rows(shapes[name]) for name in self.sources))
        starts = dict(zip(self.sources, (0, *ends[:-1]), strict=True))
        numbered = {
            name: torch.arange(start, start + _num_rows(shapes[name])).view(*shapes[name][:-1], 1)
            for name, start in starts.items()
        }
        try:
            made = self.make(numbered.__getitem__, module, self.target)
        except ModelError:
            return None
        plan, used = {}, []
        for entry, places in made.items():
            wanted = entries[entry].shape or (1,)
            columns = {shapes[name][-1] for name in self.sources}
            if places.shape != (*wanted[:-1], 1) or columns != {wanted[-1]}:
                return None
            plan[entry] = _runs(places.flatten().tolist(), starts)
            used += places.flatten().tolist()
        return plan if sorted(used) == list(range(ends[-1])) else None

    def make(self, tensors: Callable[[str], torch.Tensor], module: nn.Module, source: str) -> dict[str, torch.Tensor]:
        """Return the entries made of the sources. Raises ModelError when the host cannot make them."""
        if self.converter is None:
            return {self.target: tensors(self.sources[0])}
        converter = copy.deepcopy(self.converter)
        for name, pattern in zip(self.sources, self.patterns, strict=True):
            converter.add_tensor(self.target, name, pattern, tensors(name))
        try:
            made = converter.convert(self.target, model=module, config=module.config)
        except (RuntimeError, ValueError, KeyError, IndexError, TypeError) as error:
            raise ModelError(source, f"{self.target} cannot be made of {self.sources[:4]}…: {error}") from error
        return {name: value[0] if isinstance(value, list) else value for name, value in made.items()}


def _num_rows(shape: tuple[int, ...]) -> int:
    return math.prod(shape[:-1])


def _runs(places: list[int], starts: Mapping[str, int]) -> list[RowRun]:
    """Join numbered rows that follow each other in one source."""
    names = list(starts)
    firsts = list(starts.values())
    runs: list[RowRun] = []
    for place in places:
        name = names[bisect.bisect_right(firsts, place) - 1]
        row = place - starts[name]
        if runs and runs[-1].source == name and runs[-1].end == row:
            runs[-1] = runs[-1]._replace(end=row + 1)
        else:
            runs.append(RowRun(name, row, row + 1))
    return runs


def stored_entries(module: nn.Module) -> dict[str, torch.Tensor]:
    """Return what files must hold: parameters and stored buffers, an entry that several names share once."""
    entries: dict[str, torch.Tensor] = {}
    seen: set[int] = set()
    for name, tensor in module.state_dict(keep_vars=True).items():
        if id(tensor) not in seen:
            seen.add(id(tensor))
            entries[name] = tensor
    return entries


def match(module: nn.Module, names: Iterable[str], source: str) -> list[Recipe]:
    """Return the recipes that the tensors with these names take part in.

    Raises ModelError, naming it, for a tensor that the model does not have.
    """
    mapping = get_model_conversion_mapping(cast(Any, module))
    renamings = [item for item in mapping if isinstance(item, WeightRenaming)]
    converters = [item for item in mapping if isinstance(item, WeightConverter)]
    by_pattern = {pattern: item for item in converters for pattern in item.source_patterns}
    known = module.state_dict(keep_vars=True)
    canonical = {id(tensor): name for name, tensor in stored_entries(module).items()}
    recipes: dict[str, Recipe] = {}
    prefix = str(module.base_model_prefix)
    for name in sorted(names, key=dot_natural_key):
        target, pattern = rename_source_key(name, renamings, converters, prefix, known)
        if target not in known and name in known:
            target, pattern = rename_source_key(name, [], [], prefix, known)
        if target not in known:
            raise ModelError(source, f"its files hold {name}, which {type(module).__name__} does not have")
        target = canonical[id(known[target])]
        recipe = recipes.setdefault(target, Recipe(target))
        recipe.sources.append(name)
        if pattern is None:
            if len(recipe.sources) > 1:
                raise ModelError(source, f"its files hold {target} more than once: {recipe.sources}")
        else:
            recipe.converter = by_pattern[pattern]
            recipe.patterns.append(pattern)
    return list(recipes.values())


def check_shapes(
    module: nn.Module, recipes: Iterable[Recipe], shapes: Mapping[str, tuple[int, ...]], source: str
) -> dict[str, Recipe]:
    """Return entry → its recipe, after making every entry of tensors without numbers.

    Raises ModelError for an entry that nothing makes, that two recipes make, or that gets another shape.
    """
    entries = stored_entries(module)
    made: dict[str, Recipe] = {}
    for recipe in recipes:
        results = recipe.make(lambda name: torch.empty(shapes[name], device="meta"), module, source)
        for name, tensor in results.items():
            if name not in entries:
                raise ModelError(source, f"its files make {name}, which {type(module).__name__} does not have")
            if name in made:
                raise ModelError(source, f"its files hold {name} more than once")
            if tensor.shape != (entries[name].shape or (1,)):
                found, needed = tuple(tensor.shape), tuple(entries[name].shape)
                raise ModelError(source, f"{name} has the shape {found} in its files and {needed} in the model")
            made[name] = recipe
    if missing := [name for name in entries if name not in made]:
        raise ModelError(source, f"its files lack {len(missing)} weights of the model: {', '.join(missing[:4])}")
    return made
