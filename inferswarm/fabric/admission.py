"""What a request must fulfill before any work is done for it."""

from __future__ import annotations

from collections.abc import Sequence

from inferswarm.backends.partition import Partition, first_difference
from inferswarm.errors import AdmissionError
from inferswarm.fabric import messages as m
from inferswarm.fabric.active import ActiveSession
from inferswarm.fabric.ledger import SessionRow
from inferswarm.fabric.running import RunningPlan
from inferswarm.fabric.text_side import TextSide
from inferswarm.planner.plan import ExecutionPlan
from inferswarm.strategies.sampling import Sampling, check_stop_strings


def prompt_ids(question: m.Generate, text: TextSide | None) -> tuple[int, ...]:
    """Return the token ids that a request asks with. Raises AdmissionError unless it has exactly one usable form."""
    given = [question.text is not None, bool(question.chat), bool(question.token_ids)]
    if sum(given) > 1:
        raise AdmissionError("prompt", "several forms of it", "one of text, chat and token ids")
    if not any(given):
        raise AdmissionError("prompt", "nothing", "a text, a conversation or token ids")
    if question.token_ids:
        return question.token_ids
    if text is None:
        raise AdmissionError("prompt", "text", "token ids: this service was realized without a tokenizer")
    return text.encode_chat(question.chat) if question.chat else text.encode(question.text or "")


def check_size(running: RunningPlan, prompt: tuple[int, ...], max_tokens: int, num_active: int) -> None:
    """Raise AdmissionError for a session that this plan has no room for, or none now."""
    plan = running.plan
    if not prompt:
        raise AdmissionError("prompt", "no tokens", "at least one token")
    if max_tokens < 1:
        raise AdmissionError("max_tokens", max_tokens, "at least 1")
    if len(prompt) + max_tokens > plan.max_positions:
        raise AdmissionError(
            "prompt tokens + max_tokens",
            f"{len(prompt)} + {max_tokens} = {len(prompt) + max_tokens}",
            f"at most {plan.max_positions}, which this plan reserved memory for",
        )
    if num_active >= plan.sessions:
        raise AdmissionError("sessions", num_active + 1, f"at most {plan.sessions} at once on this plan")


def check_room(plan: ExecutionPlan, sessions: Sequence[ActiveSession]) -> None:
    """Raise AdmissionError when sessions that are open have no room in a plan that is to go on with them."""
    if len(sessions) > plan.sessions:
        raise AdmissionError("open sessions", len(sessions), f"at most {plan.sessions} at once on that plan")
    for active in sessions:
        if active.session_positions > plan.max_positions:
            limit = f"at most {plan.max_positions}, which that plan reserves memory for"
            raise AdmissionError(f"positions of session {active.row.number}", active.session_positions, limit)


def check_tokens(running: RunningPlan, prompt: tuple[int, ...], sampling: Sampling) -> None:
    """Raise AdmissionError for token ids that the model's vocabulary does not have."""
    size = running.vocabulary_size
    biased = tuple(token for token, _ in sampling.logit_bias)
    for field, ids in (("prompt", prompt), ("logit_bias", biased)):
        wrong = next((token for token in ids if not 0 <= token < size), None)
        if wrong is not None:
            raise AdmissionError(field, f"token id {wrong}", f"ids below {size}, the size of the vocabulary")


def check_stop(stop: tuple[str, ...], text: TextSide | None) -> None:
    """Raise AdmissionError for stop strings that cannot be looked for."""
    check_stop_strings(stop)
    if stop and text is None:
        raise AdmissionError("stop", stop, "no stop strings: this service was realized without a tokenizer")


def check_replay(running: RunningPlan, record: SessionRow, wanted: Partition, recorded: Partition) -> None:
    """Raise AdmissionError for a recorded session that the running stages cannot compute again, naming why.

    `wanted` is the partition that they would compute it with. A session that was recorded without its model's digest
    is not refused for its model: where that is another one, the first position will differ.
    """
    if not record.prompt:
        raise AdmissionError("session", record.number, "one whose prompt is still in the ledger")
    if record.model and record.model != running.model:
        raise AdmissionError(
            "model", running.model or "one of which no bytes were read", f"{record.model}, as recorded"
        )
    if (difference := first_difference(wanted, recorded)) is not None:
        field, found, needed = difference
        raise AdmissionError(f"partition {field}", found, f"the recorded one: {needed}")


def check_resumption(running: RunningPlan, row: SessionRow, session_positions: int) -> None:
    """Raise AdmissionError for a session of a lost epoch that this plan cannot go on with."""
    plan = running.plan
    if session_positions > plan.max_positions:
        limit = f"at most {plan.max_positions}, which the plan in force reserved memory for"
        raise AdmissionError("positions of the session", session_positions, limit)
    if row.model and row.model != running.model:
        raise AdmissionError("model", running.model or "one of which no bytes were read", f"{row.model}, as opened")
