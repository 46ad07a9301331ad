"""Runs the demonstration, step by step, and returns its exit status."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

from inferswarm.demo.checks import Checklist
from inferswarm.demo.envelopes import choose_envelopes, measure_base, unlike_threads
from inferswarm.demo.record import write_record
from inferswarm.demo.report import check_against_unsplit, check_memory, check_work, report_speed
from inferswarm.errors import EnvelopeExceeded, SpecError
from inferswarm.fabric.proc import maps_torch
from inferswarm.fabric.text_side import TextSide
from inferswarm.planner.plan import ExecutionPlan
from inferswarm.planner.problem import Workload
from inferswarm.resources.types import Envelope
from inferswarm.swarm import Generation, Model, Service, Swarm
from inferswarm.swarm.displays import DecisionView
from inferswarm.swarm.measuring import each_once
from inferswarm.units import format_bytes, format_seconds
from inferswarm.views.labels import count

ANSWER_WIDTH = 92
_QUOTE = "  > "
_NEXT = """Try next:
  inferswarm run -m smollm2-135m "Name three rivers."          on this machine as it is
  inferswarm run -n a:threads=2,memory=420MB -n b:threads=1,memory=380MB "Name three rivers."
  inferswarm plan --explain -n a:threads=1,memory=300MB        a truthful no, in numbers
  inferswarm doctor                                            what else this machine could do
  make lab                                                     the same in JupyterLab (00_quickstart.ipynb)"""


class Terminal(NamedTuple):
    """Where the demonstration is shown: whole lines, and text that comes piece by piece."""

    line: Callable[[str], None]
    piece: Callable[[str], None]


def run_demo(
    model_name: str,
    prompt: str,
    max_tokens: int,
    out: Path,
    state: Path | None,
    mechanism: str,
    terminal: Terminal,
    ray: str | None = None,
) -> int:
    """Show everything on `terminal`; return 0 only when every claim was checked and held, else 1.

    With `ray` the two Nodes are on the Ray nodes labeled `amber` and `birch` of the cluster at that address.
    Pictures and `demo.json` go to `out`. Raises the package's own errors for bad input.
    """
    _prepare_out(out)
    directory = None if state is None else str(state)
    return _Demo(Model(model_name), prompt, max_tokens, out, directory, mechanism, terminal, ray).run()


def _prepare_out(out: Path) -> None:
    try:
        out.mkdir(parents=True, exist_ok=True)
        (out / ".writable").write_bytes(b"")
        (out / ".writable").unlink()
    except OSError as error:
        raise SpecError("out", str(out), f"a directory that can be written ({error.strerror})") from error


class _Demo:
    """The demonstration of one model."""

    def __init__(
        self,
        model: Model,
        prompt: str,
        max_tokens: int,
        out: Path,
        state: str | None,
        mechanism: str,
        terminal: Terminal,
        ray: str | None,
    ) -> None:
        self.ray = ray
        self.model = model
        self.prompt = prompt
        self.max_tokens = max_tokens
        self.out = out
        self.state = state
        self.mechanism = mechanism
        self.show = terminal.line
        self.write = terminal.piece
        self.checklist = Checklist(terminal.line)
        num_prompt = len(TextSide(str(model.path)).prompt_ids(prompt, raw=False))  # refuses an empty prompt
        self.workload = Workload(prompt_tokens=num_prompt, output_tokens=max_tokens)

    def run(self) -> int:
        """Run all steps."""
        self.show(f"InferSwarm: {self.model!r}\n")
        problem = self.model.problem(self.workload)
        self.show("1. Two Nodes that are each too small")
        threads = unlike_threads()
        bases = tuple(measure_base(self.state, self.mechanism, count, each_once(self.show)) for count in threads)
        envelopes = choose_envelopes(problem, (bases[0], bases[1]), threads)
        with self._start(envelopes) as swarm:
            for envelope, base in zip(envelopes, bases, strict=True):
                self.show(
                    f"  {envelope.name}: {count(envelope.threads, 'thread')}, {format_bytes(envelope.memory_bytes)} "
                    f"({format_bytes(base)} of it is the measured base of agent and empty stage)"
                )
            self.show(f"  both are virtual Nodes of this machine; memory is enforced by {swarm.mechanism}")
            self._with_swarm(swarm)
        return self._finish()

    def _start(self, envelopes: Sequence[Envelope]) -> Swarm:
        if self.ray is None:
            return Swarm.local(envelopes, state=self.state, mechanism=self.mechanism)
        return Swarm.ray(self.ray, envelopes, state=self.state, mechanism=self.mechanism)

    def _with_swarm(self, swarm: Swarm) -> None:
        self.show("\n2. Measuring them")
        swarm.measure(self.model, self.workload, refresh=True, on_progress=each_once(self.show))
        swarm.graph.draw(self.out / "graph.svg", self.out / "graph.png")
        self.show(f"  {len(swarm.store)} observations in {swarm.store.directory}")
        self.show("\n3. Planning")
        decision = swarm.plan(self.model, self.workload, measure=False)
        self.show(_indent(decision.explain()))
        single = [family for family in decision.document.families if len(family.compute_unit_ids) == 1]
        infeasible = [family for family in single if family.status == "TECHNICALLY_INFEASIBLE"]
        self.checklist.add(
            "no single Node can hold the model",
            bool(single) and len(infeasible) == len(single),
            f"{len(infeasible)} of {len(single)} single-Node families are technically infeasible",
        )
        plan = decision.plan
        decision.draw(self.out / "plan.svg", self.out / "plan.png")
        self.show(f"  the plan's picture: {self.out / 'plan.svg'} and {self.out / 'plan.png'}")
        self._control(swarm, decision)
        self._serve(swarm, plan)

    def _control(self, swarm: Swarm, decision: DecisionView) -> None:
        self.show("\n4. Control: the single-Node plan, forced, under the same limit")
        representation = decision.plan.representation_of(decision.plan.placements[0])  # a plan may mix several
        forced = swarm.force(self.model, ["amber"], representation=representation, workload=self.workload)
        account = forced.placements[0].memory
        self.show(
            f"  amber alone in {representation}: needs {format_bytes(account.needed_bytes)} beside its base, "
            f"has {format_bytes(account.available_bytes or 0)}"
        )
        try:
            with swarm.realize(forced, self.model):
                seen, held = "it ran, which it must not", False
        except EnvelopeExceeded as error:
            seen, held = str(error), True
        self.checklist.add("the enforced limit stops the single-Node plan", held, seen)

    def _serve(self, swarm: Swarm, plan: ExecutionPlan) -> None:
        self.show("\n5. The plan, realized")
        before = swarm.node_memory(reset_peak=True)
        with swarm.realize(plan, self.model) as service:
            stages = service.realized.stages
            for placement, stage in zip(plan.placements, stages, strict=True):
                held = sum(state.bytes for state in stage.states)
                self.show(
                    f"  {placement.participant} on {placement.node_name}: {format_bytes(stage.source_bytes)} read, "
                    f"{format_bytes(held)} of states, in {format_seconds(stage.seconds)}"
                )
            torch_mapped = maps_torch(service.coordinator_pid)
            self.checklist.add(
                "the Coordinator has no torch",
                not torch_mapped,
                f"/proc/{service.coordinator_pid}/maps names {'a' if torch_mapped else 'no'} torch library",
            )
            self.show(f"\n  {self.prompt}\n")
            answer = self._stream(service)
            memory = swarm.node_memory()
            reports = service.stage_reports()
        problem = swarm.problem(self.model, self.workload)
        self.show("\n6. What was promised and what was seen")
        report_speed(plan, answer, self.show)
        check_work(service, answer, reports, self.checklist)
        check_memory(plan, before, memory, self.checklist, self.show)
        check_against_unsplit(plan, self.model, problem, answer, self.checklist, self.show)
        write_record(self.out / "demo.json", swarm.graph.document, plan, answer, memory, self.checklist.checks)

    def _stream(self, service: Service) -> Generation:
        column = 0
        self.write(_QUOTE)
        for piece in service.stream(chat=(("user", self.prompt),), max_tokens=self.max_tokens):
            if piece.startswith(" ") and column + len(piece) > ANSWER_WIDTH:
                piece = "\n" + piece[1:]
            self.write(piece.replace("\n", f"\n{_QUOTE}"))
            column = len(piece.rpartition("\n")[2]) + (0 if "\n" in piece else column)
        self.write("\n")
        assert service.last is not None
        self.show(f"\n  {service.last!r}")
        return service.last

    def _finish(self) -> int:
        held = sum(check.held for check in self.checklist.checks)
        self.show(f"\n7. {held} of {len(self.checklist.checks) + len(self.checklist.missing)} claims held")
        for claim in self.checklist.missing:
            self.show(f"  [NOT CHECKED] {claim}")
        self.show(f"\n{_NEXT}")
        return 0 if self.checklist.all_held else 1


def _indent(text: str) -> str:
    return "\n".join(f"  {line}".rstrip() for line in text.splitlines())
