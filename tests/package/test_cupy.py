"""dfa.attention on CuPy arrays: on a GPU where CuPy is, and with a stand-in for it anywhere."""

import importlib
import sys
import types

import numpy as np
import pytest

import dfa
from test_numpy import TOLERANCE, error, exact, inputs


def cupy_with_a_gpu():
    cupy = pytest.importorskip("cupy")
    try:
        cupy.cuda.runtime.getDeviceCount()
    except cupy.cuda.runtime.CUDARuntimeError as reason:
        pytest.skip(f"CuPy sees no GPU: {reason}")
    return cupy


@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize("mask", [{}, {"causal": True}, {"window": (5, 3)}])
def test_o_and_lse_on_a_gpu_are_those_of_float64(dtype, mask):
    cupy = cupy_with_a_gpu()
    q, k, v = inputs(1, dtype=dtype)
    o, lse = dfa.attention(*(cupy.asarray(x) for x in (q, k, v)), return_lse=True, **mask)
    wanted, wanted_lse = exact(q, k, v, **mask)
    assert isinstance(o, cupy.ndarray) and o.dtype == q.dtype and o.shape == wanted.shape
    assert error(cupy.asnumpy(o), wanted) < TOLERANCE[dtype]
    assert error(cupy.asnumpy(lse), wanted_lse) < 1e-4 * (1 + np.abs(wanted_lse).max())


def test_rows_before_heads_on_a_gpu():
    cupy = cupy_with_a_gpu()
    q, k, v = (np.ascontiguousarray(x.transpose(0, 2, 1, 3)) for x in inputs(2, dtype="float16"))
    o = dfa.attention(*(cupy.asarray(x).transpose(0, 2, 1, 3) for x in (q, k, v)), causal=True)
    wanted, _ = exact(*(x.transpose(0, 2, 1, 3) for x in (q, k, v)), causal=True)
    assert error(cupy.asnumpy(o), wanted) < TOLERANCE["float16"]
    assert o.transpose(0, 2, 1, 3).flags.c_contiguous  # it lies as q does


def test_the_current_stream_on_a_gpu():
    """Inputs are made on a stream of their own right before, behind work that takes a while."""
    cupy = cupy_with_a_gpu()
    q, k, v = inputs(3, dtype="float16", sq=200, sk=300)
    with cupy.cuda.Stream(non_blocking=True) as stream:
        held = [cupy.asarray(x) for x in (q, k, v)]
        slow = cupy.ones((4096, 4096), dtype="float32")
        for _ in range(20):
            slow = slow @ slow / 4096
        late = [x * slow[0, 0].astype("float16") for x in held]  # times one, once that is known
        o = dfa.attention(*late)
        stream.synchronize()
    assert error(cupy.asnumpy(o), exact(q, k, v)[0]) < TOLERANCE["float16"]


def test_libraries_do_not_mix_on_a_gpu():
    cupy = cupy_with_a_gpu()
    q, k, v = inputs(4, dtype="float16")
    with pytest.raises(TypeError, match="all of one library"):
        dfa.attention(cupy.asarray(q), k, v)


class Memory:
    def __init__(self, ptr):
        self.ptr = ptr


class StandIn(np.ndarray):
    """What of CuPy's arrays is used, in the host's memory."""

    @property
    def data(self):
        return Memory(self.__array_interface__["data"][0])


StandIn.__module__ = "cupy"
STREAM = 4711


class Plan:
    """The host's plan, told of a stream that is not the host's."""

    def __init__(self, plan, seen):
        self.plan, self.seen, self.workspace_bytes = plan, seen, plan.workspace_bytes

    def _forward(self, *arguments, **named):
        self.seen.append(arguments[-1])
        self.plan._forward(*arguments[:-1], 0, **named)


@pytest.fixture
def seen(monkeypatch):
    """A module cupy whose memory is the host's; what calls say of backend and stream."""
    cupy = types.ModuleType("cupy")
    cupy.empty = lambda shape, dtype: np.empty(shape, dtype).view(StandIn)
    cupy.cuda = types.SimpleNamespace(get_current_stream=lambda: Memory(STREAM))
    monkeypatch.setitem(sys.modules, "cupy", cupy)
    monkeypatch.delitem(sys.modules, "dfa._cupy", raising=False)
    attention, arrays = (importlib.import_module(f"dfa.{name}") for name in ("_attention", "_arrays"))
    monkeypatch.setattr(attention, "_adapted", {})
    real, told = arrays.plan_of, []

    def plan_of(passes, dtype, sizes, window, scale, deterministic, strides, backend, *rest, **named):
        told.append(backend)
        return Plan(real(passes, dtype, sizes, window, scale, deterministic, strides, "cpu", *rest, **named), told)

    monkeypatch.setattr(arrays, "plan_of", plan_of)
    yield told
    sys.modules.pop("dfa._cupy", None)


@pytest.mark.parametrize("rows_first", [False, True])
def test_a_stand_in_gives_its_pointers_strides_and_stream(seen, rows_first):
    q, k, v = inputs(5)
    turned = [np.ascontiguousarray(x.transpose(0, 2, 1, 3)).transpose(0, 2, 1, 3) if rows_first else x
              for x in (q, k, v)]
    o, lse = dfa.attention(*(x.view(StandIn) for x in turned), causal=True, return_lse=True)
    wanted, wanted_lse = exact(q, k, v, causal=True)
    assert isinstance(o, StandIn) and isinstance(lse, StandIn)
    assert error(np.asarray(o), wanted) < TOLERANCE["float32"]
    assert error(np.asarray(lse), wanted_lse) < 1e-5 * (1 + np.abs(wanted_lse).max())
    assert seen == ["cuda", STREAM]
