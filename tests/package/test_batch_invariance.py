"""On processors the bits of a sequence's output do not depend on which others are in its call, on what order, nor on the pages that
its keys lie in: through the Python door, by every engine that this machine has."""

import os
import pathlib
import random
import subprocess
import sys

import pytest

torch = pytest.importorskip("torch")

import dfa  # noqa: E402

ENGINES = ("portable", "avx2", "avx512", "amx")
BATCHES = 125  # of each engine and number of threads: a thousand


def int32(values):
    return torch.tensor(values, dtype=torch.int32)


class Sequence:
    def __init__(self, draw, generator, rows, keys, hq, hk, d, dtype):
        self.rows, self.keys = rows, keys
        self.q = torch.randn(rows, hq, d, generator=generator).to(dtype)
        self.k, self.v = (torch.randn(keys, hk, d, generator=generator).to(dtype) for _ in range(2))


def cumulated(lengths):
    return torch.nn.functional.pad(int32(lengths).cumsum(0, dtype=torch.int32), (1, 0))


def packed(sequences, **options):
    """(o, lse) of each, from one packed call."""
    q, k, v = (torch.cat([getattr(s, x) for s in sequences]) for x in "qkv")
    begins = cumulated([s.rows for s in sequences])
    o, lse = dfa.attention_varlen(q, k, v, begins, cumulated([s.keys for s in sequences]), return_lse=True, **options)
    return [(o[a:b], lse[:, a:b]) for a, b in zip(begins[:-1].tolist(), begins[1:].tolist())]


def paged(sequences, page, draw, **options):
    """Likewise from a cache with pages in any order, with NaN in all that is of no sequence; the table may be wider than need be."""
    columns = max(-(-s.keys // page) for s in sequences) + draw.randint(0, 3)
    pages = len(sequences) * columns + 1
    order = list(range(pages))
    draw.shuffle(order)
    _, hk, d = sequences[0].k.shape
    caches = [torch.full((pages, page, hk, d), torch.nan, dtype=sequences[0].k.dtype) for _ in range(2)]
    table = int32(order[:len(sequences) * columns]).view(-1, columns)
    for s, row in zip(sequences, table.tolist()):
        for cache, x in zip(caches, (s.k, s.v)):
            for column in range(-(-s.keys // page)):
                part = x[column * page:(column + 1) * page]
                cache[row[column], :len(part)] = part
    begins = cumulated([s.rows for s in sequences])
    o, lse = dfa.attention_varlen(torch.cat([s.q for s in sequences]), *caches, begins, seqused_k=int32([s.keys for s in sequences]),
                                  block_table=table, return_lse=True, **options)
    return [(o[a:b], lse[:, a:b]) for a, b in zip(begins[:-1].tolist(), begins[1:].tolist())]


def same(a, b):
    return all(torch.equal(x.contiguous().view(torch.uint8), y.contiguous().view(torch.uint8)) for x, y in zip(a, b))


def check(batches, seed):
    """How often bits differed, of how many comparisons, each told."""
    draw, generator, wrong, count = random.Random(seed), torch.Generator().manual_seed(seed), [], 0
    for n in range(batches):
        d, dtype = draw.choice((32, 64, 80, 128)), draw.choice((torch.float32, torch.bfloat16, torch.float16))
        hk = draw.choice((1, 2))
        hq, most = hk * draw.choice((1, 3, 4)), draw.choice((1, 40, 300))
        options = draw.choice(({"causal": True}, {}, {"window": (9, 0)}, {"causal": True, "softcap": 7.0}))
        options = options | draw.choice(({}, {"batch_invariant": True}))
        sequences = []
        for _ in range(draw.randint(2, 7)):
            rows = draw.randint(1, most)
            sequences.append(Sequence(draw, generator, rows, rows + draw.choice((0, 1, 15, 257, 700, 2500)), hq, hk, d, dtype))
        own, page = draw.choice(sequences), draw.choice((1, 16, 64, 256))
        alone = {"packed": packed([own], **options)[0], "paged": paged([own], page, draw, **options)[0]}
        for _ in range(2):
            draw.shuffle(sequences)
            company = sequences[:draw.randint(1, len(sequences))]
            company = company if own in company else [own, *company]
            place = company.index(own)
            got = {"packed": packed(company, **options)[place],
                   "paged": paged(company, draw.choice((1, 16, 64, 256)), draw, **options)[place]}
            for kind in got:
                count += 1
                if not same(got[kind], alone[kind]):
                    away = (got[kind][0].float() - alone[kind][0].float()).abs().max()
                    wrong.append(f"{kind} batch {n} of seed {seed}: {own.rows} rows, {own.keys} keys, d {d}, hq {hq}, hk {hk}, {dtype}, "
                                 f"{options}: {away}")
    return wrong, count


def test_one_bit_is_seen():
    x = torch.randn(3, 5)
    y = x.clone()
    y.view(torch.int32)[1, 2] ^= 1
    assert same((x, x), (x.clone(), x)) and not same((x, x), (x, y)) and not same((torch.zeros(1),), (-torch.zeros(1),))


@pytest.mark.one_in(2)
@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("engine", ENGINES)
def test_bits_do_not_depend_on_the_company(engine, threads):
    """A process each: which engine runs is settled once."""
    script = (f"import sys, torch; sys.path.insert(0, {str(pathlib.Path(__file__).parent)!r}); torch.set_num_threads({threads})\n"
              f"import test_batch_invariance as t\n"
              f"wrong, count = t.check({BATCHES}, {threads})\n"
              "print(len(wrong), 'of', count, *wrong[:5], sep='\\n')")
    environment = os.environ | {"DFA_ISA": engine, "DFA_CUDA_DRIVER": "none-in-tests"}
    run = subprocess.run([sys.executable, "-c", script], env=environment, capture_output=True, text=True, timeout=300)
    if run.returncode and f"DFA_ISA={engine}: the processor lacks" in run.stderr:
        pytest.skip(run.stderr.strip().splitlines()[-1])
    assert run.returncode == 0, run.stderr[-2000:]
    assert run.stdout.split()[0] == "0" and int(run.stdout.split()[2]) == 4 * BATCHES, run.stdout
