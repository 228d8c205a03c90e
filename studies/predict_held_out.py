# ruff: noqa: T201 (a script prints its result)
"""Measures errors of predictions for published GPUs that are held out: `python -m studies.predict_held_out`.

In each published setting, predicts each single GPU from the others; then from those of other families, as for a new
GPU: all memory sizes and form factors of one data-centre chip (all A100s) are a family.
"""

import itertools
import math
import re
import statistics
from collections.abc import Iterator
from typing import NamedTuple

from results.recommend.answer import figures_of
from results.recommend.options import Basis, RentalQuestion
from results.recommend.prediction import predict
from results.reference import all_published
from results.reference.gpus import PEAKS
from results.stats import Interval
from results.table.comparable import grouped
from results.text_table import Grid, markdown


class HeldOut(NamedTuple):
    """A published figure and its prediction.

    Attributes:
        kind: Workload and precision.
        family: Whether all GPUs of its family were held out, not only itself.
        error: Natural logarithm of prediction over figure.
        within: Whether the interval of the prediction has the figure.
    """

    kind: str
    family: bool
    error: float
    within: bool


def family_of(gpu: str) -> str:
    """Return the data-centre chip of a GPU, else its name."""
    chip = re.match(r"(?:A|H|V)\d{3}\b", gpu)
    return chip[0] if chip else gpu


def held_out() -> Iterator[HeldOut]:
    """Yield the prediction of each published figure of a single GPU that the others of its setting predict."""
    networks = dict.fromkeys(row["model"] for row in all_published())
    for network, precision in itertools.product(networks, PEAKS):
        options = figures_of(RentalQuestion(network=network, precision=precision), Basis.PUBLISHED)
        ones = [option for option in options if option.count == 1 and option.network == network]
        kind = f"{'transformer' if re.match('bert|gpt|vit', network) else 'convolutional'} {precision}"
        for setting in grouped((option.setting, option) for option in ones).values():
            for option, family in itertools.product(setting, (False, True)):
                others = {
                    of.gpu: of.samples_per_second
                    for of in setting
                    if of is not option and not (family and family_of(of.gpu) == family_of(option.gpu))
                }
                predicted = predict(option.gpu, precision, others)
                if isinstance(predicted, Interval):
                    rate = option.samples_per_second
                    yield HeldOut(kind, family, math.log(predicted.value / rate), predicted.contains(rate))


def main() -> None:
    """Print a table of errors by kind and by what was held out."""
    cells = []
    rows = [((one.family, kind), one) for one in held_out() for kind in ("all", one.kind)]
    for (family, kind), of in sorted(grouped(rows).items()):
        factors = sorted(math.exp(abs(one.error)) for one in of)
        ninth = factors[math.ceil(0.9 * len(factors)) - 1]
        figures = f"{statistics.median(factors) - 1:.1%}", f"{ninth:.2f}", f"{factors[-1]:.2f}"
        cells.append([kind, "family" if family else "GPU", str(len(of)), *figures, str(sum(one.within for one in of))])
    columns = [
        "kind",
        "held out",
        "figures>",
        "median error>",
        "90 % within a factor of>",
        "all within>",
        "in interval>",
    ]
    print(markdown(Grid("", columns, cells)))


if __name__ == "__main__":
    main()
