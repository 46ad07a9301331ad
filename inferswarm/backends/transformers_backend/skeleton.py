"""Building what the host library computes with, without weights: configuration, module tree, blocks, buffers.

Nothing but classes of the installed library is built: code that comes with a model is never run.
"""

from __future__ import annotations

import inspect
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, cast

import torch
import transformers
from huggingface_hub.errors import StrictDataclassError
from torch import nn
from transformers import AutoModelForCausalLM, GenerationConfig, PreTrainedConfig
from transformers.models.auto.configuration_auto import CONFIG_MAPPING
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING

from inferswarm.errors import ModelError, UnsupportedModel

ATTENTION: Final = "eager"
"""Attention as plain operators: its bits do not depend on which fused kernel a library picks."""
CACHE_ARGUMENTS: Final = ("cache", "past_key_values")
_REFUSALS: Final = (TypeError, ValueError, KeyError, AttributeError, StrictDataclassError)
"""How the host refuses a configuration."""
_POSITION_LIMITS: Final = ("max_position_embeddings", "max_seq_len", "seq_length")
_OLDER_FIELDS: Final = frozenset(
    {"rope_theta", "rope_scaling", "partial_rotary_factor", "rotary_pct", "rotary_emb_base", "torch_dtype"}
    | {"rope_local_base_freq", "model_type", "_attn_implementation"}
)
"""Names that the host still reads, under newer ones."""
_LENGTH_DEPENDENT: Final = frozenset({"dynamic", "longrope"})
"""Scalings whose frequencies the host changes with the length so far: a prompt in chunks would keep keys of both."""


@dataclass(frozen=True)
class Skeleton:
    """One model of the host on torch's meta device: shapes, no numbers."""

    module: nn.Module
    blocks: nn.ModuleList
    blocks_path: str
    """Where the list of blocks is in the module tree."""
    cache_argument: str
    arguments: frozenset[str]
    """Names of the arguments that a forward pass takes."""

    @property
    def base(self) -> nn.Module:
        """The module without the map to the vocabulary: the part of the whole that holds the blocks."""
        return cast(nn.Module, getattr(self.module, self.blocks_path.partition(".")[0]))

    def block_path(self, index: int) -> str:
        """Return where a block is in the module tree, with the dot that ends it."""
        return f"{self.blocks_path}.{index}."


def versions() -> str:
    """Return the version of the host library, for records."""
    return f"transformers {transformers.__version__}"


def read_configuration(values: Mapping[str, Any], source: str) -> Any:
    """Return the host's configuration made of the values of a model's `config.json`.

    Raises UnsupportedModel, naming the field, for what this backend does not do: code that comes with the model,
    quantized weights, encoder-decoders, architectures that are no causal language models of the host's, rotations
    whose frequencies depend on what was computed before.
    """
    kind = values.get("model_type")
    if not isinstance(kind, str) or kind not in CONFIG_MAPPING:
        if "auto_map" in values:
            field, found = "auto_map", values["auto_map"]
            raise UnsupportedModel(source, field, found, "models that need no code of their own; none is ever run")
        raise UnsupportedModel(source, "model_type", kind, f"the architectures of {versions()}")
    if values.get("quantization_config") is not None:
        raise UnsupportedModel(source, "quantization_config", values["quantization_config"], "weights as numbers")
    if values.get("is_encoder_decoder"):
        raise UnsupportedModel(source, "is_encoder_decoder", True, "decoders alone")
    try:
        configuration = CONFIG_MAPPING[kind].from_dict(_with_special_floats(dict(values)))
    except _REFUSALS as error:
        raise ModelError(source, f"{versions()} cannot read its configuration: {error}") from error
    if configuration.is_encoder_decoder:
        raise UnsupportedModel(source, "is_encoder_decoder", True, "decoders alone")
    if type(configuration) not in MODEL_FOR_CAUSAL_LM_MAPPING:
        raise UnsupportedModel(source, "model_type", kind, "causal language models")
    _check_architecture(configuration, source)
    for rope_type in sorted(_LENGTH_DEPENDENT & _rope_types(configuration)):
        raise UnsupportedModel(source, "rope_type", rope_type, "frequencies that are the same in every step")
    return configuration


def configuration_text(values: Mapping[str, Any]) -> str:
    """Return a configuration's values as JSON text that `parse_configuration` reads again."""
    return json.dumps(dict(values), sort_keys=True, separators=(",", ":"))


def parse_configuration(text: str, source: str) -> Any:
    """Return the host's configuration from `configuration_text`. Raises as `read_configuration`."""
    return read_configuration(json.loads(text), source)


def build_skeleton(configuration: Any, dtype: torch.dtype, source: str) -> Skeleton:
    """Build the module tree on the meta device: no weight is allocated.

    Raises UnsupportedModel when the host cannot build it, has no list of blocks of the stated length, or does not
    take a cache of keys and values.
    """
    configuration._experts_implementation = "eager"
    try:
        with torch.device("meta"):
            automatic = cast(Any, AutoModelForCausalLM)
            module = automatic.from_config(configuration, attn_implementation=ATTENTION, dtype=dtype)
    except (*_REFUSALS, RuntimeError, ImportError) as error:
        raise UnsupportedModel(
            source, "architecture", configuration.model_type, f"one that builds ({error})"
        ) from error
    module.eval().requires_grad_(False)
    arguments = frozenset(inspect.signature(module.forward).parameters)
    cache_argument = next((name for name in CACHE_ARGUMENTS if name in arguments), None)
    if cache_argument is None:
        raise UnsupportedModel(source, "architecture", type(module).__name__, "models that take a cache")
    for name, part in module.named_modules():
        if getattr(part, "is_causal", True) is False:
            raise UnsupportedModel(source, "is_causal", f"False in {name}", "attention to earlier positions alone")
    path, blocks = _find_blocks(module, configuration, source)
    return Skeleton(module, blocks, path, cache_argument, arguments)


def make_buffers(module: nn.Module, source: str) -> None:
    """Compute, on the CPU, every buffer of `module` that no file holds (tables of frequencies and the like).

    The host's own initialization computes them, twice over memory that differed before: what comes out differently
    was not computed, and is refused by name with UnsupportedModel.
    """
    for path, part in module.named_modules():
        names = [
            name
            for name, buffer in part._buffers.items()
            if buffer is not None and buffer.is_meta and name in part._non_persistent_buffers_set
        ]
        if not names:
            continue
        results = [_initialized(module, part, names, value) for value in (0, 1)]
        for name, first, second in zip(names, *results, strict=True):
            if first.is_meta or not torch.equal(first, second):
                raise UnsupportedModel(source, "buffer", f"{path}.{name}", "buffers that the host can compute")


def _initialized(root: nn.Module, part: nn.Module, names: list[str], value: int) -> list[torch.Tensor]:
    for name in names:
        part._buffers[name] = torch.full_like(cast(torch.Tensor, part._buffers[name]), value, device="cpu")
    with torch.no_grad():
        cast(Any, root)._init_weights(part)
    return [cast(torch.Tensor, part._buffers[name]) for name in names]


def context_positions(configuration: Any, source: str) -> int:
    """Return how many positions a session may have. Raises UnsupportedModel when the configuration does not say."""
    for name in _POSITION_LIMITS:
        value = getattr(configuration, name, None)
        if isinstance(value, int) and value > 0:
            return value
    raise UnsupportedModel(source, "max_position_embeddings", None, "a configuration that states its context")


def _with_special_floats(value: Any) -> Any:
    """Undo how the host writes what JSON has no numbers for: `{"__float__": "Infinity"}`."""
    if isinstance(value, Mapping):
        if value.keys() == {"__float__"}:
            return float(value["__float__"])
        return {name: _with_special_floats(item) for name, item in value.items()}
    return [_with_special_floats(item) for item in value] if isinstance(value, list) else value


def ignored_fields(values: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the fields of a `config.json` that the host's configuration class does not know.

    The host keeps them and computes as if they were not there. Fields without a value are not counted. Raises
    KeyError for an architecture that the host does not have.
    """
    kind = CONFIG_MAPPING[values["model_type"]]
    known = {*inspect.signature(kind).parameters, *kind.attribute_map, *PreTrainedConfig().to_dict()}
    generation = GenerationConfig()  # type: ignore[no-untyped-call]
    known |= {*vars(generation), *_OLDER_FIELDS, *_POSITION_LIMITS}
    return tuple(
        sorted(
            name
            for name, value in values.items()
            if value is not None and name not in known and not hasattr(kind, name)
        )
    )


def _check_architecture(configuration: Any, source: str) -> None:
    expected = MODEL_FOR_CAUSAL_LM_MAPPING[type(configuration)]
    classes = expected if isinstance(expected, tuple | list) else (expected,)
    names = {cast(type, item).__name__ for item in classes}
    stated = configuration.architectures or ()
    if stated and not names & set(stated):
        raise UnsupportedModel(source, "architectures", list(stated), ", ".join(sorted(names)))


def _rope_types(configuration: Any) -> set[str]:
    found: set[str] = set()
    todo = [getattr(configuration, "rope_parameters", None), getattr(configuration, "rope_scaling", None)]
    while todo:
        item = todo.pop()
        if isinstance(item, Mapping):
            found |= {str(item[name]) for name in ("rope_type", "type") if name in item}
            todo += item.values()
    return found


def _find_blocks(module: nn.Module, configuration: Any, source: str) -> tuple[str, nn.ModuleList]:
    """Return the one list of modules that is as long as the configuration says that there are blocks."""
    wanted = getattr(configuration, "num_hidden_layers", None)
    found = [
        (path, part)
        for path, part in module.named_modules()
        if isinstance(part, nn.ModuleList) and len(part) == wanted
    ]
    outermost = [(path, part) for path, part in found if not any(path.startswith(f"{other}.") for other, _ in found)]
    if len(outermost) != 1:
        paths = [path for path, _ in outermost]
        raise UnsupportedModel(source, "num_hidden_layers", wanted, f"exactly one list of blocks; found {paths}")
    return outermost[0]
