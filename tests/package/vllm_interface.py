"""What the plug-in is held against: vLLM's own classes where they import, else their signatures as they were in the wheel of vLLM
0.33.0, written down by inspect. '=' stands behind what has a default, '@' in front of what is abstract."""

import abc
import dataclasses
import enum
import importlib
import sys
import types

RECORDED = {
    "AttentionBackend": {
        "@get_name": [], "@get_impl_cls": [], "@get_builder_cls": [], "get_supported_kernel_block_sizes": ["kv_cache_spec="],
        "supports_head_size": ["head_size"], "supports_sink": [], "supports_sliding_window": [], "supports_non_causal": [],
        "supports_batch_invariance": [], "supports_compute_capability": ["capability"]},
    "AttentionMetadataBuilder": {
        "@__init__": ["self", "kv_cache_spec", "layer_names", "vllm_config", "device"],
        "@build": ["self", "common_prefix_len", "common_attn_metadata", "fast_build="]},
    "AttentionImpl": {
        "@__init__": ["self", "num_heads", "head_size", "scale", "num_kv_heads=", "alibi_slopes=", "sliding_window=",
                      "kv_cache_dtype=", "logits_soft_cap=", "attn_type=", "kv_sharing_target_layer_name="],
        "@forward": ["self", "layer", "query", "key", "value", "kv_cache", "attn_metadata", "output", "output_scale=",
                     "output_block_scale="]},
}
METADATA = ["query_start_loc", "query_start_loc_cpu", "seq_lens", "num_reqs", "num_actual_tokens", "max_query_len", "max_seq_len",
            "block_table_tensor", "slot_mapping"]
LATER = ["mm_req_doc_ranges", "rswa_prefix_lens"]  # with None as default, behind causal


def _classes():
    def made(name):
        def function(self_or_cls=None, *arguments, **named):
            if name != "__init__":
                raise NotImplementedError(name)
        return function
    for cls, methods in RECORDED.items():
        body = {}
        for name in methods:
            plain = name.removeprefix("@")
            body[plain] = abc.abstractmethod(made(plain)) if name.startswith("@") else classmethod(made(plain))
        yield cls, abc.ABCMeta(cls, (abc.ABC,), body | {"__class_getitem__": classmethod(lambda cls, _: cls)})


class Registry(enum.Enum):
    """As AttentionBackendEnum: a place for others, and what was registered over each."""

    CPU_ATTN = "vllm.v1.attention.backends.cpu_attn.CPUAttentionBackend"
    CUSTOM = None

    def is_overridden(self):
        return self in _OVERRIDES

    def get_path(self):
        return _OVERRIDES.get(self, self.value)

    def get_class(self):
        module, _, name = self.get_path().rpartition(".")
        return getattr(importlib.import_module(module), name)

    def clear_override(self):
        _OVERRIDES.pop(self, None)


_OVERRIDES = {}


def _stand_in():
    backend, registry = types.ModuleType("vllm.v1.attention.backend"), types.ModuleType("vllm.v1.attention.backends.registry")
    vars(backend).update(_classes())
    backend.AttentionMetadata = type("AttentionMetadata", (), {})
    backend.AttentionType = enum.Enum("AttentionType", {n.upper(): n for n in ("decoder", "encoder", "encoder_only")}, type=str)
    backend.MultipleOf = dataclasses.make_dataclass("MultipleOf", [("base", int)], frozen=True)
    fields = [*((name, object) for name in METADATA), ("causal", object, True), *((name, object, None) for name in LATER)]
    backend.CommonAttentionMetadata = dataclasses.make_dataclass("CommonAttentionMetadata", fields)
    registry.AttentionBackendEnum = Registry
    registry.register_backend = _OVERRIDES.__setitem__
    for name in ("vllm", "vllm.v1", "vllm.v1.attention", "vllm.v1.attention.backends"):
        sys.modules[name] = types.ModuleType(name)
    sys.modules |= {module.__name__: module for module in (backend, registry)}


def provide():
    """True where the classes are vLLM's own. Its configuration, which needs far more packages, is then stood in for."""
    try:
        importlib.import_module("vllm.v1.attention.backend")
    except ImportError:
        _stand_in()
        return False
    try:
        importlib.import_module("vllm.config")
    except ImportError:
        config, state = types.ModuleType("vllm.config"), types.ModuleType("vllm.distributed.parallel_state")
        config.get_current_vllm_config_or_none = lambda: None
        state.get_dcp_world_size_and_rank = lambda *_: (1, 0)

        def no_group():
            raise AssertionError
        state.get_pcp_group = no_group
        sys.modules |= {"vllm.config": config, "vllm.distributed": types.ModuleType("vllm.distributed"), state.__name__: state}
    return True
