"""dfa as a kernel repository of the Hugging Face hub: the functions that such a module has at its top, and the folder around it.

    python -m dfa.hub FOLDER                                        # writes the repository, to be kept or uploaded
    LOCAL_KERNELS="me/dfa-flash-attn=FOLDER" python train.py        # of kernels: that name is this folder
    AutoModel.from_pretrained(name, attn_implementation="me/dfa-flash-attn")

transformers then prepares packed sequences itself, as for flash-attn. dfa.transformers needs none of this and serves more masks.
The module in the folder imports this one: dfa has to be installed where it is loaded.
"""

import json
import sys
from pathlib import Path

from dfa import __version__
from dfa._dropout import options_of
from dfa._shapes import flag_of
from dfa._torch_varlen import attention_varlen
from dfa.flash_attn import (flash_attn_kvpacked_func, flash_attn_qkvpacked_func, flash_attn_varlen_kvpacked_func,
                            flash_attn_varlen_qkvpacked_func)
from dfa.flash_attn._adapted import attend, both_begins, logits_of, refuse, window_of

__all__ = ["flash_attn_func", "flash_attn_kvpacked_func", "flash_attn_qkvpacked_func", "flash_attn_varlen_func",
           "flash_attn_varlen_kvpacked_func", "flash_attn_varlen_qkvpacked_func"]


def flash_attn_func(q, k, v, dropout_p=0.0, softmax_scale=None, causal=False, window_size=(-1, -1), softcap=0.0,
                    alibi_slopes=None, deterministic=False, return_attn_probs=False, s_aux=None):
    """dfa.flash_attn.flash_attn_func, and s_aux: attention sinks [hq], as dfa.attention's. Without that argument transformers
    would leave them out in silence."""
    o, lse = attend(q, k, v, softmax_scale, causal, window_size, deterministic,
                    logits_of(softcap, alibi_slopes, s_aux) | options_of(dropout_p))
    return (o, lse, None) if flag_of("return_attn_probs", return_attn_probs) else o


def flash_attn_varlen_func(q, k, v, cu_seqlens_q, cu_seqlens_k, max_seqlen_q=None, max_seqlen_k=None, dropout_p=0.0,
                           softmax_scale=None, causal=False, window_size=(-1, -1), softcap=0.0, alibi_slopes=None,
                           deterministic=False, return_attn_probs=False, block_table=None, s_aux=None):
    """dfa.flash_attn.flash_attn_varlen_func; s_aux as in flash_attn_func."""
    refuse(block_table=block_table)
    o, lse = attention_varlen(q, k, v, *both_begins(cu_seqlens_q, cu_seqlens_k), max_seqlen_q, max_seqlen_k, scale=softmax_scale,
                              causal=causal, window=window_of(window_size), deterministic=deterministic, return_lse=True,
                              **logits_of(softcap, alibi_slopes, s_aux), **options_of(dropout_p))
    return (o, lse, None) if flag_of("return_attn_probs", return_attn_probs) else o


def write(folder):
    """Writes the repository into a folder, which is made if need be; returns its path. For the CPU and CUDA, any PyTorch. A
    README.md that is there stays.

    Raises FileExistsError where the folder has such a module of somebody else, ValueError on an empty name.
    """
    if not str(folder):
        raise ValueError("folder is ''; accepted: a path, . for the current folder")
    folder = Path(folder)
    builds = {backend: folder / "build" / f"torch-{backend}" for backend in ("cpu", "cuda")}
    for build in builds.values():
        if build.exists() and not _is_ours(build):
            raise FileExistsError(f"{build} is there and not of dfa.hub; accepted: another folder")
    for backend, build in builds.items():
        build.mkdir(parents=True, exist_ok=True)
        (build / "metadata.json").write_text(json.dumps(_metadata(backend), indent=2) + "\n")
        (build / "__init__.py").write_text(_MODULE)
    card = folder / "README.md"
    if not card.exists():
        card.write_text(_CARD)
    return folder


def _is_ours(build):
    try:
        return json.loads((build / "metadata.json").read_text())["name"] == "dfa"
    except (OSError, ValueError, KeyError, TypeError):
        return False


def _metadata(backend):
    return {"id": f"dfa_{backend}_{__version__.replace('.', '_')}", "name": "dfa", "version": 1, "license": "Apache-2.0",
            "python-depends": [], "backend": {"type": backend}}


_MODULE = '''"""The package dfa, as a kernel: written by dfa.hub."""

try:
    from dfa.hub import *  # noqa: F403
    from dfa.hub import __all__  # noqa: F401
except ModuleNotFoundError as error:
    if (error.name or "").partition(".")[0] != "dfa":
        raise
    raise ImportError("this kernel is the package dfa-attention, which is not installed; type: pip install "
                      "'dfa-attention[cuda]'") from error
'''

_CARD = '''---
license: apache-2.0
library_name: kernels
tags:
  - kernels
  - attention
---

# dfa

Exact attention by flash-attn's names, forward and backward, on NVIDIA GPUs from compute capability 8.0 on and on processors. The builds
here are of Python alone and use the package that is installed:

    pip install 'dfa-attention[cuda]' kernels

```python
from kernels import get_kernel

dfa = get_kernel("OWNER/dfa", version=1, trust_remote_code=True)
o = dfa.flash_attn_func(q, k, v, causal=True)  # q, k, v [b, length, heads, head dim]
```

What no kernel of dfa does raises ValueError by the argument's name.
'''


if __name__ == "__main__":
    if len(sys.argv) != 2 or sys.argv[1].startswith("-"):
        sys.exit("usage: python -m dfa.hub FOLDER")
    try:
        print(write(sys.argv[1]))
    except (OSError, ValueError) as error:
        sys.exit(f"dfa.hub: {error}")
