import pytest
import torch

from backend.runtime.frames import to_host


def test_on_a_cpu_chunks_pass_through_in_order():
    chunks = [torch.full((2,), number, dtype=torch.uint8) for number in range(4)]
    assert [each is chunk for each, chunk in zip(to_host(iter(chunks)), chunks, strict=True)] == [True] * 4


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_on_a_gpu_every_chunk_arrives_whole_and_one_is_started_ahead():
    started = []

    def decode():
        for number in range(5):
            started.append(number)
            big = torch.randn(1000, 1000, device="cuda")
            for _ in range(20):
                big = big @ big / 1000
            yield torch.full((1 << 20,), number, dtype=torch.uint8, device="cuda")

    seen = []
    for chunk in to_host(decode()):
        assert bool((chunk == len(seen)).all())
        seen.append(started[-1])
    assert seen == [0, 2, 3, 4, 4]  # the first at once, then one behind
