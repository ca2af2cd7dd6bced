"""Plans: what will run for a problem, and why."""

from functools import lru_cache

from dfa import _core
from dfa._policy import Policy, choice_of, split
from dfa._shapes import shown


def plan(problem: str, *, backend: str = "auto", algorithm: str = "auto", config: str = "",
         threads: int = 0, policy: Policy | str | None = None) -> _core.Plan:
    """Plan a problem line, without running it.

    problem: "fwd bf16 causal b2 hq8 hk2 sq1000 sk1024 d128", the same line as everywhere else.
    backend: auto, cpu, cuda or reference. algorithm: auto, flash or standard.
    config: configuration text to force; empty lets the library choose. threads: of the CPU, 0 for all.
    policy: as in dfa.attention; chooses the configuration, so config must be empty then.

    Returns a Plan; print it to see what will run and why. Its fields: problem, backend, config, backward_config,
    origin (default, forced or measured), why (a sentence), threads, workspace_bytes, forward_flops and
    backward_flops. Raises ValueError on a bad line or
    configuration, RuntimeError where no backend can run it.
    """
    if not isinstance(problem, str):
        raise TypeError(f"problem is {type(problem).__qualname__}; accepted: a problem line, as a text")
    for name, text in (("backend", backend), ("algorithm", algorithm), ("config", config)):
        if not isinstance(text, str):
            raise TypeError(f"{name} is {type(text).__qualname__}; accepted: text")
    if type(threads) is not int or not 0 <= threads <= 1024:
        raise ValueError(f"threads {shown(threads)}; accepted: 1 to 1024, or 0 for all")
    choice = algorithm if policy is None else choice_of(algorithm, policy)
    algorithm, policy, profile = split(choice)
    if policy and (config or threads):
        raise ValueError(f"policy {policy} chooses the configuration; config and threads are not accepted "
                         "beside it")
    return _core.plan_line(problem, backend, algorithm, config, threads, policy, profile)


def backends() -> dict[str, tuple[bool, str]]:
    """{name: (available, description or reason)} of every backend this build knows."""
    return {name: (available, text) for name, available, text in _core.backends()}


def plan_of(*question, **more):
    """The plan for arrays of these sizes and strides, made once, or anew where another part of the GPU is current."""
    plan = _plan_of(*question, **more)
    return plan if plan._fits_context() else _plan_of.__wrapped__(*question, **more)


@lru_cache(maxsize=1024)
def _plan_of(passes, dtype, sizes, window, scale, deterministic, strides, backend, choice, threads=0, totals=(0, 0),
             logits=(0.0, False, False, ""), page=0, positions=(0, 0), dropout=0.0, blocks=(0, 0, False, False, False),
             splits=(0, False), e4m3_cache=False, text=("", ""), descale_rows=0):
    """choice: of choice_of; threads: of the CPU, 0 for all; totals: rows of all packed sequences, 0 where dense;
    logits: softcap, whether there are slopes and sinks, and of what a bias is ("b,1,q,k,fp32");
    page: rows of a page of keys, 0 where not paged; positions: of a chunk and of the prefix, 0 for none; dropout: its probability; blocks: queries and keys of
    a block in lists, 0 for none, whether each batch and each head has its own, whether some have bitmaps; splits: num_splits, batch_invariant; e4m3_cache: are k and v in
    pages of e4m3? text: mask_mod and score_mod; descale_rows: rows that share a factor of e4m3, 0 for all."""
    return _core.plan_sizes(f"{passes} {dtype}", sizes, window, scale, deterministic, strides,
                            backend, *split(choice), threads, totals, logits, page, positions, dropout, blocks, splits, e4m3_cache, text, descale_rows)
