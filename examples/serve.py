#!/usr/bin/env python3
"""Serve a small model: continuous batching, a paged cache, and joules a token.

Usage: python3 examples/serve.py [--requests N] [--rate R] [--apart] [--check] [--out DIR]    needs torch, transformers, dfa

Requests arrive as a Poisson process drawn from --seed; some begin with the same words and share pages. The model is a Llama of
two layers with random weights, or that of --model FOLDER. Writes serve.json (docs/schema/dfa-tokens-1.schema.json, with
latencies under "serving") and serve.png. --check compares every answer with the model's own generate().
"""
import argparse
import contextlib
import http.server
import json
import pathlib
import random
import statistics
import sys
import threading
import time

import torch

import dfa
from serving.engine import Engine, Request
from serving.model import PagedModel, load_model, small_model
from serving.pages import Pages


def draw_requests(options, vocabulary):
    """Requests with the seconds of their arrival, the first at 0. A third begin with the same tokens."""
    draw = random.Random(options.seed)
    system = [draw.randrange(1, vocabulary) for _ in range(options.prompt // 2)]
    at, requests = 0.0, []
    for name in range(options.requests):
        own = [draw.randrange(1, vocabulary) for _ in range(draw.randint(max(1, options.prompt // 4), options.prompt))]
        prompt = system + own if draw.random() < 1 / 3 else own
        requests.append(Request(name, prompt, draw.randint(max(1, options.answer // 4), options.answer), at))
        at += draw.expovariate(options.rate)
    return requests


def serve(engine, requests, governor=None):
    """Runs until the last answer; arrivals are counted from now. Under a cap prompts wait, tokens do not."""
    begin, left = time.perf_counter(), list(requests)
    for request in left:
        request.arrival_s += begin
    while left or engine.busy:
        while left and left[0].arrival_s <= time.perf_counter():
            engine.submit(left.pop(0))
        if engine.busy:
            engine.step()
            if governor is not None and engine.last:
                governor.pace("decode" if engine.last == "decode" else "prefill")
        else:
            time.sleep(max(0.0, left[0].arrival_s - time.perf_counter()))
    return time.perf_counter() - begin


def percentiles(values):
    """In milliseconds; None where there is nothing."""
    values = sorted(1e3 * value for value in values)
    if not values:
        return {"count": 0, "mean_ms": None, "p50_ms": None, "p90_ms": None, "p99_ms": None}
    ranks = {f"p{p}_ms": values[min(len(values) - 1, int(len(values) * p / 100))] for p in (50, 90, 99)}
    return {"count": len(values), "mean_ms": statistics.fmean(values), **ranks}


def serving_record(engine, seconds, cache_bytes):
    done = engine.finished
    gaps = [b - a for r in done for a, b in zip(r.times_s, r.times_s[1:])]
    return {"seconds": seconds, "requests": len(done), "requests_per_second": len(done) / seconds,
            "time_to_first_token": percentiles([r.times_s[0] - r.arrival_s for r in done]),
            "time_between_tokens": percentiles(gaps),
            "request_latency": percentiles([r.times_s[-1] - r.arrival_s for r in done]),
            "steps": engine.steps, "preemptions": sum(r.preempted for r in done),
            "prompt_tokens": sum(len(r.prompt) for r in done), "prompt_tokens_shared": sum(r.shared for r in done),
            "cache_bytes": cache_bytes, "pages": engine.pages.count, "page_size": engine.pages.size}


def check(model, requests):
    """How many answers are those of generate() with eager attention; all of them must be."""
    model.set_attn_implementation("eager")
    wrong = []
    for request in requests:
        prompt = torch.tensor([request.prompt], device=model.device)
        expected = model.generate(prompt, attention_mask=torch.ones_like(prompt), max_new_tokens=request.most, do_sample=False,
                                  eos_token_id=None, pad_token_id=0)[0, len(request.prompt):].tolist()
        if expected != request.answer:
            wrong.append(request.name)
    return wrong


def lines(record):
    serving = record["serving"]
    spread = record["windows"]["energy_per_output_token_joules"]
    yield (f"{serving['requests']} requests in {serving['seconds']:.1f} s: {record['output_tokens_per_second']:.0f} output tokens/s, "
           f"{serving['prompt_tokens']} prompt tokens, {serving['prompt_tokens_shared']} of them found in shared pages")
    yield f"steps: {', '.join(f'{n} {kind}' for kind, n in serving['steps'].items())}; {serving['preemptions']} preemptions"
    yield f"{'latency, ms':<22}{'p50':>9}{'p90':>9}{'p99':>9}"
    for name in ("time_to_first_token", "time_between_tokens", "request_latency"):
        yield f"{name.replace('_', ' '):<22}" + "".join(f"{serving[name][p] or 0:9.1f}" for p in ("p50_ms", "p90_ms", "p99_ms"))
    yield f"{'energy':<10}{'steps':>8}{'tokens':>9}{'tokens/s':>10}{'J':>10}{'± J':>9}{'mJ/token':>11}"
    for phase in ("prefill", "decode", "mixed"):
        p = record["phases"][phase]
        cells = [p["steps"], p["prefill_token_count"] + p["decode_token_count"], p["tokens_per_second"], p["energy_joules"],
                 p["energy_uncertainty_joules"], p["energy_per_token_millijoules"]]
        yield f"{phase:<10}" + "".join(f"{'–' if c is None else f'{c:.4g}':>{w}}" for c, w in zip(cells, (8, 9, 10, 10, 9, 11)))
    if record["energy_per_output_token_joules"] is not None:
        windows = f"; {spread['count']} windows: {1e3 * spread['mean']:.1f} ± {1e3 * spread['std']:.1f}" if spread["std"] else ""
        yield (f"{1e3 * record['energy_per_output_token_joules']:.1f} mJ an output token, everything included{windows}; by "
               f"{record['measurement_method']}, {record['measurement_kind']}, each {record['sampling_interval_seconds']:.3g} s")
    if "policy" in serving:
        yield f"{serving['policy']}: {serving['seconds_of_gaps']:.2f} s of gaps, all behind prompts"
    if record["not_measured"]:
        yield f"joules not measured: {record['not_measured']}"


def draw_figure(engine, record, path):
    import matplotlib
    matplotlib.use("Agg")
    import matplotlib.pyplot as plt
    figure, (rate, wait) = plt.subplots(1, 2, figsize=(10, 3.6), layout="constrained")
    times = sorted(t for r in engine.finished for t in r.times_s)
    begin = min(r.arrival_s for r in engine.finished)
    rate.hist([t - begin for t in times], bins=max(1, round(times[-1] - begin)), color="#0b7a75")
    rate.set(xlabel="s", ylabel="output tokens a second", title="throughput")
    for name, values, color in (("first token", [r.times_s[0] - r.arrival_s for r in engine.finished], "#d98e04"),
                                ("whole answer", [r.times_s[-1] - r.arrival_s for r in engine.finished], "#8a8f98")):
        values = sorted(values)
        wait.step(values, [(n + 1) / len(values) for n in range(len(values))], where="post", color=color, label=name)
    wait.set(xlabel="s from arrival", ylabel="share of requests", title="latency", ylim=(0, 1))
    wait.legend(frameon=False)
    for axis in (rate, wait):
        axis.spines[["top", "right"]].set_visible(False)
    joules = record["energy_per_output_token_joules"]
    energy = f"{1e3 * joules:.1f} mJ an output token on {record['device']['name']}" if joules else "joules not measured"
    figure.suptitle(f"{record['workload']['model']} on {record['workload']['device']}, {energy}")
    figure.savefig(path, dpi=150)


def expose(meter, port):
    """http://127.0.0.1:PORT/metrics for Prometheus, in a thread."""
    class Page(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            text = meter.prometheus().encode()
            self.send_response(200)
            self.send_header("Content-Type", "text/plain; version=0.0.4")
            self.end_headers()
            self.wfile.write(text)

        def log_message(self, *_):
            pass
    server = http.server.ThreadingHTTPServer(("127.0.0.1", port), Page)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    print(f"http://127.0.0.1:{server.server_port}/metrics", flush=True)
    return server


def parse(arguments=None):
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--requests", type=int, default=32)
    parser.add_argument("--rate", type=float, default=8, help="requests a second, the mean")
    parser.add_argument("--prompt", type=int, default=128, help="tokens of a prompt's own, at most")
    parser.add_argument("--answer", type=int, default=32, help="tokens of an answer, at most")
    parser.add_argument("--page", type=int, default=16, help="rows of a page")
    parser.add_argument("--pages", type=int, default=512)
    parser.add_argument("--budget", type=int, default=128, help="tokens of a step, at most: prompts that are longer go in chunks")
    parser.add_argument("--sequences", type=int, default=16, help="sequences of a batch, at most")
    parser.add_argument("--apart", action="store_true", help="prompts and answers in steps of their own: joules are told apart")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--model", type=pathlib.Path, help="a folder with a model; without it random weights")
    parser.add_argument("--dtype", choices=("float32", "bfloat16", "float16"), default="float32")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--meter", help="whose joules, as dfa.TokenMeter's device (default: --device)")
    parser.add_argument("--policy", help="a cap such as power_cap:400W on the meter's GPU, held by gaps behind prompts")
    parser.add_argument("--check", action="store_true", help="compare answers with generate()")
    parser.add_argument("--metrics", type=int, metavar="PORT", help="serve Prometheus' text meanwhile; 0: any port")
    parser.add_argument("--out", type=pathlib.Path, default=pathlib.Path("out"))
    options = parser.parse_args(arguments)
    for name in ("requests", "rate", "prompt", "answer", "page", "pages", "budget", "sequences"):
        if not 0 < getattr(options, name) < float("inf"):
            parser.error(f"--{name} {getattr(options, name)}; accepted: above 0")
    if options.device == "cuda" and not torch.cuda.is_available():
        parser.error("--device cuda: PyTorch finds no GPU; accepted: cpu")
    if options.policy and (options.meter or options.device) == "cpu":
        parser.error("--policy of a processor; accepted: with --device cuda, or a GPU as --meter")
    if options.model is not None and not options.model.is_dir():
        parser.error(f"--model {options.model}: no such folder")
    if options.budget < options.sequences:
        parser.error(f"--budget {options.budget} for --sequences {options.sequences}; accepted: one token each at least")
    return options


def main(arguments=None):
    options = parse(arguments)
    dtype = getattr(torch, options.dtype)
    model = (load_model(options.model, dtype) if options.model else small_model(dtype=dtype)).to(options.device)
    paged = PagedModel(model, options.pages, options.page)
    try:
        meter = dfa.TokenMeter(options.meter or options.device, window_s=2.0)
    except (OSError, RuntimeError, ValueError) as error:
        sys.exit(f"serve: {error}")
    engine = Engine(paged, Pages(options.pages, options.page), budget=options.budget, sequences=options.sequences,
                    mixed=not options.apart)
    warm = Request(-1, [1, 2, 3], 2)
    engine.submit(warm)
    try:
        while engine.busy:
            engine.step()
    except (RuntimeError, ValueError) as error:  # pages on a GPU, so far; a model with sinks
        sys.exit(f"serve: {error}")
    engine.finished, engine.steps, engine.meter = [], dict.fromkeys(engine.steps, 0), meter
    requests = draw_requests(options, model.config.get_text_config().vocab_size)
    server = expose(meter, options.metrics) if options.metrics is not None else None
    try:
        governor = dfa.Governor(options.policy, device=options.meter or options.device) if options.policy else None
        with governor or contextlib.nullcontext(), meter:
            seconds = serve(engine, requests, governor)
    except (RuntimeError, ValueError) as error:
        sys.exit(f"serve: {error}")
    name = str(options.model) if options.model else f"random {model.config.model_type}"
    record = meter.record(model=name, device=options.device, parameters=sum(p.numel() for p in model.parameters()), dtype=options.dtype,
                          scenario="server", requests_per_second=options.rate, seed=options.seed, batch_size=options.sequences,
                          step_tokens=options.budget)
    record["serving"] = serving_record(engine, seconds, paged.cache_bytes)
    if governor is not None:
        record["serving"] |= {"policy": options.policy, "seconds_of_gaps": governor.waited_s}
    print(*lines(record), sep="\n")
    options.out.mkdir(parents=True, exist_ok=True)
    (options.out / "serve.json").write_text(json.dumps(record, indent=1, allow_nan=False) + "\n")
    try:
        draw_figure(engine, record, options.out / "serve.png")
    except ImportError as error:
        print(f"no figure: {error}")
    if server is not None:
        server.shutdown()
    if options.check:
        wrong = check(model, engine.finished)
        print(f"answers that generate() gives too: {len(engine.finished) - len(wrong)} of {len(engine.finished)}")
        if wrong:
            sys.exit(f"serve: other answers than generate() for requests {wrong}")


if __name__ == "__main__":
    main()
