"""The health of a swarm's resources, as its journal has it: what was accepted, what deviates, what is shut.

The journal lies in the state directory. Nothing is decided here that `evidence` does not decide: new records are
held against the accepted baselines, what happened becomes events, and what is in force goes to the planner. What a
deviation needs to be confirmed, or an alert to be cleared, is a doubt in what is known, so that measuring clears it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from statistics import median
from typing import NamedTuple

from inferswarm.errors import MeasurementError, SpecError
from inferswarm.evidence.alerts import Alert, AlertCleared, AlertRule, review
from inferswarm.evidence.baselines import Baseline, accept_baseline
from inferswarm.evidence.comparison import Comparison, ComparisonRule
from inferswarm.evidence.currency import Currency, Doubt
from inferswarm.evidence.drift import unusable_drift
from inferswarm.evidence.events import HealthEvent, Scope
from inferswarm.evidence.health import Health
from inferswarm.evidence.journal import Journal, JournalDocument
from inferswarm.evidence.report import HealthReport, newest_baselines, report_of
from inferswarm.evidence.store import ObservationStore
from inferswarm.evidence.types import ContextItem, Observation, QuestionKey, RecordHeader, question_of
from inferswarm.resources.types import ResourceGraph
from inferswarm.strategies.economics import PATH_METRIC
from inferswarm.strategies.overheads import OPENING_METRIC, OVERHEAD_METRIC, SERVICE_METRIC, TOKEN_METRIC
from inferswarm.swarm.health_changes import kinds_of, performance_changes, scope_of
from inferswarm.swarm.known import BASE_METRIC, SCRATCH_METRIC

MULTIPLY_RATE = "multiply-rate"
PLANNED_BY = (SERVICE_METRIC, OVERHEAD_METRIC, OPENING_METRIC, TOKEN_METRIC, PATH_METRIC)
"""What plans are priced with: a record of it that drifted too far is measured again at once."""
_COST_CLASSES = (SERVICE_METRIC, OVERHEAD_METRIC, SCRATCH_METRIC)
RULE = AlertRule(comparison=ComparisonRule(min_change=0.25, min_samples=5))
"""When a swarm raises alerts: a quarter worse, in two records in a row, each by itself.

Five samples are enough, because a probe has a fixed time: what has become slower has few.
"""


class Accepted(NamedTuple):
    """What an acceptance made, and the questions that it left out, each with the reason."""

    baselines: tuple[Baseline, ...]
    left_out: tuple[str, ...]


class Reviewed(NamedTuple):
    """What new records changed, and the questions whose next record decides what these leave open."""

    raised: tuple[Alert, ...]
    cleared: tuple[AlertCleared, ...]
    doubts: tuple[Doubt, ...]


class HealthKeeper:
    """Keeps the journal of one state directory, and answers from it."""

    def __init__(
        self,
        directory: Path,
        store: ObservationStore,
        rule: AlertRule = RULE,
        clock: Callable[[], int] = time.time_ns,
    ) -> None:
        """Open or make the journal. Raises SpecError or EvidenceError as `Journal` does."""
        self._journal = Journal(directory)
        self._store = store
        self._rule = rule
        self.clock = clock

    # -- what is in force --

    def report(self) -> HealthReport:
        """Return what is in force now."""
        return report_of(self._documents())

    def in_force(self, graph: ResourceGraph) -> tuple[Health, ...]:
        """Return the health of what a plan over this graph could use, as far as anything was seen of it."""
        units = {unit.id for unit in graph.compute_units}
        own = {node.id for node in graph.nodes} | units | {memory.id for memory in graph.memory_resources}
        own |= {f"{link.source}->{link.target}" for link in graph.links}

        def is_own(scope: Scope) -> bool:
            return scope.id.rpartition("@")[2] in units if scope.kind == "implementation" else scope.id in own

        return tuple(item for item in self.report().scopes if is_own(item.scope))

    def events(self) -> tuple[HealthEvent, ...]:
        """Return everything that was seen, oldest first."""
        return self._journal.events()

    def alerts_about(self, scope: Scope, graph: ResourceGraph) -> tuple[Alert, ...]:
        """Return the open alerts about a resource, whatever their metric."""
        kinds = kinds_of(graph)
        return tuple(alert for alert in self.report().alerts if scope_of(alert.subject, kinds) == scope)

    def doubts(self, graph: ResourceGraph) -> tuple[Doubt, ...]:
        """Return what has to be measured again: what open alerts are about, and bases of exceeded envelopes.

        A probe measures several questions at once and is due when one of them is: the doubt goes to all that it
        answers.
        """
        report, now = self.report(), self.clock()
        found = [
            Doubt(
                (alert.subject, alert.metric, alert.scope),
                now,
                f"degraded: {_short(alert.comparison)} of what was accepted",
            )
            for alert in report.alerts
        ]
        owners = {memory.id: memory.node_id for memory in graph.memory_resources}
        for item in report.scopes:
            stale = item.qualification
            if item.scope.id in owners and stale.state == "stale" and stale.since_ns is not None:
                for header in self._store.headers(owners[item.scope.id], BASE_METRIC):
                    found.append(Doubt(question_of(header), int(stale.since_ns), stale.detail))
        return self._widened(found, graph)

    # -- what is written --

    def note(self, events: Iterable[HealthEvent]) -> tuple[HealthEvent, ...]:
        """Write events, in their order; return them. Writes nothing when there are none."""
        given = tuple(events)
        if given:
            self._journal.append(given)
        return given

    def accept(
        self,
        currency: Currency,
        *,
        accepted_by: str,
        reason: str,
        num_runs: int = 1,
        subjects: frozenset[str] | None = None,
    ) -> Accepted:
        """Accept the newest steady records that hold now, up to `num_runs` of each question, as reference baselines.

        With several runs a baseline knows how far repeats lie apart. `subjects` limits it to records of these. What
        cannot be accepted (too few samples, a run that drifted) is left out and named. Raises SpecError for an
        acceptance by nobody or without a reason.
        """
        for name, text in (("accepted_by", accepted_by), ("reason", reason)):
            if not text.strip():
                raise SpecError(name, text, "a text: a baseline says who accepted it and why")
        if num_runs < 1:
            raise SpecError("num_runs", num_runs, "at least 1")
        documents = self._documents()
        known = newest_baselines(documents)
        made: list[Baseline] = []
        left_out: list[str] = []
        for question, headers in self._questions(currency, subjects).items():
            if question in known and self._same_runs(known[question], headers, num_runs):
                continue  # accepted already
            try:
                made.append(
                    accept_baseline(
                        self._store.load(header.id for header in headers[-num_runs:]),
                        accepted_by=accepted_by,
                        accepted_at_ns=str(self.clock()),
                        reason=reason,
                        previous=known.get(question),
                        rule=self._rule.comparison,
                    )
                )
            except (SpecError, MeasurementError) as error:
                left_out.append(f"{question[1]} of {question[0]}: {error}")
        if made:
            self._journal.append(made)
        return Accepted(tuple(made), tuple(left_out))

    def review(self, since_ns: int, graph: ResourceGraph) -> Reviewed:
        """Hold the questions of records taken since a moment against their accepted baselines; write what changes.

        An alert is raised, or the open one cleared, as `evidence.alerts` says. The performance of a scope is degraded
        from its first open alert until its last one is cleared. A record that drifted too far leaves its question
        open, whether anything was accepted for it or not.
        """
        documents = self._documents()
        baselines, kinds = newest_baselines(documents), kinds_of(graph)
        before = report_of(documents)
        open_alerts = {(alert.subject, alert.metric, alert.scope): alert for alert in before.alerts}
        raised: list[Alert] = []
        cleared: list[AlertCleared] = []
        doubts: list[Doubt] = []
        within: set[Scope] = set()
        for question, newest in self._since(since_ns).items():
            baseline = baselines.get(question)
            if (drift := unusable_drift(newest[-1])) is not None:
                if baseline is not None or question[1] in PLANNED_BY:
                    doubts.append(Doubt(question, self.clock(), f"it {drift}"))
                continue
            if baseline is None:
                continue
            alert = open_alerts.get(question)
            steady = [header for header in newest if unusable_drift(header) is None]
            records = self._store.load(header.id for header in steady[-self._rule.num_confirmations :])
            if alert is None and not self._may_be_worse(baseline, records[-1]):
                within.add(scope_of(question[0], kinds))
                continue
            found = review(baseline, records, alert, now_ns=self.clock(), rule=self._rule)
            raised += [found.alert] if found.alert is not None else []
            cleared += [found.cleared] if found.cleared is not None else []
            if found.alert is None and found.cleared is None and (why := _undecided(found.comparisons, alert)):
                doubts.append(Doubt(question, self.clock(), why))
        events = performance_changes(before, raised, cleared, within, kinds, str(self.clock()))
        events += self._bases_known(before, since_ns, graph)
        written: list[JournalDocument] = [*raised, *cleared, *events]
        if written:
            self._journal.append(written)
        return Reviewed(tuple(raised), tuple(cleared), self._widened(doubts, graph))

    # -- how --

    def _documents(self) -> tuple[JournalDocument, ...]:
        return tuple(entry.document for entry in self._journal.entries())

    def _questions(
        self, currency: Currency, subjects: frozenset[str] | None
    ) -> dict[QuestionKey, list[RecordHeader]]:
        """Return the records that hold now, oldest first, by what they answer."""
        found: dict[QuestionKey, list[RecordHeader]] = {}
        for header in self._store.headers():
            wanted = subjects is None or header.subject in subjects
            if wanted and unusable_drift(header) is None and currency.standing(header).state != "stale":
                found.setdefault(question_of(header), []).append(header)
        return found

    @staticmethod
    def _same_runs(baseline: Baseline, headers: Sequence[RecordHeader], num_runs: int) -> bool:
        return baseline.observation_ids == tuple(header.id for header in headers[-num_runs:])

    def _since(self, since_ns: int) -> dict[QuestionKey, list[RecordHeader]]:
        """Return every record of the questions that one was taken for since a moment, oldest first."""
        found: dict[QuestionKey, list[RecordHeader]] = {}
        for header in self._store.headers():
            found.setdefault(question_of(header), []).append(header)
        return {key: headers for key, headers in found.items() if int(headers[-1].taken_at_ns) > since_ns}

    def _widened(self, doubts: Sequence[Doubt], graph: ResourceGraph) -> tuple[Doubt, ...]:
        """Return these doubts, and the same of what makes their probes due: cost classes together, a Node's base."""
        nodes = {unit.id: unit.node_id for unit in graph.compute_units}
        found = {doubt.question: doubt for doubt in doubts}
        for header in self._store.headers() if doubts else ():
            question = question_of(header)
            for doubt in doubts:
                subject, metric, context = doubt.question
                unit = header.subject == subject and header.metric in _COST_CLASSES and metric in _COST_CLASSES
                whole = (
                    header.metric == BASE_METRIC and metric == MULTIPLY_RATE and header.subject == nodes.get(subject)
                )
                if question not in found and (whole or (unit and _of_one_probe(context, header))):
                    found[question] = doubt._replace(question=question)
        return tuple(found.values())

    def _bases_known(self, before: HealthReport, since_ns: int, graph: ResourceGraph) -> list[HealthEvent]:
        """Return that a Memory Resource is qualified again, whose Node's base was measured after it was exceeded."""
        owners = {memory.id: memory.node_id for memory in graph.memory_resources}
        events = []
        for item in before.scopes:
            if item.scope.id not in owners or item.qualification.state != "stale":
                continue
            again = [
                header
                for header in self._store.headers(owners[item.scope.id], BASE_METRIC)
                if int(header.taken_at_ns) > max(since_ns, int(item.qualification.since_ns or 0))
            ]
            if again:
                events.append(
                    HealthEvent(
                        kind="qualified",
                        implicated=(item.scope,),
                        at_ns=str(self.clock()),
                        evidence_ids=(again[-1].id,),
                        detail="its runtime base was measured again",
                    )
                )
        return events

    def _may_be_worse(self, baseline: Baseline, record: Observation) -> bool:
        """Whether a record could be degraded at all: its interval holds its ratio, which must then be too bad."""
        ratio = median(record.samples) / baseline.median
        worse = ratio if baseline.better == "lower" else 1 / ratio
        return worse > 1 + self._rule.comparison.min_change


def _short(comparison: Comparison) -> str:
    ratio = "an unknown share" if comparison.ratio is None else f"{comparison.ratio:.2f} times"
    return f"the median is {ratio}"


def _undecided(comparisons: Sequence[Comparison], alert: Alert | None) -> str | None:
    """Return why one more record would decide, or None where the newest one leaves everything as it is."""
    if not comparisons:
        return None
    last = comparisons[-1]
    if alert is None and last.outcome == "degraded":
        return f"it deviates: {_short(last)} of what was accepted; measured again to confirm"
    if alert is not None and last.outcome in ("none", "improved"):
        return f"it may be as accepted again: {_short(last)} of that; measured again to confirm"
    if alert is not None and last.outcome == "insufficient":
        return f"whether it still deviates cannot be told: {_short(last)} of what was accepted; measured again"
    return None


def _of_one_probe(context: Iterable[ContextItem], header: RecordHeader) -> bool:
    """Whether one measurement of a model's cost classes gives both: the representation and the model's shape."""
    stated = {item.key: item.value for item in context}
    keys = ("representation", "model.shape")
    return all(stated.get(key) == header.context_value(key) for key in keys)
