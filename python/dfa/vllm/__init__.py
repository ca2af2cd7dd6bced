"""The plug-in for vLLM: dfa's attention over vLLM's paged cache.

    vllm serve MODEL --attention-backend CUSTOM      # on a GPU: refused, as no vLLM has run it there
    dfa.vllm.register(cpu=True)                      # on a processor, before vllm.LLM(...), in the process that runs the model

vLLM finds register() by the entry point `vllm.general_plugins` and calls it in each of its processes. The classes were written for
the interface of vLLM 0.33 and are tested through that interface; nobody has run them in a vLLM that serves.
"""

import logging

_BACKEND = "dfa.vllm._backend.Backend"


def register(*, cpu: bool = False) -> None:
    """Makes CUSTOM of vLLM's attention backends this one, unless another plug-in has it already; then a warning says so.

    cpu: in place of CPU_ATTN too, which vLLM takes on processors whatever it is told. Its entry point does not ask for it.
    Raises ImportError without vLLM, or with one whose registry lies elsewhere.
    """
    from vllm.v1.attention.backends.registry import AttentionBackendEnum, register_backend

    wanted = [AttentionBackendEnum.CUSTOM, *([AttentionBackendEnum.CPU_ATTN] if cpu else [])]
    for place in wanted:
        if place.is_overridden() and place.get_path() != _BACKEND:
            logging.getLogger("vllm.dfa").warning("attention backend %s is %s already; dfa's is not registered", place.name,
                                                  place.get_path())
        else:
            register_backend(place, _BACKEND)
