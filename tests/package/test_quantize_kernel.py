"""dfa.quantize's two kernels give the bits of its operators: interpreted on a processor, and as they are on a GPU."""

import importlib.util
import os
import subprocess
import sys

import pytest

torch = pytest.importorskip("torch")

from dfa import _torch_quantize as ours  # noqa: E402

if importlib.util.find_spec("triton") is None:
    pytest.skip("no Triton", allow_module_level=True)
SHAPES = [(2, 4, 33, 20), (1, 6, 130, 64), (1, 1, 1, 1)]


def laid_out(x, kind):
    """x as it is, of [b, s, h, d], with a head of zeros and a NaN, or by columns, tiny, with an infinity."""
    if kind == 1:
        return x.transpose(1, 2).contiguous().transpose(1, 2)
    if kind == 2:
        x[0, 0], x[-1, -1, -1, -1] = 0, float("nan")
    if kind == 3:
        x = (x * 1e-4).transpose(2, 3).contiguous().transpose(2, 3)
        x[0, 0, 0, 0] = float("inf")
    return x


def hold(device, dtype):
    """dtype: of the kernels' output; the interpreter's own rounding to 8 bits is not the hardware's."""
    by_kernels = ours._kernels()
    torch.manual_seed(3)
    same = lambda a, b: torch.equal(a.float().nan_to_num(-1), b.float().nan_to_num(-1))  # noqa: E731
    for of in (torch.bfloat16, torch.float64) if device == "cpu" else (torch.float32, torch.bfloat16, torch.float16, torch.float64):
        for shape in SHAPES:
            for kind in range(4):
                x = laid_out(torch.randn(shape, device=device).to(of), kind)
                for scale, heads, block in (("tensor", None, 0), ("head", 1, 0), ("head", shape[1], 0), ("head", 1, 64), ("head", shape[1], 64)):
                    codes, largest = by_kernels(x, heads, block, dtype)
                    ours._takes_kernels = lambda x: False
                    wanted, factors = ours.quantize(x, scale, heads=heads, descale_rows=block or None)
                    assert same(codes.to(ours.E4M3), wanted) and codes.shape == x.shape, (of, shape, kind, scale, heads, block)
                    assert same(ours._factors(largest).reshape(factors.shape), factors), (of, shape, kind, scale, heads, block)


def test_interpreted():
    script = "import sys; sys.path.insert(0, sys.argv[1]); import torch, test_quantize_kernel as t; t.hold('cpu', torch.float32)"
    run = subprocess.run([sys.executable, "-c", script, os.path.dirname(__file__)], capture_output=True, text=True, timeout=300,
                         env=os.environ | {"TRITON_INTERPRET": "1"})
    assert run.returncode == 0, run.stderr[-2000:]


@pytest.mark.skipif(not torch.cuda.is_available() or torch.cuda.get_device_capability() < (8, 9), reason="no GPU of 8.9 or later")
def test_on_a_gpu(monkeypatch):
    monkeypatch.setattr(ours, "_takes_kernels", ours._takes_kernels)  # put back behind the test
    hold("cuda", ours.E4M3)
