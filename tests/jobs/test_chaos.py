"""Of 40 jobs nothing accepted is lost, whatever dies. `H3_CHAOS_JOBS=1000` runs a longer course of `chaos`."""

import os

import pytest
from chaos import course


@pytest.mark.slow
def test_every_accepted_job_ends_exactly_once(tmp_path, capsys):
    jobs = int(os.environ.get("H3_CHAOS_JOBS", "40"))
    figures = course(tmp_path / "data", jobs=jobs, seconds=45 if jobs < 100 else 170)
    with capsys.disabled():
        print(f"\nchaos: {figures}")
    assert figures["jobs"] == jobs
    assert figures["succeeded"] > jobs / 4
    assert figures["growth"] < 0.10
    assert {"kill", "stop", "cancel waiting", "cancel running", "page closed"} <= set(figures)
