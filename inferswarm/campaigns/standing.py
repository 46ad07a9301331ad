"""Where an arm stands: what its attempts came to, by the ledger and the waivers, at one point of the ledger.

All attempts of an edition count. One FAIL is the arm's FAIL, however many passed; without one, a PASS is its PASS;
without either the last attempt says. A request that was never finished is INCOMPLETE. A waiver makes WAIVED of
whatever is not a PASS, until it expires.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Literal, NamedTuple

from inferswarm.campaigns.records import Disposition, LedgerEntry, Waiver
from inferswarm.campaigns.spec import ArmSpec, CampaignSpec

ArmState = Literal["PASS", "FAIL", "INCOMPLETE", "BLOCKED", "WAIVED"]
WAIVER_PREFIX = "waiver:"
"""Before the digest of a waiver, where a request names what it rests on."""


class GivenWaiver(NamedTuple):
    """A waiver with its digest and its line in the ledger."""

    waiver: Waiver
    digest: str
    sequence: int


class ArmStanding(NamedTuple):
    """Where one arm stands, with and without a waiver."""

    arm: str
    state: ArmState
    without_waiver: Disposition
    attempts: int
    carriers: tuple[str, ...]
    """The runs that passed, or `waiver:` and the digests of waivers in force: what others may rest on."""


class Footing(NamedTuple):
    """What an arm that comes after others may rest on: for each of them that carries, what carries."""

    carriers: tuple[tuple[str, ...], ...]
    lacking: tuple[str, ...]
    """Those that do not carry, each with its state. Where there are any, the arm is BLOCKED."""

    @property
    def named(self) -> tuple[str, ...]:
        """Return what a request names as its predecessors: of each what carries last."""
        return tuple(carriers[-1] for carriers in self.carriers)

    def allows(self, predecessors: Sequence[str]) -> bool:
        """Return whether a request may name these."""
        both = zip(predecessors, self.carriers, strict=False)
        return len(predecessors) == len(self.carriers) and all(name in carriers for name, carriers in both)


def standing_of(
    arm: str, campaign: str, edition: int, entries: Iterable[LedgerEntry], waivers: Iterable[GivenWaiver], at: int
) -> ArmStanding:
    """Return where an arm stands after these entries, at a time of day in nanoseconds."""
    attempts: dict[str, Disposition] = {}
    last_sequence = -1
    for entry in entries:
        last_sequence = entry.sequence
        if (entry.campaign, entry.edition, entry.arm) != (campaign, edition, arm):
            continue
        if entry.kind == "requested":
            attempts.setdefault(entry.run_id, "INCOMPLETE")
        elif entry.kind == "finished" and entry.run_id in attempts:
            # Two lines for one run contradict each other; neither can make the other unsaid.
            said = attempts[entry.run_id], entry.disposition or "INCOMPLETE"
            attempts[entry.run_id] = "FAIL" if "FAIL" in said else said[1]
    disposition = _disposition(tuple(attempts.values()))
    if disposition == "PASS":
        passed = tuple(run_id for run_id, state in attempts.items() if state == "PASS")
        return ArmStanding(arm, "PASS", disposition, len(attempts), passed)
    waived = tuple(
        WAIVER_PREFIX + given.digest
        for given in waivers
        if (given.waiver.campaign, given.waiver.edition, given.waiver.arm) == (campaign, edition, arm)
        and given.sequence <= last_sequence
        and int(given.waiver.at) <= at < int(given.waiver.expires_at)
    )
    return ArmStanding(arm, "WAIVED" if waived else disposition, disposition, len(attempts), waived)


def _disposition(attempts: Sequence[Disposition]) -> Disposition:
    if "FAIL" in attempts:
        return "FAIL"
    if "PASS" in attempts:
        return "PASS"
    return attempts[-1] if attempts else "INCOMPLETE"


def footing_of(
    arm: ArmSpec, campaign: CampaignSpec, entries: Sequence[LedgerEntry], waivers: Sequence[GivenWaiver], at: int
) -> Footing:
    """Return what an arm rests on if it is requested after these entries, at a time of day in nanoseconds."""
    standings = [standing_of(name, campaign.campaign, campaign.edition, entries, waivers, at) for name in arm.after]
    return Footing(
        carriers=tuple(standing.carriers for standing in standings if standing.carriers),
        lacking=tuple(
            f"{item.arm} ({item.state}, {item.attempts} attempts)" for item in standings if not item.carriers
        ),
    )
