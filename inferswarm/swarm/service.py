"""A realized plan that answers prompts, and what it reports about its answers."""

from __future__ import annotations

import contextlib
import html
import itertools
import operator
import statistics
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from types import TracebackType
from typing import NamedTuple, Unpack

import msgspec

from inferswarm.backends.base import LogProbabilities
from inferswarm.backends.partition import Partition
from inferswarm.documents import read_document
from inferswarm.errors import FabricError, SpecError
from inferswarm.fabric import messages as m
from inferswarm.fabric.async_client import AsyncClient
from inferswarm.fabric.client import Client
from inferswarm.fabric.expecting import expect
from inferswarm.fabric.messages.client import MAX_COUNT
from inferswarm.planner.plan import ExecutionPlan, Placement
from inferswarm.strategies.sampling import SamplingArguments, choose_sampling
from inferswarm.units import format_bytes, format_seconds

DEFAULT_MAX_TOKENS = 64


class NodeMemory(NamedTuple):
    """Memory of one Node's processes after its work, in bytes; see `messages.NodeReport` for each field."""

    node_name: str
    report: m.NodeReport


class Generation(NamedTuple):
    """One finished answer with the record of how it was computed."""

    text: str
    record: m.SessionRecord
    reports: tuple[m.SessionReport, ...]
    finish_reason: str

    @property
    def session(self) -> int:
        """The session's number in the ledger."""
        return self.record.session

    @property
    def tokens(self) -> tuple[int, ...]:
        """The committed token ids."""
        return self.record.tokens

    @property
    def seed(self) -> int | None:
        """The seed that the tokens were drawn with; None when nothing was drawn by chance."""
        sampling = self.record.sampling
        return sampling.seed_number if sampling.is_drawn else None

    @property
    def logprobs(self) -> tuple[LogProbabilities, ...] | None:
        """For each token (id, log-probability) of itself, then of the most likely ones; None when not asked for."""
        return self.record.logprobs

    @property
    def matched_stop(self) -> str | None:
        """The stop string that ended the answer, if one did."""
        return self.record.matched_stop

    @property
    def ttft_seconds(self) -> float:
        """Seconds from the request to the first committed token."""
        return self.record.commit_seconds[0]

    @property
    def inter_token_seconds(self) -> tuple[float, ...]:
        """Raw seconds between commits, one fewer than tokens."""
        times = self.record.commit_seconds
        return tuple(later - earlier for earlier, later in itertools.pairwise(times))

    @property
    def tokens_per_second(self) -> float | None:
        """Decode rate after the first token; None for a single token."""
        times = self.record.commit_seconds
        return None if len(times) < 2 else (len(times) - 1) / (times[-1] - times[0])

    @property
    def partition(self) -> Partition:
        """How it was computed. Raises DocumentError when the ledger's record is damaged."""
        return read_document(Partition, self.record.partition, f"partition of session {self.session}")

    @property
    def expected_positions(self) -> int:
        """Positions that each stage must have computed: prompt + generated − 1.

        Stages may have computed up to the run-ahead window more of an answer that a stop string ended.
        """
        return len(self.record.prompt_ids) + len(self.tokens) - 1

    @property
    def hop_seconds(self) -> tuple[float, ...]:
        """Raw software seconds of single-position hops between stages (prompt chunks left out by their count)."""
        chunks = sum(1 for step in self.partition.steps if step.start < len(self.record.prompt_ids))
        samples: list[float] = []
        for index, report in enumerate(self.reports):
            samples += report.hop_seconds[chunks if index else 0 :]
        return tuple(samples)

    @property
    def bytes_per_token(self) -> float:
        """Bytes that all stages put on links for this session, frames included, for each generated token."""
        return sum(report.bytes_sent for report in self.reports) / max(1, len(self.tokens))

    def __repr__(self) -> str:
        """One honest line."""
        rate = self.tokens_per_second
        speed = "" if rate is None else f", {rate:.1f} tok/s"
        ended = self.finish_reason if self.matched_stop is None else f"{self.finish_reason} at {self.matched_stop!r}"
        seed = "" if self.seed is None else f", seed {self.seed}"
        return (
            f"Generation(session {self.session}: {len(self.tokens)} tokens, {ended}, "
            f"TTFT {format_seconds(self.ttft_seconds)}{speed}{seed})"
        )

    def __str__(self) -> str:
        """The answer's text."""
        return self.text

    def _repr_html_(self) -> str:
        """Static HTML for notebooks."""
        return f"<pre style='white-space:pre-wrap'>{html.escape(self.text)}</pre><p>{html.escape(repr(self))}</p>"


class Service:
    """A realized plan. Closing it stops its stages; the swarm goes on."""

    def __init__(
        self,
        client: Client,
        plan: ExecutionPlan,
        realized: m.Realized,
        coordinator_pid: int,
        before_close: Callable[[], object] = lambda: None,
    ) -> None:
        """Made by `Swarm.realize`; `before_close` is called while the stages can still say what they saw."""
        self._client = client
        self.plan = plan
        self.realized = realized
        self.coordinator_pid = coordinator_pid
        self.last: Generation | None = None
        self._open = True
        self._before_close = before_close

    @property
    def epoch(self) -> int:
        """The epoch that this service was activated as, or that its swarm changed to last."""
        return self.realized.epoch

    @property
    def is_open(self) -> bool:
        """Whether it was not closed."""
        return self._open

    def moved(self, plan: ExecutionPlan, realized: m.Realized) -> None:
        """Hear that another plan serves: what is open goes on, and what comes next is asked of its epoch."""
        self.plan, self.realized = plan, realized

    def stream(
        self,
        prompt: str | Sequence[int] | None = None,
        *,
        chat: Sequence[tuple[str, str] | Mapping[str, str]] = (),
        max_tokens: int = DEFAULT_MAX_TOKENS,
        ignore_stop: bool = False,
        stop: Sequence[str] = (),
        **sampling: Unpack[SamplingArguments],
    ) -> Iterator[str]:
        """Yield the answer's text as it is committed; `last` holds the Generation afterwards.

        `prompt` is raw text or token ids; `chat` is (role, content) pairs or dicts of the two. `ignore_stop` goes on
        past the model's own end tokens. `stop` are texts that end the answer and are no part of it. `sampling` are
        the fields of `strategies.sampling.Sampling` as keyword arguments (temperature, top_k, top_p, min_p,
        repetition_penalty, presence_penalty, frequency_penalty, logit_bias as a mapping, seed as a number, logprobs);
        without any, the most likely token is taken. A seed that is needed and not given is chosen and recorded.
        Raises SpecError or AdmissionError before any work, StageLost or another FabricError when the answer cannot
        go on.
        """
        for token in self.stream_tokens(
            prompt, chat=chat, max_tokens=max_tokens, ignore_stop=ignore_stop, stop=stop, **sampling
        ):
            if token.text:
                yield token.text

    def stream_tokens(
        self,
        prompt: str | Sequence[int] | None = None,
        *,
        chat: Sequence[tuple[str, str] | Mapping[str, str]] = (),
        max_tokens: int = DEFAULT_MAX_TOKENS,
        ignore_stop: bool = False,
        stop: Sequence[str] = (),
        **sampling: Unpack[SamplingArguments],
    ) -> Iterator[m.TokenCommitted]:
        """Yield each committed token with its session, position and text; otherwise as `stream`."""
        question = m.Generate(
            text=prompt if isinstance(prompt, str) else None,
            token_ids=_token_ids(prompt),
            chat=tuple(_chat_message(message) for message in chat),
            max_tokens=_whole(max_tokens, "max_tokens"),
            ignore_stop=ignore_stop,
            epoch=self.epoch,
            sampling=choose_sampling(**sampling),
            stop=_stop_strings(stop),
        )
        self.last = None
        answer = yield from _tokens(self._client, question)
        self.last = answer

    def generate(
        self,
        prompt: str | Sequence[int] | None = None,
        *,
        chat: Sequence[tuple[str, str] | Mapping[str, str]] = (),
        max_tokens: int = DEFAULT_MAX_TOKENS,
        ignore_stop: bool = False,
        stop: Sequence[str] = (),
        **sampling: Unpack[SamplingArguments],
    ) -> Generation:
        """Answer a prompt and return the whole answer; arguments and errors as `stream`."""
        for _ in self.stream(
            prompt, chat=chat, max_tokens=max_tokens, ignore_stop=ignore_stop, stop=stop, **sampling
        ):
            pass
        return self._finished()

    def replay(self, session: int | None = None, *, max_tokens: int | None = None) -> Generation:
        """Compute a recorded session again, with its recorded partition, and go on to its end.

        `session` is a number of the ledger, by default the last session of this service. Every recorded position
        must come out bit for bit. Raises ReplayDiverged otherwise, AdmissionError when this plan cannot compute the
        recorded partition, or its stages hold another model.
        """
        number = session if session is not None else (None if self.last is None else self.last.session)
        if number is None:
            raise SpecError("session", None, "the number of a session to replay")
        for _ in self.replay_tokens(number, max_tokens=max_tokens):
            pass
        return self._finished()

    def replay_tokens(self, session: int, *, max_tokens: int | None = None) -> Iterator[m.TokenCommitted]:
        """Replay and yield each token as it is committed again; otherwise as `replay`."""
        answer = yield from _tokens(self._client, m.Replay(session=session, max_tokens=max_tokens, epoch=self.epoch))
        self.last = answer

    def _finished(self) -> Generation:
        if self.last is None:
            raise FabricError("the answer ended without a record")
        return self.last

    def record(self, session: int) -> m.SessionRecord:
        """Return what the ledger holds of a session, also of one that failed. Raises SpecError when unknown."""
        return expect(m.SessionRecord, self._client.ask(m.ShowSession(session=session)), "a session's record")

    def stage_reports(self) -> tuple[m.StageReport, ...]:
        """Return every stage's own counters, in route order."""
        answer = self._client.ask(m.StageReports(epoch=self.epoch))
        if not isinstance(answer, m.StageReportList):
            raise FabricError(f"expected stage reports, got {type(answer).__name__}")
        return answer.reports

    def connect(self) -> AsyncClient:
        """Return a client of the same Coordinator for an event loop, such as an HTTP server's."""
        return AsyncClient(self._client.credentials)

    def report(self) -> str:
        """Return a few lines for people: the last answer, and each stage."""
        lines = [repr(self), "" if self.last is None else f"  last answer: {self.last!r}"]
        for report in self.stage_reports():
            lines.append(
                f"  {report.participant}: {report.positions} positions in {report.steps} steps, "
                f"{format_bytes(report.bytes_sent)} sent, peak {format_bytes(report.resident_peak_bytes)} resident"
            )
        if self.last is not None and self.last.hop_seconds:
            hop = statistics.median(self.last.hop_seconds)
            lines.append(f"  software time of a hop: {format_seconds(hop)} (median)")
        return "\n".join(line for line in lines if line)

    def close(self) -> None:
        """Take authority from the epoch and stop its stages. Does nothing the second time."""
        if self._open:
            self._open = False
            with contextlib.suppress(FabricError):  # what is lost can say nothing any more
                self._before_close()
            self._client.ask(m.Retire(epoch=self.epoch))

    def __enter__(self) -> Service:
        """Return the service."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close the service."""
        self.close()

    def __repr__(self) -> str:
        """One honest line."""
        nodes = " → ".join(_where(placement) for placement in self.plan.placements)
        state = "open" if self._open else "closed"
        return f"Service(epoch {self.epoch}, {self.plan.representation} over {nodes}, {state})"


def _where(placement: Placement) -> str:
    """Return a participant's Node, in a plan that mixes with what it computes in there."""
    own = placement.representation
    return placement.node_name if isinstance(own, msgspec.UnsetType) else f"{placement.node_name} ({own})"


def _whole(value: object, field: str) -> int:
    """Return a whole number that messages can carry. Raises SpecError, naming the field, for anything else."""
    try:
        number = -1 if isinstance(value, bool) else operator.index(value)  # type: ignore[arg-type]
    except TypeError:
        number = -1
    if not 0 <= number <= MAX_COUNT:
        raise SpecError(field, value, f"a whole number from 0 to {MAX_COUNT}")
    return number


def _token_ids(prompt: str | Sequence[int] | None) -> tuple[int, ...]:
    """Return a prompt's token ids, none for a text. Raises SpecError for what is no sequence of token ids."""
    if prompt is None or isinstance(prompt, str):
        return ()
    if not isinstance(prompt, Iterable):
        raise SpecError("prompt", prompt, "a text or a sequence of token ids")
    return tuple(_whole(token, f"prompt[{index}]") for index, token in enumerate(prompt))


def _chat_message(message: object) -> m.ChatMessage:
    """Read one message: a (role, content) pair, or a mapping with exactly these two keys."""
    if isinstance(message, Mapping) and set(message) == {"role", "content"}:
        message = (message["role"], message["content"])
    if isinstance(message, tuple | list) and len(message) == 2 and all(isinstance(part, str) for part in message):
        return m.ChatMessage(*message)
    raise SpecError("chat message", message, "a (role, content) pair of texts, or a dict with these two keys")


def _stop_strings(stop: Sequence[str]) -> tuple[str, ...]:
    """Read stop strings; one text by itself would be taken for its characters."""
    if isinstance(stop, str) or not all(isinstance(text, str) for text in stop):
        raise SpecError("stop", stop, "a list of texts")
    return tuple(stop)


def _tokens(client: Client, question: m.Generate | m.Replay) -> Generator[m.TokenCommitted, None, Generation]:
    events = client.events(question)
    while True:
        try:
            event = next(events)
        except StopIteration as end:
            answer = expect(m.Generated, end.value, "an answer")
            break
        if isinstance(event, m.TokenCommitted):
            yield event
    return Generation(answer.text, answer.record, answer.reports, answer.finish_reason)
