from typing import Any, Literal, TypeVar, overload

from dfa._policy import Policy

Array = TypeVar("Array")  # numpy.ndarray, torch.Tensor, cupy.ndarray or jax.Array
_Algorithm = Literal["auto", "flash", "standard"]

@overload
def attention(
    q: Array, k: Array, v: Array, *, causal: bool = False, window: tuple[int, int] | None = None,
    scale: float | Array | None = None, softcap: float | None = None, alibi_slopes: Array | None = None,
    sinks: Array | None = None, bias: Array | None = None, chunk: int | None = None,
    prefix: int | None = None, mask: Array | None = None, block_mask: Any = None,
    mask_mod: str | None = None, score_mod: str | None = None, dropout_p: float = 0.0, seed: Any = None,
    q_descale: Array | float | None = None, k_descale: Array | float | None = None, v_descale: Array | float | None = None, descale_rows: int | None = None,
    return_lse: Literal[False] = False, deterministic: bool = False, algorithm: _Algorithm = "auto", policy: Policy | str | None = None,
) -> Array: ...
@overload
def attention(
    q: Array, k: Array, v: Array, *, causal: bool = False, window: tuple[int, int] | None = None,
    scale: float | Array | None = None, softcap: float | None = None, alibi_slopes: Array | None = None,
    sinks: Array | None = None, bias: Array | None = None, chunk: int | None = None,
    prefix: int | None = None, mask: Array | None = None, block_mask: Any = None,
    mask_mod: str | None = None, score_mod: str | None = None, dropout_p: float = 0.0, seed: Any = None,
    q_descale: Array | float | None = None, k_descale: Array | float | None = None, v_descale: Array | float | None = None, descale_rows: int | None = None,
    return_lse: Literal[True], deterministic: bool = False, algorithm: _Algorithm = "auto", policy: Policy | str | None = None,
) -> tuple[Array, Array]: ...
@overload
def attention(
    q: Array, k: Array, v: Array, *, causal: bool = False, window: tuple[int, int] | None = None,
    scale: float | Array | None = None, softcap: float | None = None, alibi_slopes: Array | None = None,
    sinks: Array | None = None, bias: Array | None = None, chunk: int | None = None,
    prefix: int | None = None, mask: Array | None = None, block_mask: Any = None,
    mask_mod: str | None = None, score_mod: str | None = None, dropout_p: float = 0.0, seed: Any = None,
    q_descale: Array | float | None = None, k_descale: Array | float | None = None, v_descale: Array | float | None = None, descale_rows: int | None = None,
    return_lse: bool = False, deterministic: bool = False, algorithm: _Algorithm = "auto", policy: Policy | str | None = None,
) -> Array | tuple[Array, Array]: ...
def adapted_to(types: tuple[type, ...]) -> Any: ...
