"""How the next token is chosen from a row of logits: the settings, as data. No numbers are drawn here.

`Sampling` travels with a session: it is asked for by the client, recorded by the Coordinator and obeyed by the
participant that holds the head. `choose_sampling` makes one from plain arguments as a person writes them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypedDict, Unpack

import msgspec

from inferswarm.documents import Digits, Document
from inferswarm.errors import AdmissionError, SpecError

SEED_END = 2**64
MAX_LOGPROBS = 20
MAX_BIAS = 100.0
MAX_PENALTY = 2.0
MAX_STOP_STRINGS = 16
MAX_STOP_CHARACTERS = 1024
"""Of one stop string: what watches for them keeps a state for each character."""


class Sampling(Document, frozen=True, kw_only=True):
    """Settings of one session. The default is greedy: the most likely token, the lowest id of equals.

    What is applied to a row, and in which order, is stated in `inferswarm.backends.sampling`. Raises ValueError for
    values outside the ranges below.
    """

    temperature: float = 0.0
    """Logits are divided by it; 0 is greedy."""
    top_k: int = 0
    """Only the k most likely tokens; 0: all."""
    top_p: float = 1.0
    """Only the most likely tokens that together reach this probability, 0 < p <= 1; 1: all."""
    min_p: float = 0.0
    """Only tokens of at least this fraction of the most likely one's probability, 0 <= p <= 1; 0: all."""
    repetition_penalty: float = 1.0
    """Logits of tokens in the prompt or the answer are divided by it when positive, multiplied when negative."""
    presence_penalty: float = 0.0
    """Taken from the logit of each token that was generated, -2 to 2."""
    frequency_penalty: float = 0.0
    """Taken from a token's logit once for each time that it was generated, -2 to 2."""
    logit_bias: tuple[tuple[int, float], ...] = ()
    """(token id, what is added to its logit, -100 to 100), each id once."""
    seed: Digits | None = None
    """A u64 in decimal digits. None: not chosen yet; needed only where something is drawn."""
    logprobs: int | None = None
    """How many of the most likely tokens are reported with each token, 0 to 20; None: nothing is."""

    def __post_init__(self) -> None:
        """Refuse what is out of range, naming the field."""
        super().__post_init__()
        self._check(self.temperature >= 0, "temperature", "at least 0 (0 is greedy)")
        self._check(self.top_k >= 0, "top_k", "at least 0 (0 is off)")
        self._check(0 < self.top_p <= 1, "top_p", "above 0 and at most 1")
        self._check(0 <= self.min_p <= 1, "min_p", "0 to 1")
        self._check(self.repetition_penalty > 0, "repetition_penalty", "above 0")
        for name in ("presence_penalty", "frequency_penalty"):
            self._check(abs(getattr(self, name)) <= MAX_PENALTY, name, f"-{MAX_PENALTY:g} to {MAX_PENALTY:g}")
        ids = [token for token, _ in self.logit_bias]
        self._check(len(set(ids)) == len(ids), "logit_bias", "each token id once")
        self._check(all(token >= 0 for token in ids), "logit_bias", "token ids of at least 0")
        within = all(abs(value) <= MAX_BIAS for _, value in self.logit_bias)
        self._check(within, "logit_bias", f"values of -{MAX_BIAS:g} to {MAX_BIAS:g}")
        seeded = self.seed is None or _is_u64(self.seed)
        self._check(seeded, "seed", "a whole number of 0 to 2^64 - 1 in decimal digits")
        self._check(
            self.logprobs is None or 0 <= self.logprobs <= MAX_LOGPROBS, "logprobs", f"None, or 0 to {MAX_LOGPROBS}"
        )

    def _check(self, holds: bool, field: str, needed: str) -> None:
        if not holds:
            raise ValueError(f"{field}: found {getattr(self, field)!r}, needed {needed}")

    @property
    def is_drawn(self) -> bool:
        """Whether tokens are drawn by chance, so that a seed is needed."""
        return self.temperature > 0

    @property
    def is_penalized(self) -> bool:
        """Whether earlier tokens count, so that the sampler needs the session's history."""
        return self.repetition_penalty != 1 or self.presence_penalty != 0 or self.frequency_penalty != 0

    @property
    def seed_number(self) -> int:
        """The seed as a number. Raises SpecError when none was chosen."""
        if self.seed is None:
            raise SpecError("seed", None, "a seed, because tokens are drawn at this temperature")
        return int(self.seed)

    def with_seed(self, seed: int) -> Sampling:
        """Return the same settings with another seed."""
        return msgspec.structs.replace(self, seed=str(seed))


def _is_u64(digits: str) -> bool:
    """Return whether a text is a u64 as it is written everywhere. Its length is looked at before its value."""
    if not (len(digits) <= len(str(SEED_END)) and digits.isascii() and digits.isdecimal()):
        return False
    return int(digits) < SEED_END and str(int(digits)) == digits


GREEDY_SAMPLING = Sampling()


class SamplingArguments(TypedDict, total=False):
    """`Sampling` as keyword arguments of a call: the same names, a seed as a number, biases as a mapping."""

    temperature: float
    top_k: int
    top_p: float
    min_p: float
    repetition_penalty: float
    presence_penalty: float
    frequency_penalty: float
    logit_bias: Mapping[int, float] | None
    seed: int | None
    logprobs: int | None


def choose_sampling(**arguments: Unpack[SamplingArguments]) -> Sampling:
    """Return the settings that the arguments describe. Raises SpecError for one that is unknown or out of range."""
    fields: dict[str, object] = dict(arguments)
    unknown = sorted(set(fields) - SamplingArguments.__optional_keys__)
    if unknown:
        raise SpecError("sampling", unknown, f"some of {sorted(SamplingArguments.__optional_keys__)}")
    bias, seed = fields.pop("logit_bias", None), fields.pop("seed", None)
    if bias is not None and not isinstance(bias, Mapping):
        raise SpecError("logit_bias", bias, "a mapping of token ids to what is added to their logits")
    if seed is not None and (isinstance(seed, bool) or not isinstance(seed, int)):
        raise SpecError("seed", seed, "a whole number of 0 to 2^64 - 1")
    if bias and not all(isinstance(token, int) for token in bias):
        raise SpecError("logit_bias", list(bias), "whole numbers as token ids")
    fields["logit_bias"] = tuple(sorted(bias.items())) if bias else ()
    fields["seed"] = None if seed is None else str(seed)
    try:
        return msgspec.convert(fields, Sampling, strict=True)
    except (msgspec.ValidationError, ValueError, TypeError) as error:
        raise SpecError("sampling", str(error), "settings within their ranges") from error


def check_stop_strings(stop: tuple[str, ...]) -> None:
    """Raise AdmissionError for more stop strings than are watched for, and for one that is empty or too long."""
    if len(stop) > MAX_STOP_STRINGS:
        raise AdmissionError("stop", f"{len(stop)} stop strings", f"at most {MAX_STOP_STRINGS}")
    for index, text in enumerate(stop):
        if not text:
            raise AdmissionError(f"stop[{index}]", text, "a text that is not empty")
        if len(text) > MAX_STOP_CHARACTERS:
            raise AdmissionError(f"stop[{index}]", f"{len(text):,} characters", f"at most {MAX_STOP_CHARACTERS:,}")
