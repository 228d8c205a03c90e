from __future__ import annotations

import time

from tfbench.outcomes.findings import Phases


def test_a_phase_is_announced_and_measured_until_the_next_and_counts_once(capsys):
    phases = Phases()
    phases.enter("checking")
    time.sleep(0.02)
    phases.enter("compiling")
    spun = time.process_time()
    while time.process_time() - spun < 0.02:
        pass
    phases.enter("checking")
    time.sleep(0.01)
    phases.enter("writing")
    assert capsys.readouterr().err.splitlines() == [
        f"tfbench: state {name}" for name in ("checking", "compiling", "checking", "writing")
    ]
    checking, compiling = phases.ended()
    assert (checking.name, compiling.name) == ("checking", "compiling")
    assert checking.seconds >= 0.03
    assert compiling.cpu_seconds >= 0.02 > checking.cpu_seconds
