"""One look for all figures: a colour and a marker an algorithm, safe for colour-blind readers.

The hues are those of Okabe and Ito, shifted so that each has a contrast of 3:1 or more on white and
on the dark page alike.
"""

_NAMED = {
    "standard": ("#D55E00", "s"),
    "flash": ("#1F83C9", "o"),
    "dynamic": ("#00946B", "D"),
    "reference": ("#7F7F7F", "v"),
    "cudnn": ("#3F8F8F", ">"),
    "torch-cudnn": ("#B8679A", "^"),
    "torch-flash": ("#A07A00", "P"),
    "torch-flash3": ("#5C7A29", "v"),
    "torch-efficient": ("#7A68C9", "X"),
    "torch-math": ("#A8553A", "<"),
    # Ways of one sequence over several cards, and their watts.
    "ring": ("#00946B", "D"),
    "allgather": ("#1F83C9", "o"),
    "alltoall": ("#D55E00", "s"),
    "mesh": ("#A8553A", "<"),
    "torch.gather": ("#B8679A", "^"),
    "torch.rotate": ("#A07A00", "P"),
    "together": ("#7F7F7F", "v"),
}
_CARDS = (("#1F83C9", "o"), ("#D55E00", "s"), ("#00946B", "D"), ("#B8679A", "^"), ("#A07A00", "P"), ("#7A68C9", "X"), ("#3F8F8F", ">"),
          ("#A8553A", "<"))
_OTHERS = (("#8C5FA8", "X"), ("#A04A5C", "<"))
SEVERAL = "#7F7F7F"  # what stands for more than one algorithm
_PLOTLY_MARKERS = {"s": "square", "o": "circle", "D": "diamond", "v": "triangle-down",
                   "^": "triangle-up", "P": "cross", "X": "x", "<": "triangle-left",
                   ">": "triangle-right"}
_LABELS = {"standard": "standard", "flash": "dfa", "dynamic": "dfa dynamic",
           "reference": "reference fp64", "cudnn": "cuDNN", "torch-cudnn": "PyTorch cuDNN",
           "torch-flash": "PyTorch flash", "torch-flash3": "FlashAttention-3",
           "torch-efficient": "PyTorch efficient",
           "torch-math": "PyTorch math", "torch-sdpa": "PyTorch", "torch.gather": "PyTorch, gathered", "torch.rotate": "PyTorch, rotated",
           "together": "all cards together"}
_ORDER = list(_NAMED)


def _look(algorithm):
    if algorithm in _NAMED:
        return _NAMED[algorithm]
    if algorithm.startswith("card "):
        return _CARDS[int(algorithm[5:]) % len(_CARDS)]
    return _OTHERS[sum(algorithm.encode()) % len(_OTHERS)]


def colour(algorithm):
    return _look(algorithm)[0]


def marker(algorithm):
    return _look(algorithm)[1]


def plotly_marker(algorithm):
    return _PLOTLY_MARKERS[marker(algorithm)]


def label(algorithm):
    name, comma, launch = algorithm.partition(",")
    return _LABELS.get(name, name) + comma + launch


def ordered(algorithms):
    """Always the same order: baseline first."""
    return sorted(set(algorithms),
                  key=lambda a: (_ORDER.index(a) if a in _ORDER else len(_ORDER), a))
