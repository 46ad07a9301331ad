"""Whether a record still holds: each fact that it depends on compared with what is true now, in three values.

`current`: everything that the record depends on is stated by it, known now, and equal. `stale`: something differs,
is too old, was taken by another protocol, or drifted too far while it was taken. `undetermined`: nothing differs, and
something cannot be compared, because the record does not state it or because it is unknown now. An unknown makes
nothing stale and nothing current.

The verdict is computed from the facts each time and kept nowhere: a resource that comes back as it was has its
records back. Time enters as `now_ns` only.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import Literal, NamedTuple

import msgspec

from inferswarm.documents import Digits, Document
from inferswarm.errors import SpecError
from inferswarm.evidence.dependencies import DEPENDENCIES, MetricDependencies, dependencies_of
from inferswarm.evidence.drift import DRIFT_KEY, unusable_drift
from inferswarm.evidence.facts import FactTable, SubjectFacts
from inferswarm.evidence.types import ContextItem, Described, Observation, QuestionKey, question_of

State = Literal["current", "stale", "undetermined"]


class Finding(Document, frozen=True, kw_only=True):
    """One reason why a record is not current; `stated` and `needed` are None where there is no value to show."""

    key: str
    stated: str | None
    needed: str | None
    detail: str
    differs: bool
    """Whether it makes the record stale; otherwise it cannot be compared."""


class Standing(NamedTuple):
    """Whether a record holds now, every reason against it, and the measurement that would clear them."""

    state: State
    findings: tuple[Finding, ...]
    remeasure: str
    """Empty when the record is current."""

    @property
    def reasons(self) -> tuple[str, ...]:
        """Return the findings for people."""
        return tuple(finding.detail for finding in self.findings)


class Doubt(NamedTuple):
    """A question whose records up to a moment are to be measured again, and why."""

    question: QuestionKey
    until_ns: int
    reason: str


class Currency(NamedTuple):
    """What records are held against: the facts in force, what is asked, and the present."""

    facts: FactTable
    now_ns: int
    asked: Mapping[str, str] = MappingProxyType({})
    declared: tuple[MetricDependencies, ...] = DEPENDENCIES
    undetermined_applies: bool = False
    """Whether a record may be used of which nothing is known to differ. It is never called current for that."""
    doubts: tuple[Doubt, ...] = ()
    """Records that count as stale although no fact differs: for whoever measures, not for whoever plans."""

    def standing(self, record: Described) -> Standing:
        """Return whether one record holds here and now."""
        dependencies = dependencies_of(record.metric, self.declared)
        if dependencies is None:
            detail = f"nobody declared what {record.metric} depends on"
            return _verdict([_unclear("metric", record.metric, None, detail)], f"declare what {record.metric} needs")
        findings = [*_age(record, dependencies, self.now_ns), *_protocol(record, dependencies), *_run(record)]
        findings += [*_doubted(record, self.doubts)]
        subject = self.facts.of(record.subject)
        if subject is None:
            detail = f"{record.subject} is not among the resources that are present"
            findings.append(_differs("subject", record.subject, None, detail))
        else:
            findings += _facts(record, dependencies, subject)
        findings += _asked(record, dependencies, self.asked)
        return _verdict(findings, f"{dependencies.remeasure} ({record.subject})")

    def refusals(self, record: Described) -> tuple[str, ...]:
        """Return why a record may not be used, or nothing."""
        standing = self.standing(record)
        if standing.state == "current" or (standing.state == "undetermined" and self.undetermined_applies):
            return ()
        return tuple(f"{standing.state}: {reason}" for reason in standing.reasons)


class Staleness(Document, frozen=True, kw_only=True, tag_field="document", tag="inferswarm.staleness/1"):
    """A record that does not hold any more, why, and what would give a current value."""

    observation_id: str
    subject: str
    metric: str
    findings: tuple[Finding, ...]
    remeasure: str
    at_ns: Digits


def with_facts(
    observation: Observation, facts: FactTable, declared: tuple[MetricDependencies, ...] = DEPENDENCIES
) -> Observation:
    """Return an observation that states the facts in force that its value depends on, as far as they are known.

    To be called when it was taken: later, it would say what nobody saw. What it states already stays. Raises
    SpecError when it states another value than is in force, for a kind that nobody declared, and for a subject that
    is not present.
    """
    dependencies, subject = dependencies_of(observation.metric, declared), facts.of(observation.subject)
    if dependencies is None:
        raise SpecError("metric", observation.metric, "a kind of observation whose dependencies are declared")
    if subject is None:
        raise SpecError("subject", observation.subject, "a resource or a path that is present")
    added = []
    for key in dependencies.keys_for(subject.kind, observation.context_value("backend")):
        stated, fact = observation.context_value(key), subject.fact(key)
        if fact is None or fact.value is None:
            continue  # it stays unstated, and the record undetermined
        if stated is None:
            added.append(ContextItem(key, fact.value))
        elif stated != fact.value:
            raise SpecError(f"{key} of {observation.subject}", stated, f"{fact.value!r}, which is in force")
    return msgspec.structs.replace(observation, context=tuple(sorted([*observation.context, *added])))


def find_stale(records: Iterable[Described], currency: Currency) -> tuple[Staleness, ...]:
    """Return the records that are stale, sorted by subject, metric and id; order of the input changes nothing.

    Headers are enough: no sample is looked at.
    """
    found = []
    for record in records:
        standing = currency.standing(record)
        if standing.state == "stale":
            found.append(
                Staleness(
                    observation_id=record.id,
                    subject=record.subject,
                    metric=record.metric,
                    findings=tuple(finding for finding in standing.findings if finding.differs),
                    remeasure=standing.remeasure,
                    at_ns=str(currency.now_ns),
                )
            )
    return tuple(sorted(found, key=lambda item: (item.subject, item.metric, item.observation_id)))


def find_invalidated(records: Iterable[Described], before: Currency, after: Currency) -> tuple[Staleness, ...]:
    """Return the records that a change made stale: stale after it, and not stale before it."""
    given = tuple(records)
    already = {item.observation_id for item in find_stale(given, before)}
    return tuple(item for item in find_stale(given, after) if item.observation_id not in already)


def _verdict(findings: list[Finding], remeasure: str) -> Standing:
    if not findings:
        return Standing("current", (), "")
    state: State = "stale" if any(finding.differs for finding in findings) else "undetermined"
    return Standing(state, tuple(findings), remeasure)


def _differs(key: str, stated: str | None, needed: str | None, detail: str) -> Finding:
    return Finding(key=key, stated=stated, needed=needed, detail=detail, differs=True)


def _unclear(key: str, stated: str | None, needed: str | None, detail: str) -> Finding:
    return Finding(key=key, stated=stated, needed=needed, detail=detail, differs=False)


def _age(record: Described, dependencies: MetricDependencies, now_ns: int) -> Iterable[Finding]:
    age_seconds = (now_ns - int(record.taken_at_ns)) / 1e9
    if not 0 <= age_seconds <= dependencies.max_age_seconds:
        needed = f"0 to {dependencies.max_age_seconds:g} s"
        yield _differs("age", f"{age_seconds:.0f} s", needed, f"is {age_seconds:.0f} s old, needed {needed}")


def _protocol(record: Described, dependencies: MetricDependencies) -> Iterable[Finding]:
    if record.protocol not in dependencies.protocols:
        needed = " or ".join(dependencies.protocols)
        detail = f"was taken by protocol {record.protocol!r}, needed {needed}"
        yield _differs("protocol", record.protocol, needed, detail)


def _run(record: Described) -> Iterable[Finding]:
    if (detail := unusable_drift(record)) is not None:
        yield _differs(DRIFT_KEY, record.context_value(DRIFT_KEY), "none", detail)


def _doubted(record: Described, doubts: Iterable[Doubt]) -> Iterable[Finding]:
    taken_at_ns = int(record.taken_at_ns)
    for doubt in doubts:
        subject, metric, _ = doubt.question
        same = (record.subject, record.metric) == (subject, metric) and taken_at_ns <= doubt.until_ns
        if same and question_of(record) == doubt.question:
            yield _differs("health", None, None, doubt.reason)


def _facts(record: Described, dependencies: MetricDependencies, subject: SubjectFacts) -> Iterable[Finding]:
    for key in dependencies.keys_for(subject.kind, record.context_value("backend")):
        stated, fact = record.context_value(key), subject.fact(key)
        if fact is None or fact.value is None:
            reason = "nothing is said about it" if fact is None else fact.detail
            yield _unclear(key, stated, None, f"{key} is unknown now: {reason}")
        elif stated is None:
            yield _unclear(key, None, fact.value, f"does not state {key}, which is {fact.value!r} now")
        elif stated != fact.value:
            yield _differs(key, stated, fact.value, f"{key} was {stated!r}, is {fact.value!r} now")


def _asked(record: Described, dependencies: MetricDependencies, asked: Mapping[str, str]) -> Iterable[Finding]:
    for key, value in sorted(asked.items()):
        if key not in dependencies.asked:
            continue  # what is asked there has no part in this kind of observation
        stated = record.context_value(key)
        if stated is None:
            yield _unclear(key, None, value, f"does not state {key}, asked for {value!r}")
        elif stated != value:
            yield _differs(key, stated, value, f"{key} is {stated!r}, asked for {value!r}")
