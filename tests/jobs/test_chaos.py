"""The short course of `chaos`: nothing accepted is lost, whatever dies."""

import pytest
from chaos import course


@pytest.mark.slow
def test_every_accepted_job_ends_exactly_once(tmp_path, capsys):
    figures = course(tmp_path / "data", jobs=40, seconds=60)
    with capsys.disabled():
        print(f"\nchaos: {figures}")
    assert figures["jobs"] == 40
    assert figures["succeeded"] > 10
    assert figures["rss_mib"] < 400
