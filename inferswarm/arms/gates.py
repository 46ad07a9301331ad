"""What the planner's gates say of every set of Nodes, as numbers: needed and available bytes, and the status."""

from __future__ import annotations

from collections.abc import Iterable

from inferswarm.campaigns.arm import Arm
from inferswarm.documents import Document
from inferswarm.planner.plan import CandidateFamily, Decision, MemoryAccount

INFEASIBLE = "TECHNICALLY_INFEASIBLE"


class Gate(Document, frozen=True, kw_only=True):
    """One set of Compute Units in one representation, and what became of it."""

    representation: str
    nodes: tuple[str, ...]
    status: str
    reasons: tuple[str, ...]
    memory: tuple[MemoryAccount, ...]

    @property
    def key(self) -> str:
        """Name it for samples."""
        return f"{'+'.join(self.nodes)} {self.representation}"


def gates_of(decision: Decision) -> tuple[Gate, ...]:
    """Return the gates of a decision, in its order."""
    return tuple(map(_gate, decision.families))


def _gate(family: CandidateFamily) -> Gate:
    return Gate(
        representation=family.representation,
        nodes=family.node_names,
        status=family.status,
        reasons=family.reasons,
        memory=family.memory,
    )


def of_size(gates: Iterable[Gate], num_nodes: int) -> tuple[Gate, ...]:
    """Return the gates of sets of so many Nodes."""
    return tuple(gate for gate in gates if len(gate.nodes) == num_nodes)


def keep_refusals(arm: Arm, gates: Iterable[Gate], condition: str) -> None:
    """Keep of each gate whether it is technically infeasible, and the worst account behind it in bytes.

    Series: `technically-infeasible` (truth), `needed-bytes` and `available-bytes` (of the account that lacks most; no
    sample where no account is given, so that a refusal without numbers is not taken for one with them).
    """
    for gate in gates:
        arm.truth("technically-infeasible", gate.status == INFEASIBLE, condition=condition, key=gate.key)
        worst = max(
            (account for account in gate.memory if account.available_bytes is not None),
            key=lambda account: account.needed_bytes - (account.available_bytes or 0),
            default=None,
        )
        if worst is not None and worst.available_bytes is not None:
            arm.sample("needed-bytes", worst.needed_bytes, "B", condition=condition, key=gate.key)
            arm.sample("available-bytes", worst.available_bytes, "B", condition=condition, key=gate.key)
