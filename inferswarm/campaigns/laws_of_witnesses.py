"""The laws of the two witnesses, of the notebook between them, and of what they ran in."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import msgspec

from inferswarm.campaigns import layout
from inferswarm.campaigns.case import Case
from inferswarm.campaigns.environment import Environment, environment_differences
from inferswarm.campaigns.execution_traces import SEALED, check_stderr, check_times, sealed_lines
from inferswarm.campaigns.findings import broken, compared, proven, unproven
from inferswarm.campaigns.laws import Finding
from inferswarm.campaigns.notebooks import parameters_of, scan_executed, scan_source
from inferswarm.campaigns.records import Outcome, Parameter, Request, Seal, entry_of
from inferswarm.campaigns.requirements import unmet_requirements
from inferswarm.campaigns.spec import same_parameters
from inferswarm.campaigns.standing import footing_of
from inferswarm.errors import DocumentError

NOT_STARTED = "no process was started"


def check_outcome(case: Case) -> Iterator[Finding]:
    """The parent saw the process end by itself with 0, in time, and nothing of it was left."""
    law, outcome = "outcome", case.run.outcome
    if outcome is None:
        yield unproven(law, layout.OUTCOME, "how the process ended", "nobody saw it")
        return
    yield from _same_run(law, layout.OUTCOME, outcome, case)
    ended_well = (outcome.end, outcome.exit_status, outcome.signal) == ("exited", 0, None)
    clean = ended_well and not outcome.reason
    shown = f"{outcome.end}, status {outcome.exit_status}, signal {outcome.signal}: {outcome.reason}"
    if clean:
        yield proven(law, layout.OUTCOME, "exited with 0")
    else:
        yield unproven(law, layout.OUTCOME, "exited with 0, and nothing to say of it", shown)
    if outcome.survivors != 0:
        yield unproven(law, layout.OUTCOME, "no process left over", f"{outcome.survivors} had to be killed")
    request = case.run.request
    if request is not None and ended_well and not 0 < outcome.seconds <= request.deadline_seconds:
        yield broken(law, layout.OUTCOME, f"above 0 and at most {request.deadline_seconds} s", f"{outcome.seconds} s")


def check_seal(case: Case) -> Iterator[Finding]:
    """The last cell sealed this run, and what it sealed is what is here: every file of the arm, and its counts."""
    law, run, seal = "seal", case.run, case.run.seal
    if seal is None:
        yield unproven(law, layout.SEAL, "a seal", run.faults.get(layout.SEAL, "none"))
        return
    yield from _same_run(law, layout.SEAL, seal, case)
    if run.arm is None:
        yield unproven(law, layout.SEAL, "the files of the arm", "the arm is not known")
        return
    names = sorted({*layout.ARM_FILES, *run.arm.produces})
    sealed = [entry.path for entry in seal.files]
    yield compared(law, layout.SEAL, names, sealed)
    for entry in seal.files:
        data = run.bundle.files.get(entry.path)
        found = None if data is None else entry_of(entry.path, data)
        if found != entry:
            shown = "no file" if found is None else f"{found.bytes} B, {found.digest}"
            yield broken(law, entry.path, f"{entry.bytes} B, {entry.digest}", shown)
    for name, recorded, counted in (
        (layout.SAMPLES, seal.num_samples, None if run.samples is None else len(run.samples)),
        (layout.OUTPUTS, seal.num_outputs, None if run.outputs is None else len(run.outputs)),
    ):
        yield compared(law, name, recorded, counted)


def _same_run(law: str, path: str, record: Outcome | Seal, case: Case) -> Iterator[Finding]:
    request = case.run.request
    needed = None if request is None else (request.run_id, request.nonce, case.run.bundle.digest(layout.REQUEST))
    yield compared(law, path, needed, (record.run_id, record.nonce, record.request_digest))


def check_witnesses(case: Case) -> Iterator[Finding]:
    """Parent and seal speak of one process and of one package, and the executed notebook shows the seal's digest."""
    law, run = "witnesses-agree", case.run
    seal, outcome, request = run.seal, run.outcome, run.request
    if seal is None or outcome is None or request is None:
        yield unproven(law, layout.SEAL, "two witnesses", "one of them is missing")
        return
    pid = outcome.kernel_pid
    if pid is None:
        yield unproven(law, layout.OUTCOME, "the kernel's process id", "the parent did not see it")
    else:
        yield compared(law, "kernel_pid", pid, seal.kernel_pid)
    yield compared(law, "package_digest", request.package_digest, seal.package_digest)
    if run.environment is not None:
        yield compared(law, "executable", run.environment.executable, seal.executable)
    shown = run.bundle.digest(layout.SEAL) or ""
    for path, seals in sealed_lines(run.bundle.files.get(layout.EXECUTED), run.bundle.files.get(layout.STDOUT)):
        wanted = f"one line, at the end: {SEALED}{shown}"
        if seals == [f"{SEALED}{shown}"]:
            yield proven(law, path, wanted)
        else:
            yield unproven(law, path, wanted, "; ".join(seals) or "none")


def check_notebook(case: Case) -> Iterator[Finding]:
    """The notebook is one that may run, all of it ran, it is the one that was frozen, with the values requested.

    Findings of three laws: `notebook-scan`, `notebook-source`, `parameters`.
    """
    run, files = case.run, case.run.bundle.files
    source, executed = files.get(layout.NOTEBOOK), files.get(layout.EXECUTED)
    if source is None:
        yield unproven("notebook-scan", layout.NOTEBOOK, "the notebook", "none")
    else:
        yield from scan_source(source)
        yield from _declared(source, case)
    if source is None or executed is None or run.request is None:
        yield unproven("notebook-scan", layout.EXECUTED, "the notebook as it was executed", "not all is there")
        return
    yield from scan_executed(executed, source, run.request)
    yield check_times(executed, run.outcome)
    yield check_stderr(files.get(layout.STDERR))


def _declared(source: bytes, case: Case) -> Iterator[Finding]:
    """Compare the parameters of campaign, notebook, request and seal: names, types, and values but the defaults."""
    law, run, request = "parameters", case.run, case.run.request
    if run.arm is None or request is None:
        yield unproven(law, layout.REQUEST, "the parameters of the arm", "the arm is not known")
        return
    declared = run.arm.parameters
    try:
        defaults = parameters_of(source)
    except DocumentError as error:
        yield broken(law, layout.NOTEBOOK, "one cell of literal parameters", error.reason)
        return
    yield compared(law, layout.NOTEBOOK, _typed(declared), _typed(defaults))
    held = [(layout.REQUEST, request.parameters)]
    if run.seal is not None:
        held.append((layout.SEAL, run.seal.parameters))
    for path, parameters in held:
        ordered = [tuple(sorted(items, key=lambda item: item.name)) for items in (declared, parameters)]
        if same_parameters(*ordered):
            yield proven(law, path, f"the {len(declared)} parameters of the campaign")
        else:
            yield broken(law, path, _valued(ordered[0]), _valued(ordered[1]))


def _typed(parameters: Iterable[Parameter]) -> list[str]:
    return sorted(f"{item.name}: {type(item.value).__name__}" for item in parameters)


def _valued(parameters: Iterable[Parameter]) -> str:
    return ", ".join(f"{item.name} = {item.value!r}" for item in parameters) or "nothing"


def check_background(case: Case) -> Iterator[Finding]:
    """Nothing failed in a thread, in a task, or where nobody could raise it."""
    law, seal = "background-failures", case.run.seal
    if seal is None:
        yield unproven(law, layout.SEAL, "no failure in the background", "there is no seal that would say so")
        return
    for failure in seal.background_failures:
        yield broken(law, layout.SEAL, "no failure in the background", f"{failure.where}: {failure.error}")
    if not seal.background_failures:
        yield proven(law, layout.SEAL, "no failure in the background")


def check_environment(case: Case) -> Iterator[Finding]:
    """The kernel ran in what the parent ran in, and there was what the arm needs."""
    law, run = "environment", case.run
    mine, parent, seal = run.environment, run.parent_environment, run.seal
    if mine is None or parent is None or run.arm is None:
        found = NOT_STARTED if not case.was_started else "one of them is missing"
        yield unproven(law, layout.ENVIRONMENT, "the kernel's environment and its parent's", found)
        return
    if run.outcome is not None:
        there = run.bundle.digest(layout.PARENT_ENVIRONMENT)
        yield compared(law, layout.PARENT_ENVIRONMENT, run.outcome.parent_environment_digest, there)
    yield from _same_repository(mine, parent, run.request)
    differences = environment_differences(mine, parent)
    for difference in differences:
        yield broken(law, layout.ENVIRONMENT, "the environment of the parent", difference)
    if not differences:
        yield proven(law, layout.ENVIRONMENT, "the environment of the parent")
    yield from _requirements(case)
    if run.request is not None:
        yield compared(law, "package_version", run.request.package_version, mine.package_version)
    if seal is not None and mine.optimize:
        yield broken(law, layout.ENVIRONMENT, "assertions in force", f"optimization level {mine.optimize}")


def _same_repository(kernel: Environment, parent: Environment, request: Request | None) -> Iterator[Finding]:
    """Parent and kernel found the project at the commit of the request. Somebody may have changed it meanwhile."""
    law = "environment"
    if request is None:
        return
    wanted = (request.commit, request.dirty)
    places = [(layout.ENVIRONMENT, kernel.repository), (layout.PARENT_ENVIRONMENT, parent.repository)]
    for path, there in places:
        if (there.commit, there.dirty) != wanted:
            needed = f"commit {wanted[0] or '(none)'}, {'changed' if wanted[1] else 'unchanged'}"
            found = f"commit {there.commit or '(none)'}, {'changed' if there.dirty else 'unchanged'}"
            yield unproven(law, path, needed, found)
    if kernel.repository != parent.repository:
        yield unproven(law, layout.ENVIRONMENT, str(parent.repository), str(kernel.repository))


def _requirements(case: Case) -> Iterator[Finding]:
    """Hold the parent's facts against what the arm needs of a machine; packages and models left their own traces."""
    law, run = "environment", case.run
    assert run.arm is not None
    assert run.parent_environment is not None
    needs = msgspec.structs.replace(run.arm.requires, extras=(), files=())
    for lacking in unmet_requirements(needs, run.parent_environment, lambda name: name):
        yield unproven(law, layout.PARENT_ENVIRONMENT, "what the arm needs of the machine", lacking)


def check_predecessors(case: Case) -> Iterator[Finding]:
    """What had to have passed before had passed when this run was requested, and the request names it."""
    law, run, request = "predecessors", case.run, case.run.request
    if run.spec is None or run.arm is None or request is None or not case.requested:
        yield unproven(law, layout.REQUEST, "the arms before this one", "they are not known")
        return
    footing = footing_of(run.arm, run.spec, case.before, case.waivers, int(request.requested_at))
    if not footing.allows(request.predecessors):
        wanted = " and ".join(" or ".join(carriers) for carriers in footing.carriers) or "none"
        yield broken(law, layout.REQUEST, wanted, ", ".join(request.predecessors) or "none")
    wanted = f"PASS or WAIVED: {', '.join(run.arm.after) or 'none'}"
    is_blocked = run.outcome is not None and run.outcome.end == "blocked"
    if footing.lacking and is_blocked:
        yield unproven(law, layout.LEDGER, wanted, ", ".join(footing.lacking))
    elif footing.lacking:
        yield broken(law, layout.LEDGER, wanted, f"started without {', '.join(footing.lacking)}")
    elif is_blocked:
        yield broken(law, layout.OUTCOME, "a run that can start", "blocked, though nothing was lacking")
    else:
        yield proven(law, layout.LEDGER, wanted)
