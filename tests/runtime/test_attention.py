import pytest
import torch

from backend.errors import Unavailable
from backend.runtime import attention

CPU = torch.device("cpu")


def test_auto_on_a_cpu_is_what_diffusers_calls():
    chosen = attention.choose(CPU, torch.float32)
    query, key, value = torch.randn(3, 1, 50, 4, 16)
    expected = torch.nn.functional.scaled_dot_product_attention(
        *(each.transpose(1, 2) for each in (query, key, value))
    ).transpose(1, 2)
    assert chosen.name == "sdpa"
    assert torch.equal(chosen(query, key, value), expected)


def test_an_unknown_kernel_is_an_error_that_lists_the_known():
    with pytest.raises(Unavailable, match=r"attention=fa9.*fa3, fa4, fa2, cudnn"):
        attention.choose(CPU, torch.float32, "fa9")


def test_an_impossible_kernel_is_an_error_with_the_reason():
    with pytest.raises(Unavailable, match=r"attention=fa3: does not work here \(fa3: needs a CUDA device, found cpu\)"):
        attention.choose(CPU, torch.bfloat16, "fa3")


def test_every_kernel_says_what_it_is_and_whether_it_works():
    found = attention.survey(CPU, torch.float32)
    assert tuple(found) == attention.NAMES
    assert found["math"] == "works"
    assert found["cudnn"].startswith("needs bfloat16 or float16")
    assert all(kernel.requirement and kernel.layout and kernel.precision for kernel in attention.KERNELS)


@pytest.mark.parametrize(
    ("function", "reason"),
    [
        (lambda q, k, v: v, "wrong result"),
        (lambda q, k, v: torch.full_like(v, float("nan")), "wrong result"),
        (lambda q, k, v: (_ for _ in ()).throw(RuntimeError("no kernel image")), "refuses: no kernel image"),
    ],
)
def test_a_kernel_that_is_wrong_or_refuses_is_not_trusted(function, reason):
    kernel = attention.Kernel("bad", "any", "any", "any", (torch.float32,), (), None, lambda: function)
    assert reason in attention.tried(kernel, CPU, torch.float32, 16)


def test_a_package_that_cannot_be_imported_is_a_reason():
    def load():
        raise ImportError("libcudart.so.13 not found")

    kernel = attention.Kernel("bad", "any", "any", "any", (torch.float32,), (), None, load)
    assert attention.tried(kernel, CPU, torch.float32, 16) == "cannot be imported: libcudart.so.13 not found"


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_on_a_gpu_the_fastest_that_works_is_chosen():
    device = torch.device("cuda")
    works = attention.survey(device, torch.bfloat16)
    chosen = attention.choose(device, torch.bfloat16)
    assert works[chosen.name] == "works"
    if torch.cuda.get_device_capability()[0] == 9 and works["fa3"] == "works":
        assert chosen.name == "fa3"
