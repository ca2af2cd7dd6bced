"""Sums of parts: Triton's kernel, in its interpreter, and PyTorch's operators against float64."""

import importlib.util
import os
import subprocess
import sys

import pytest

torch = pytest.importorskip("torch")

PLACES = ((0, 37), (5, 20), (20, 17), (0, 9))  # (first row, rows) of up to four parts of 37 rows


def drawn(count, dtype, weighted, turned):
    """(like, parts): rows that no part has, parts of no weight, parts that are slices, a sum in float32."""
    from dfa._distributed_merge import Part
    draw = torch.Generator().manual_seed(count)
    like = torch.zeros(2, 37, 3, 40, dtype=dtype).transpose(1, 2) if turned else torch.zeros(2, 3, 37, 40, dtype=dtype)
    parts = []
    for at, (begin, rows) in enumerate(PLACES[:count]):
        rows = rows if at or count < 3 else 30
        x = torch.randn(2, 3, rows + 4, 40, generator=draw).to(dtype)[:, :, 2:2 + rows]
        x = x.float() if at == 0 and count == 4 else x
        lse = torch.randn(2, 3, rows, generator=draw) * 3 if weighted else None
        if weighted:
            lse[:, :, 1], x[:, :, 1] = -torch.inf, 0
            lse[:, :, 2] += 200  # the sum must not leave float32's range
        parts.append(Part(begin, x, lse))
    return like, parts


def right(like, parts, sinks):
    total = torch.zeros(like.shape, dtype=torch.float64)
    if parts[0].lse is None:
        for part in parts:
            total[:, :, part.begin:part.end()] += part.x
        return total, None
    lse = torch.full(like.shape[:3], -torch.inf, dtype=torch.float64)
    for part in parts:
        lse[:, :, part.begin:part.end()] = torch.logaddexp(lse[:, :, part.begin:part.end()], part.lse.double())
    lse = lse if sinks is None else torch.logaddexp(lse, sinks.double().view(1, -1, 1))
    for part in parts:
        rows = slice(part.begin, part.end())
        weight = torch.where(lse[:, :, rows].isneginf(), 0, (part.lse.double() - lse[:, :, rows]).exp())
        total[:, :, rows] += part.x.double() * weight.unsqueeze(3)
    return total, lse


def hold(add):
    for dtype in (torch.float32, torch.bfloat16, torch.float16):
        for count in (1, 2, 3, 4):
            for weighted in (False, True):
                like, parts = drawn(count, dtype, weighted, turned=count % 2 == 0)
                sinks = torch.tensor([0.5, -2.0, 8.0]) if weighted and count % 2 else None
                wanted, wanted_lse = right(like, parts, sinks)
                for out in {dtype, torch.float32}:
                    got, lse = add(parts, like, out, weighted, sinks)
                    assert got.dtype == out and got.shape == like.shape
                    step = {torch.float32: 2 ** -20, torch.bfloat16: 2 ** -7, torch.float16: 2 ** -10}[out]
                    step += 200 * 2 ** -22 if weighted else 0  # what float32 rounds off an lse of 200, of its weight
                    assert (got.double() - wanted).abs().max() <= step * wanted.abs().max(), (dtype, count, weighted, out)
                    if weighted:
                        assert torch.equal(lse.isneginf(), wanted_lse.isneginf())
                        seen = ~wanted_lse.isneginf()
                        assert ((lse.double() - wanted_lse)[seen].abs() <= 1e-5 * (1 + wanted_lse[seen].abs())).all()


def test_parts_are_added_by_operators():
    from dfa._distributed_merge import _by_operators
    hold(_by_operators)


@pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="no Triton")
def test_parts_are_added_by_the_kernel():
    script = "import sys; sys.path.insert(0, sys.argv[1]); import test_distributed_merge as t; from dfa._distributed_kernel import add; t.hold(add)"
    run = subprocess.run([sys.executable, "-c", script, os.path.dirname(__file__)], capture_output=True, text=True, timeout=300,
                         env=os.environ | {"TRITON_INTERPRET": "1"})
    assert run.returncode == 0, run.stderr[-2000:]


def test_many_parts_are_added_a_few_at_a_time():
    from dfa._distributed_merge import Parts
    like = torch.zeros(1, 2, 11, 8)
    draw = torch.Generator().manual_seed(1)
    parts = [(torch.randn(1, 2, 11, 8, generator=draw), torch.randn(1, 2, 11, generator=draw)) for _ in range(11)]
    weighted, plain = Parts(like, weighted=True), Parts(like, weighted=False)
    for x, lse in parts:
        weighted.add(0, x, lse)
        plain.add(0, x)
    lse = torch.stack([one for _, one in parts]).double()
    wanted = (torch.stack([x for x, _ in parts]).double() * lse.softmax(0).unsqueeze(4)).sum(0)
    got, got_lse = weighted.result()
    assert torch.allclose(got.double(), wanted, atol=1e-6) and torch.allclose(got_lse.double(), lse.logsumexp(0), atol=1e-6)
    assert torch.allclose(plain.result()[0].double(), sum(x.double() for x, _ in parts), atol=1e-5)


def test_a_part_of_all_rows_is_given_as_it_is():
    from dfa._distributed_merge import Parts
    x, lse = torch.randn(1, 2, 5, 8), torch.randn(1, 2, 5)
    one = Parts(torch.zeros(1, 2, 5, 8), weighted=True)
    one.add(0, x, lse)
    got, got_lse = one.result()
    assert got is x and got_lse is lse


def test_no_parts_are_a_sum_of_nothing():
    from dfa._distributed_merge import Parts
    o, lse = Parts(torch.ones(1, 2, 5, 8), weighted=True).result()
    assert not o.any() and lse.isneginf().all()
