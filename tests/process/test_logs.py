import os

import pytest

from backend.process import logs


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("token hf_AbCdEfGhIjKlMnOp used", "token hf_[redacted] used"),
        ("Authorization: Bearer abcdef.ghijkl-123", "Authorization: Bearer [redacted]"),
        ("HF_TOKEN=qwertyuiop12", "HF_TOKEN=[redacted]"),
        ('password: "hunter22"', 'password: "[redacted]"'),
        ("get https://me:s3cret@host/x", "get https://[redacted]@host/x"),
        ("1344x768, 243 frames, sk_", "1344x768, 243 frames, sk_"),
        ("tokenizer: Qwen2TokenizerFast", "tokenizer: Qwen2TokenizerFast"),
    ],
)
def test_secrets_do_not_reach_the_page(text, shown):
    assert logs.redact(text) == shown


def test_tail_is_the_last_lines_and_redacted(tmp_path):
    path, descriptor = logs.open_log(tmp_path, "run", 1)
    os.write(descriptor, b"".join(b"line %d\n" % i for i in range(10_000)) + b"hf_ABCDEFGHIJKL\xff\n")
    logs.close(descriptor)
    assert logs.tail(path, 3).splitlines() == ["line 9998", "line 9999", "hf_[redacted]�"]
    assert path.stat().st_mode & 0o077 == 0
    assert logs.tail(tmp_path / "absent") == ""


def test_a_log_that_is_still_written_is_rotated_and_goes_on(tmp_path):
    path, descriptor = logs.open_log(tmp_path, "run", 0)
    os.write(descriptor, b"x" * (logs.MAX_LOG_BYTES + 1))
    assert logs.rotate(path)
    os.write(descriptor, b"after\n")
    logs.close(descriptor)
    assert path.read_bytes() == b"after\n"
    assert (tmp_path / "run-rank0.log.1").stat().st_size == logs.MAX_LOG_BYTES + 1
    assert not logs.rotate(path)


def test_old_logs_are_pruned_and_new_ones_kept(tmp_path):
    for number in range(logs.KEPT_FILES + 5):
        path, descriptor = logs.open_log(tmp_path, f"run{number:03}", 0)
        logs.close(descriptor)
        os.utime(path, (number, number))
    names = [path.name for path in logs.listing(tmp_path)]
    assert names == [f"run{n:03}-rank0.log" for n in range(logs.KEPT_FILES + 4, 4, -1)]
