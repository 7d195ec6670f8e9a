import pytest
import torch
from diffusers.modular_pipelines.minimax_h3.encoders import get_qwen3vl_prompt_embeds
from transformers import Qwen3VLForConditionalGeneration

from backend.runtime.conditioner import Conditioner, content_key, cut

LAYER = 50


class Processor:
    def create_mm_token_type_ids(self, rows):
        return [[0] * len(row) for row in rows]


@pytest.fixture
def text_encoder(tiny_checkpoint):
    return Qwen3VLForConditionalGeneration.from_pretrained(tiny_checkpoint / "text_encoder", dtype=torch.float32).eval()


def embeds(text_encoder, tokens):
    return get_qwen3vl_prompt_embeds(text_encoder, Processor(), tokens, {}, LAYER, torch.device("cpu"), torch.float32)


def test_cut_and_remembered_is_the_same_hidden_state(text_encoder):
    expected = embeds(text_encoder, [5, 9, 2, 2, 31])
    before = sum(1 for _ in text_encoder.parameters())
    cut(text_encoder, LAYER)
    conditioner = Conditioner(text_encoder, LAYER, remember=True)
    assert sum(1 for _ in text_encoder.parameters()) < before
    for _ in range(2):
        assert torch.equal(embeds(text_encoder, [5, 9, 2, 2, 31]), expected)
    assert conditioner.encodings == 1
    assert not torch.equal(embeds(text_encoder, [5, 9, 2, 2, 30]), expected)
    assert conditioner.encodings == 2


def test_a_remembered_answer_needs_no_weights(text_encoder):
    cut(text_encoder, LAYER)
    brought = []
    Conditioner(text_encoder, LAYER, remember=True, bring=lambda: brought.append(1))
    embeds(text_encoder, [1, 2, 3])
    embeds(text_encoder, [1, 2, 3])
    assert brought == [1]


def test_without_memory_every_call_runs(text_encoder):
    cut(text_encoder, LAYER)
    conditioner = Conditioner(text_encoder, LAYER, remember=False)
    embeds(text_encoder, [1, 2, 3])
    embeds(text_encoder, [1, 2, 3])
    assert conditioner.encodings == 2


def test_the_least_recent_answers_are_let_go(text_encoder, monkeypatch):
    monkeypatch.setattr("backend.runtime.conditioner.CACHE_BYTES", 2 * 3 * 32 * 4)  # two prompts of three tokens
    cut(text_encoder, LAYER)
    conditioner = Conditioner(text_encoder, LAYER, remember=True)
    for tokens in ([1, 2, 3], [4, 5, 6], [1, 2, 3], [7, 8, 9], [1, 2, 3]):
        embeds(text_encoder, tokens)
    assert conditioner.encodings == 3
    embeds(text_encoder, [4, 5, 6])
    assert conditioner.encodings == 4


def test_the_key_is_of_content():
    first = {"input_ids": torch.tensor([[1, 2]]), "pixel_values": torch.zeros(2, 3), "use_cache": False}
    assert content_key(first) == content_key({name: first[name] for name in reversed(first)})
    for change in (
        {"pixel_values": torch.zeros(3, 2)},
        {"pixel_values": torch.zeros(2, 3, dtype=torch.float16)},
        {"pixel_values": torch.tensor([[0, 0, 0], [0, 0, 1e-30]])},
        {"input_ids": torch.tensor([[2, 1]])},
        {"use_cache": True},
    ):
        assert content_key(first | change) != content_key(first)


def test_a_conditioner_that_is_too_short_is_refused(text_encoder):
    with pytest.raises(ValueError, match="layer=99: the conditioner has only"):
        cut(text_encoder, 99)
