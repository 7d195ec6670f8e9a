"""The program's own log: JSON lines, without secrets, bounded."""

import json
import logging

from backend.process import journal
from backend.process.journal import Journal

log = logging.getLogger("backend.something")


def lines(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_each_line_is_an_object_with_its_fields_and_without_secrets(tmp_path):
    kept = Journal(tmp_path / "logs")
    log.info("job started", extra={"job": "abc", "step": 3, "why": "token=hf_abcdefghijkl failed\nbadly"})
    try:
        raise ValueError("password: hunter22")
    except ValueError:
        log.exception("broke")
    kept.close()
    log.info("after the end")
    first, second = lines(kept.path)
    assert (first["message"], first["job"], first["step"], first["level"]) == ("job started", "abc", 3, "info")
    assert "[redacted]" in first["why"] and "\n" in first["why"]
    assert "ValueError" in second["traceback"]
    assert "hf_abc" not in kept.path.read_text() and "hunter22" not in kept.path.read_text()


def test_it_is_rotated_and_bounded(tmp_path, monkeypatch):
    monkeypatch.setattr(journal, "MAX_BYTES", 2000)
    kept = Journal(tmp_path)
    for index in range(200):
        log.info("x" * 100, extra={"index": index})
    kept.close()
    files = sorted(tmp_path.iterdir())
    assert [path.name for path in files] == ["program.log", *(f"program.log.{number}" for number in (1, 2, 3))]
    assert all(path.stat().st_size <= 2000 for path in files)
    assert lines(kept.path)[-1]["index"] == 199


def test_a_log_that_cannot_be_written_stops_nothing(tmp_path, capsys):
    kept = Journal(tmp_path)
    kept.path.mkdir()
    log.info("into a folder")
    kept.close()
    assert capsys.readouterr().err == ""
