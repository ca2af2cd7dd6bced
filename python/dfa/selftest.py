"""python -m dfa.selftest: are the kernels right that this machine can run? Takes seconds.

First every kernel family of the compiled module, against fp64 attention; then dfa.attention itself on NumPy's arrays and,
where PyTorch is installed, on its tensors with gradients.
"""

import importlib.util
import sys
import time

import numpy

import dfa
from dfa import _core


def run(say=print):
    """Runs all checks; say(line) hears of each. Returns the number of wrong ones.

    Raises RuntimeError where nothing could be checked at all.
    """
    began = time.perf_counter()
    told = set()

    def each(target, problem, outcome, share, reason, seconds):
        if outcome == "ok":
            say(f"{target:<13} ok     {problem:<55} error {100 * share:3.0f} % of the bound, {1e3 * seconds:4.0f} ms")
        elif outcome == "wrong":
            say(f"{target:<13} WRONG  {problem}: {reason}")
        elif (target, reason) not in told:  # a target that is not there says so once, not for every problem
            told.add((target, reason))
            say(f"{target:<13} –      {reason}")

    ok, wrong, refused = _core.selftest(each)
    for check in (_numpy, _torch):
        line, right = check()
        say(line)
        if right is not None:
            ok, wrong = ok + right, wrong + (not right)
    if ok + wrong == 0:
        raise RuntimeError("nothing could be checked; `dfa info` says what is missing")
    say(f"selftest: {ok} ok, {wrong} wrong, {refused} not for what is here, {time.perf_counter() - began:.1f} s; "
        f"dfa {dfa.__version__}, Python {sys.version.partition(' ')[0]}")
    return wrong


def _inputs():
    random = numpy.random.default_rng(1)
    return [random.standard_normal((2, heads, length, 64), numpy.float32)
            for heads, length in ((4, 65), (2, 130), (2, 130))]


def _truth(q, k, v):
    """Causal attention in fp64, with shared heads."""
    q, k, v = (x.astype(numpy.float64) for x in (q, k, v))
    group, sq, sk = q.shape[1] // k.shape[1], q.shape[2], k.shape[2]
    scores = q @ numpy.repeat(k, group, 1).swapaxes(-1, -2) / numpy.sqrt(q.shape[-1])
    scores[..., numpy.arange(sk) > numpy.arange(sq)[:, None] + sk - sq] = -numpy.inf
    weights = numpy.exp(scores - scores.max(-1, keepdims=True))
    return weights / weights.sum(-1, keepdims=True) @ numpy.repeat(v, group, 1)


_BOUND = 1e-5  # fp32 of values around 1: sums of 130 products are right to a tenth of it


def _line(door, error):
    right = bool(error < _BOUND)
    return f"{door:<13} {'ok   ' if right else 'WRONG'}  fp32 causal, largest error {error:.1e} (bound {_BOUND:.0e})", right


def _numpy():
    q, k, v = _inputs()
    return _line("NumPy", abs(dfa.attention(q, k, v, causal=True) - _truth(q, k, v)).max())


def _torch():
    if importlib.util.find_spec("torch") is None:
        return "PyTorch       –      not installed", None
    import torch

    arrays = _inputs()
    device = "cuda" if torch.cuda.is_available() and dfa.backends()["cuda"][0] else "cpu"
    tensors = [torch.tensor(array, device=device, requires_grad=True) for array in arrays]
    o = dfa.attention(*tensors, causal=True)
    error = abs(o.detach().cpu().numpy() - _truth(*arrays)).max()
    # Gradients of sum(o): a small step along each changes the truth by as much as it foretells.
    for index, gradient in enumerate(torch.autograd.grad(o.sum(), tensors)):
        gradient = gradient.cpu().numpy().astype(numpy.float64)
        norm = numpy.linalg.norm(gradient)
        ends = []
        for step in (1e-4, -1e-4):
            moved = list(arrays)
            moved[index] = moved[index] + step / norm * gradient
            ends.append(_truth(*moved).sum())
        error = max(error, abs((ends[0] - ends[1]) / 2e-4 / norm - 1))
    return _line(f"PyTorch, {device}", error)


if __name__ == "__main__":
    if len(sys.argv) > 1:
        sys.exit("usage: python -m dfa.selftest")
    try:
        sys.exit(1 if run() else 0)
    except (RuntimeError, ValueError) as error:
        sys.exit(f"dfa.selftest: {error}")
