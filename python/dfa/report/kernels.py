"""Which kernels gave the numbers of a figure, and where two sides did not do the same work."""

import re

from dfa.report import style

_TARGETS = {
    "cuda_sm75": "portable kernels for sm_75",
    "cuda_sm80": "portable kernels (cuda_sm80, mma.sync)",
    "cuda_sm90": "Hopper's kernels (cuda_sm90, wgmma)",
    "cpu_amx": "AMX", "cpu_avx512": "AVX-512", "cpu_avx2": "AVX2", "cpu_portable": "portable C++"}
_PEERS = ("torch", "cudnn")  # backends that are not ours


def kernel_of(case):
    """The kernels of a case of a result file in a few words, empty where the file does not say."""
    why = case.get("why") if isinstance(case.get("why"), str) else ""
    if case.get("backend") in _PEERS:
        return why.partition(",")[0]
    if case.get("algorithm") == "standard":
        library = re.search(r"products by ([\w.]+ [\d.]+)", why)
        return f"products by {library[1]}" if library else ""
    target = re.search(r"Target::(\w+)",
                       f"{case.get('config') or ''} {case.get('backward_config') or ''}")
    return _TARGETS.get(target[1], target[1]) if target else ""


def base_name(algorithm):
    """Without the way it was launched."""
    return algorithm.partition(",")[0]


def named(rows):
    """`kernels: standard, products by cublasLt 13.1.0; …`, empty where no file says."""
    told = {}
    for algorithm, kernel in zip(rows["algorithm"], rows["kernel"]):
        if kernel:
            told.setdefault(base_name(algorithm), {})[kernel] = None
    words = [f"{style.label(a)}: {' and '.join(sorted(told[a]))}" for a in style.ordered(told)]
    return f"kernels: {'; '.join(words)}" if words else ""


def unequal_work(rows):
    """Sentences on who did less or other work than whom in these cases."""
    rows = rows.assign(name=[base_name(a) for a in rows["algorithm"]])
    ours = rows[rows["name"].isin(["flash", "dynamic"])]
    peers = rows[rows["backend"] == "torch"]
    notes = []
    if (rows["name"] == "standard").any() and (rows["mask"] != "full").any():
        notes.append("Standard attention multiplies the hidden scores of a mask, too; its rate "
                     "counts the visible ones.")
    if (rows["name"] == "dynamic").any():
        notes.append("The search for dynamic's kernel and tile is not in its times.")
    of_bf16 = ours["config"].str.contains("cuda_sm90,.element=DType::bf16", regex=False)
    if of_bf16.any():
        notes.append("Our forward holds each row against a reference that stays and does rows over "
                     "where that does not do: fewer maxima and rescalings than an online softmax.")
    if len(peers) and len(ours) and (rows["pass"] == "fwd").any():
        notes.append("Forward: ours writes o and lse into memory that is there; PyTorch's is asked "
                     "for o and makes it in each call.")
    if len(peers) and len(ours) and (rows["pass"] != "fwd").any():
        as_they_come = ours["backward_config"].str.contains("dq=DqSum::unordered|dq=DqAccumulation::atomic")
        but = ", but where its dq is added up as it comes" if as_they_come.any() else ""
        notes.append(f"Backward: ours gives the same bits each time{but}; PyTorch's was not asked "
                     "to, and makes its gradients in each call.")
    return " ".join(notes)
