"""The model of benchmarks/ring: the bytes that it counts are those that ranks send, and the script that asks it runs."""

import importlib
import json
import os
import pathlib
import socket
import subprocess
import sys

import pytest

torch = pytest.importorskip("torch")
if not torch.distributed.is_available() or not torch.distributed.is_gloo_available():
    pytest.skip("PyTorch without gloo", allow_module_level=True)

from distributed_ranks import run  # noqa: E402

BENCHMARKS = pathlib.Path(__file__).parents[2] / "benchmarks"
SIZES = {"tokens": 1024, "hq": 8, "hk": 4, "d": 16}


def the_model():
    if str(BENCHMARKS) not in sys.path:
        sys.path.append(str(BENCHMARKS))
    return importlib.import_module("ring.model")


def counted(rank, masks):
    """{(method, passes, mask): bytes that this rank gave to others}"""
    return {(*key, mask): count for mask in masks for key, count in counted_under(*mask).items()}


def counted_under(causal, window):
    import dfa.distributed as dd
    from dfa._distributed_exchange import Exchange
    sent = [0]
    swap, gather, deal, add_up = Exchange.swap, Exchange.gather, Exchange.deal, Exchange.add_up

    def bytes_of(x):
        return x.numel() * x.element_size()

    def counting_swap(self, tensors, *rest):
        sent[0] += sum(map(bytes_of, tensors or ()))
        return swap(self, tensors, *rest)

    def counting_gather(self, x):
        if x.dtype != torch.uint8:  # what ranks compare ahead of a call
            sent[0] += bytes_of(x) * (self.ranks - 1)
        return gather(self, x)

    def counting_deal(self, x, counts, received):
        sent[0] += bytes_of(x) - counts[self.rank] * x.element_size()
        return deal(self, x, counts, received)

    def counting_add_up(self, parts):
        sent[0] += bytes_of(parts) * (self.ranks - 1) // self.ranks
        return add_up(self, parts)
    result = {}
    q, k, v, d_o = (dd.shard(torch.randn(1, h, SIZES["tokens"], SIZES["d"], dtype=torch.bfloat16), causal=causal) for h in (8, 4, 4, 8))
    for method in ("ring", "allgather", "alltoall"):
        for passes in ("fwd", "fwd+bwd"):
            for x in (q, k, v):
                x.requires_grad_(passes != "fwd")
            Exchange.swap, Exchange.gather, Exchange.deal, Exchange.add_up = counting_swap, counting_gather, counting_deal, counting_add_up
            sent[0] = 0
            o = dd.context_parallel_attention(q, k, v, causal=causal, window=window, method=method)
            if passes != "fwd":
                torch.autograd.grad(o, (q, k, v), d_o)
            result[method, passes] = sent[0]
            Exchange.swap, Exchange.gather, Exchange.deal, Exchange.add_up = swap, gather, deal, add_up
    return result


@pytest.mark.one_in(2)
@pytest.mark.parametrize("ranks, masks", [(2, [(True, None), (False, None)]), (4, [(True, (100, 0))])])
def test_bytes_are_those_that_are_sent(tmp_path, ranks, masks):
    told = run(ranks, counted, tmp_path, masks)
    assert all(isinstance(one, dict) for one in told), told
    for key in told[0]:
        method, passes, (causal, window) = key
        model = the_model().sent_bytes(method, (ranks,), causal=causal, window=window, passes=passes, **SIZES)
        assert model == max(one[key] for one in told), key


def test_times_are_those_of_one_card_and_never_better_than_linear():
    model = the_model()
    card = model.Card(1.0, 2.5, 300, 15e-6)
    for passes, whole in (("fwd", 1.0), ("fwd+bwd", 3.5)):
        sizes = SIZES | {"tokens": 65536, "passes": passes}
        assert model.seconds("ring", (1,), card, **sizes) == whole
        for method, ways in (("ring", (4,)), ("allgather", (4,)), ("alltoall", (4,)), ("ring", (2, 2))):
            assert whole / 4 < model.seconds(method, ways, card, **sizes) < whole / 3.9
            slow = card._replace(link_gb_s=0.001)
            assert model.seconds(method, ways, slow, **sizes) > whole


@pytest.mark.all
def test_the_script_runs_on_processors(tmp_path):
    with socket.socket() as one:
        one.bind(("localhost", 0))
        port = one.getsockname()[1]
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node=2", "--master-port", str(port),
               str(BENCHMARKS / "context_parallel.py"), "--device", "cpu", "--seconds", "0.1", "--peers", "no", "--only", "512 h4/4",
               "--out", str(tmp_path / "out.json")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, env=os.environ | {"OMP_NUM_THREADS": "1"})
    assert done.returncode == 0, done.stderr[-2000:]
    result = json.loads((tmp_path / "out.json").read_text())
    assert {one["verdict"] for one in result["checks"]} == {"right"} and len(result["rows"]) == 3
    assert all("seconds" in row["columns"]["ring"] and row["columns"]["ring"]["model_s"] > 0 for row in result["rows"])
    assert "| 512 h4/4 fwd | alltoall |" in done.stdout
    assert "NVLink: not counted: no card" in done.stdout


class OneRank:
    """A job of one rank, whose others would say the same."""
    on_gpu, rank, ranks, device = False, 0, 2, "cpu"

    def meet(self):
        pass

    def gathered(self, value):
        return [value, value / 2]

    def tried(self, call):
        try:
            return call(), ""
        except RuntimeError as error:
            return None, str(error)


class Counter:
    """Of a card that sent something before, and sends `each` bytes in a call."""

    def __init__(self, each):
        self.sent, self.each = 12345, each

    def call(self):
        self.sent += self.each

    def reading(self):
        return self.sent


def bursts_of():
    the_model()
    return importlib.import_module("ring.bursts")


def test_bytes_over_nvlink_are_those_of_a_call_of_the_card_that_sends_most():
    counter = Counter(4096)
    assert bursts_of().over_nvlink(OneRank(), counter.call, 0.001, counter) == {"nvlink_bytes": 4096, "nvlink_bytes_of_cards": [4096, 2048]}
    back = Counter(-100)
    assert bursts_of().over_nvlink(OneRank(), back.call, 1, back) == {"nvlink_bytes": None, "nvlink_reason": "a counter went back"}
    assert bursts_of().over_nvlink(OneRank(), counter.call, 1) == {"nvlink_bytes": None, "nvlink_reason": "no card"}


def test_the_table_has_counted_bytes_beside_the_models_and_each_cards_watts():
    report = importlib.import_module("ring.report")
    column = {"seconds": [1e-3], "model_s": 1e-3, "sent_bytes": 134e6, "nvlink_bytes": 136e6, "watts": 1400.0, "watts_of_cards": [690.0, 710.0],
              "joules": 1.4}
    result = {"ranks": 2, "card": "card", "torch": "t", "nccl": "n", "created": "now", "seed": 1, "cards_before": [], "rows": [
        {"name": "row", "flops": 1e12, "cards": [], "columns": {"ring": column, "allgather": column | {"nvlink_bytes": None, "nvlink_reason": "no links"}}}]}
    text = report.table(result)
    head, _, ring, gather = (line for line in text.splitlines() if line.startswith("|"))
    assert all(line.count("|") == head.count("|") for line in (ring, gather))
    assert "| MB sent | MB NVLink |" in head and "| 134 | 136 |" in ring and "| 134 |  |" in gather
    assert "| 1400 (690 + 710) | 1.4 |" in ring and "NVLink: not counted: no links" in text
    result["rows"][0]["columns"] = {"ring": column | {"watts": 5600.0, "watts_of_cards": [690.0] * 7 + [770.0]}}
    assert "| 5600 (690 to 770 each) | 1.4 |" in report.table(result)
