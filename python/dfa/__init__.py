"""Dynamic FlashAttention++: exact attention that governs its own joules.

    o = dfa.attention(q, k, v, causal=True)        # NumPy, PyTorch, CuPy or JAX; CPU or CUDA
    with dfa.EnergyMeter() as m: ...               # m.energy_j, m.uncertainty_j
    meter = dfa.TokenMeter()                       # joules of a token, prefill and decode apart
    print(dfa.plan("fwd bf16 causal b1 h16 s4096 d128"))
"""

import importlib

# Loaded when first used: the report (dfa.report) needs none of it.
_PLACES = {
    "attention": "dfa._attention",
    "attention_varlen": "dfa._torch_varlen",
    "backends": "dfa._plan",
    "plan": "dfa._plan",
    "quantize": "dfa._torch_quantize",
    "rotate": "dfa._torch_rotate",
    "Plan": "dfa._core",
    "EnergyMeter": "dfa._meter",
    "TokenMeter": "dfa._token_meter",
    "Policy": "dfa._policy",
    "Governor": "dfa._governor",
}
__all__ = [*_PLACES]


def __getattr__(name):
    if name == "__version__":
        globals()[name] = importlib.import_module("dfa._version").read()
        return globals()[name]
    if name not in _PLACES:
        raise AttributeError(f"module 'dfa' has no attribute '{name}'")
    globals()[name] = getattr(importlib.import_module(_PLACES[name]), name)  # found faster next time
    return globals()[name]


def __dir__():
    return sorted([*globals(), *_PLACES])
