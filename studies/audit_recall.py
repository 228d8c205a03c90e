"""Measures recall and false positives of the audit by size of a table: writes docs/validation/audit.csv.

    python -m studies.audit_recall [--draws 40] [--seed 15] [--write]

Honest tables are the trusted rows shipped with tfbench, grouped by source, framework and GPU, unless no GPU has
specifications. A table of N GPUs has N random GPUs of an honest table. All rows of its source are excluded from the
reference. A fault is found if there is a finding above a note that the honest table does not have.
"""

import argparse
import contextlib
import csv
import random
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from operator import attrgetter
from pathlib import Path

from results.audit.claims import Claim, Severity, read_throughputs
from results.audit.judgement import (
    Reference,
    claim_findings,
    flop_ratio,
    reference_of,
    trusted_claims,
    trusted_reference,
)
from results.errors import NotATable
from tests.support.audit_tables import NO_THROUGHPUTS, READABLE

Table = list[Claim]

Mutation = Callable[[Table, random.Random], Table | None]
"""Returns a table of the same length with a fault; None: the fault is not possible in this table."""

NOISE = 0.03
SAME_WORK = 1.4
"""Networks whose FLOPs differ by a smaller factor have either order in honest tables, so swapping them is undetectable:
Inception v4 and ResNet152, BERT-Large with 384 and 512 tokens."""


@dataclass(frozen=True)
class HonestTable:
    """A published table and the references for auditing it."""

    name: str
    claims: Table
    without_rows: Reference
    without_source: Reference


def setting(claim: Claim, name: str) -> str:
    return next((text.partition("=")[2] for text in claim.group if text.startswith(f"{name}=")), "")


def honest_tables() -> list[HonestTable]:
    """Return the trusted rows as tables by source, by framework and by GPU."""
    found: dict[tuple[Claim, ...], HonestTable] = {}
    keys: tuple[Callable[[Claim], tuple[str, ...]], ...] = (
        lambda claim: (setting(claim, "source"),),
        lambda claim: (setting(claim, "source"), setting(claim, "framework")),
        lambda claim: (setting(claim, "source"), setting(claim, "framework"), claim.gpu_text, setting(claim, "xla")),
    )
    trusted = [claim for claim in trusted_claims() if setting(claim, "source")]  # not the project's own
    for key in keys:
        by_name: dict[tuple[str, ...], Table] = {}
        for claim in trusted:
            by_name.setdefault(key(claim), []).append(claim)
        for name, claims in by_name.items():
            rows = [claim for claim in trusted if claim not in claims]
            others = [claim for claim in rows if setting(claim, "source") != name[0]]
            if len(claims) >= 8 and any(claim.gpus for claim in claims) and tuple(claims) not in found:
                references = (reference_of(part) for part in (rows, others))
                found[tuple(claims)] = HonestTable(", ".join(filter(None, name)), as_one_table(claims), *references)
    return list(found.values())


PARTS = *map(attrgetter, ("row", "gpu_text", "model", "num_gpus")), attrgetter("gpu_text", "precision")
"""Keys for selecting a part of a table: rows, GPUs, networks, GPU counts or columns."""


def small_part(claims: Table, chance: random.Random) -> Table:
    """Return a few rows, GPUs, networks, GPU counts or columns of a table, as people quote it."""
    key = chance.choice(PARTS)
    labels = sorted({key(claim) for claim in claims}, key=str)
    most = 12 if key is PARTS[0] else 3
    chosen = set(chance.sample(labels, min(len(labels), chance.randint(1, most))))
    part = [claim for claim in claims if key(claim) in chosen]
    models = sorted({claim.model for claim in part})
    if len(part) > most and chance.random() < 0.5:
        kept = set(chance.sample(models, min(2, len(models))))
        part = [claim for claim in part if claim.model in kept]
    return part


def false_alarms(tables: Sequence[HonestTable], draws: int, seed: int) -> list[tuple[str, str]]:
    """Return the rules with findings above a note in small parts of honest tables, with the name of the table."""
    chance, found = random.Random(f"{seed} parts"), []
    for _ in range(draws):
        table = chance.choice(tables)
        alarms = above_notes(small_part(table.claims, chance), table.without_source)
        found += [(table.name, rule) for rule in sorted({rule for rule, _ in alarms})]
    return found


def as_one_table(claims: Sequence[Claim]) -> Table:
    """Return a table without its software, because most published tables mix software."""
    return [claim._replace(software=()) for claim in claims]


def scaled(claims: Table, chosen: Callable[[Claim], bool], factor: Callable[[Claim], float]) -> Table:
    return [claim._replace(rate=claim.rate * factor(claim)) if chosen(claim) else claim for claim in claims]


def swapped_networks(claims: Table, chance: random.Random) -> Table | None:
    column = chance.choice([(claim.group, claim.precision) for claim in claims])
    cells = [claim for claim in claims if (claim.group, claim.precision) == column]
    one, other = chance.choice(cells).model, chance.choice(cells).model
    rates = {(claim.model, claim.num_gpus): claim.rate for claim in cells}
    partner = {one: other, other: one}
    shared = {n for n in {cell.num_gpus for cell in cells} if {(one, n), (other, n)} <= set(rates)}
    if not shared or 1 / SAME_WORK < flop_ratio(one, other) < SAME_WORK:
        return None
    return [
        claim._replace(rate=rates[partner[claim.model], claim.num_gpus])
        if (claim.group, claim.precision) == column and (partner.get(claim.model), claim.num_gpus) in rates
        else claim
        for claim in claims
    ]


def cell_times_10(claims: Table, chance: random.Random) -> Table:
    cell = chance.choice(claims)
    return scaled(claims, lambda claim: claim is cell, lambda _: 10)


def per_gpu(claims: Table, _: random.Random) -> Table | None:
    if max(claim.num_gpus for claim in claims) < 2 or min(claim.num_gpus for claim in claims) > 1:
        return None
    return scaled(claims, lambda _: True, lambda claim: 1 / claim.num_gpus)


def fp16_twice_fp32(claims: Table, _: random.Random) -> Table | None:
    single = {(c.group, c.model, c.num_gpus): c.rate for c in claims if c.precision in ("fp32", "tf32")}
    twice = [c for c in claims if c.precision == "fp16" and (c.group, c.model, c.num_gpus) in single]
    half = {id(c): single[c.group, c.model, c.num_gpus] for c in twice}
    return scaled(claims, lambda c: id(c) in half, lambda c: 2 * half[id(c)] / c.rate) if len(twice) >= 4 else None


def column_times(factor: float) -> Mutation:
    """Scale all rows of a GPU model, or those with one of its GPU counts."""

    def mutate(claims: Table, chance: random.Random) -> Table | None:
        gpus = sorted({claim.gpu_text for claim in claims if claim.gpus})
        counts = sorted({claim.num_gpus for claim in claims})
        if len(gpus) > 1 and (len(counts) == 1 or chance.random() < 0.5):
            gpu = chance.choice(gpus)
            return scaled(claims, lambda claim: claim.gpu_text == gpu, lambda _: factor)
        group = chance.choice(claims).group
        own = sorted({claim.num_gpus for claim in claims if claim.group == group})
        if len(own) < 2:
            return None
        count = chance.choice(own)
        return scaled(claims, lambda claim: (claim.group, claim.num_gpus) == (group, count), lambda _: factor)

    return mutate


def copied_column(noise: float = 0.0, factors: Sequence[float] = ()) -> Mutation:
    """Replace the throughputs of a GPU model by those of another, or a multiple of them, in all common cells."""

    def mutate(claims: Table, chance: random.Random) -> Table | None:
        gpus = sorted({claim.gpu_text for claim in claims if claim.gpus})
        if len(gpus) < 2:
            return None
        source, target = chance.sample(gpus, 2)
        models = [{gpu for c in claims if c.gpu_text == name for gpu in c.gpus} for name in (source, target)]
        if models[0] & models[1]:
            return None  # two names of one GPU model
        factor = chance.choice(factors) if factors else 1.0
        rates = {(c.model, c.precision, c.num_gpus): c.rate * factor for c in claims if c.gpu_text == source}
        mutated = [
            c._replace(
                rate=round(rates[c.model, c.precision, c.num_gpus] * (1 + noise * chance.gauss(0, 1)), 2),
                last_place=0.01,
            )
            if c.gpu_text == target and (c.model, c.precision, c.num_gpus) in rates
            else c
            for c in claims
        ]
        return mutated if sum(new is not old for new, old in zip(mutated, claims, strict=True)) >= 4 else None

    return mutate


def wrong_gpu_count(claims: Table, chance: random.Random) -> Table | None:
    """Halve or double a GPU count in all rows of a GPU model with that count, or in one row."""
    cell = chance.choice(claims)
    if not any(claim.group == cell.group and claim.num_gpus != cell.num_gpus for claim in claims):
        return None
    count = chance.choice([cell.num_gpus * 2, cell.num_gpus // 2 or cell.num_gpus * 2])
    whole = chance.random() < 0.5
    return [
        claim._replace(num_gpus=count)
        if claim is cell or (whole and (claim.group, claim.num_gpus) == (cell.group, cell.num_gpus))
        else claim
        for claim in claims
    ]


MUTATIONS: dict[str, Mutation] = {
    "swapped networks": swapped_networks,
    "cell × 10": cell_times_10,
    "table × 10": lambda claims, _: scaled(claims, lambda _: True, lambda _: 10),
    "per GPU instead of total": per_gpu,
    "fp16 = 2 × fp32": fp16_twice_fp32,
    "column × 2": column_times(2.0),
    "column ÷ 2": column_times(0.5),
    "column copied exactly": copied_column(),
    "column × 1.25 to 3 of another GPU": copied_column(factors=(1.25, 1.5, 1.55, 2.0, 3.0)),
    "column copied with 3 % noise": copied_column(NOISE),
    "wrong GPU count": wrong_gpu_count,
}


def false_alarms_in_documents() -> list[str]:
    """Return the honest documents with a finding above a note, or read as throughputs though they have none."""
    alarms = []
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "table.txt"
        for name, (text, *_) in (READABLE | NO_THROUGHPUTS).items():
            path.write_text(text, encoding="utf-8")
            try:
                alarms += (
                    [name]
                    if above_notes(read_throughputs(path).claims, trusted_reference()) or name in NO_THROUGHPUTS
                    else []
                )
            except NotATable:
                alarms += [name] if name in READABLE else []
    return alarms


def above_notes(claims: Sequence[Claim], reference: Reference) -> set[tuple[str, tuple[int, ...]]]:
    """Return the rule and the rows of findings above a note."""
    found = claim_findings(claims, reference)
    return {(finding.rule, finding.rows) for finding in found if finding.severity is not Severity.NOTE}


def is_found(table: Table, mutated: Table, reference: Reference) -> bool:
    """Return whether a fault in a table is found."""
    return bool(above_notes(mutated, reference) - above_notes(table, reference))


def some_gpus(claims: Table, size: int | None, chance: random.Random) -> Table | None:
    """Return the rows of `size` random GPUs of a table; None: it has fewer."""
    gpus = sorted({claim.gpu_text for claim in claims})
    if size is None or len(gpus) < size:
        return claims if size is None else None
    chosen = set(chance.sample(gpus, size))
    return [claim for claim in claims if claim.gpu_text in chosen]


def recall(
    kind: str, size: int | None, tables: Sequence[HonestTable], draws: int, seed: int, *, known: bool = False
) -> tuple[int, int]:
    """Return the number of faults found and the number of faults in tables of `size` GPUs.

    Args:
        kind: A key of `MUTATIONS`.
        size: GPUs of a table; None: all.
        tables: Tables to draw from.
        draws: Maximum number of faults.
        seed: Seed of the draws.
        known: Whether the reference includes the honest figures of the table's GPUs, as for a user's table.
    """
    chance, found, tried = random.Random(f"{seed} {kind} {size}"), 0, 0
    for _ in range(20 * draws):
        table = chance.choice(tables)
        part = some_gpus(table.claims, size, chance)
        mutated = MUTATIONS[kind](part, chance) if part else None
        if part is None or mutated is None:
            continue
        reference = trusted_reference() if known else table.without_source
        found += is_found(part, mutated, reference)
        tried += 1
        if tried == draws:
            break
    return found, tried


SIZES: dict[str, int | None] = {"1": 1, "2": 2, "3": 3, "6": 6, "all": None}
"""GPUs of a table, as the column `gpus` names them."""

TABLE = Path(__file__).parents[1] / "docs" / "validation" / "audit.csv"

RecallRow = tuple[str, str, int, int]
"""Fault, GPUs of the table, faults found, faults tried."""


def rows(draws: int, parts: int, seed: int) -> Iterator[RecallRow]:
    """Yield the rows of the table: a fault in tables of a size; last, what has no fault and should have no finding.

    The reference excludes the source of a table, except of faults "of GPUs in the reference".
    """
    tables = honest_tables()
    kinds = [(kind, False) for kind in MUTATIONS] + [("column × 2", True), ("column ÷ 2", True)]
    for kind, known in kinds:
        for name, size in SIZES.items():
            found, tried = recall(kind, size, tables, draws, seed, known=known)
            if tried:
                yield f"{kind}, of GPUs in the reference" if known else kind, name, found, tried
    alarms = sum(bool(above_notes(table.claims, table.without_source)) for table in tables)
    yield "none: honest tables", "all", alarms, len(tables)
    yield "none: parts of honest tables", "1 to 4", len(false_alarms(tables, parts, seed)), parts
    documents = len(READABLE | NO_THROUGHPUTS)
    yield "none: documents of other kinds", "all", len(false_alarms_in_documents()), documents


def main() -> None:
    """Print the table, or write it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--draws", type=int, default=40, help="faults of each kind and size; default: %(default)s")
    parser.add_argument("--seed", type=int, default=15)
    parser.add_argument("--parts", type=int, default=2000, help="small parts of honest tables; default: %(default)s")
    parser.add_argument("--write", action="store_true", help="write docs/validation/audit.csv")
    parsed = parser.parse_args()
    with TABLE.open("w", encoding="utf-8", newline="") if parsed.write else contextlib.nullcontext(sys.stdout) as out:
        writer = csv.writer(out, lineterminator="\n")
        writer.writerow(("fault", "gpus", "found", "tried"))
        writer.writerows(rows(parsed.draws, parsed.parts, parsed.seed))


if __name__ == "__main__":
    main()
