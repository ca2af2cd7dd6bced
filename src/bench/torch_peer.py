"""Attention of PyTorch for `dfa bench --peers torch`: one JSON request a line in, one answer out.
SDPA by one of its backends, or FlashAttention-3 where the package is installed.

  hello {pci_id}                      -> version; pci_id empty: on the host
  load {folder, problem}              q, k, v (and do) are files of raw elements in the folder
  make {id, kind, launch, calls}      a way to run it; `calls` calls make one run; compile…: SDPA by
                                      torch.compile, its backward with it
  run {id, times}  time {id} -> seconds   growth {id} -> bytes   outputs {id}: files o, dq, dk, dv
  drop                                forgets the problem
An answer that is not ok has a status (out_of_memory, unsupported, failed) and a reason.
"""
import contextlib
import gc
import importlib
import json
import os
import signal
import sys
import time
import traceback
import types

COMPILE_MODES = {"compile": "default", "compile-reduce-overhead": "reduce-overhead",
                 "compile-max-autotune": "max-autotune"}
FLASH3 = "flash3"
GRAPH_MODES = ("compile-reduce-overhead", "compile-max-autotune")


def torch_device(torch, pci_id):
    if not pci_id:
        return torch.device("cpu")
    if not torch.cuda.is_available():
        raise LookupError("it sees no GPU")
    domain, bus, rest = pci_id.split(":")
    wanted = (int(domain, 16), int(bus, 16), int(rest.split(".")[0], 16))
    for index in range(torch.cuda.device_count()):
        facts = torch.cuda.get_device_properties(index)
        if (facts.pci_domain_id, facts.pci_bus_id, facts.pci_device_id) == wanted:
            return torch.device("cuda", index)
    raise LookupError(f"it does not see the GPU {pci_id}")


def flash3(torch):
    """The operators of FlashAttention-3, of its own package or as xformers brings them."""
    reasons = []
    for name in ("flash_attn_3._C", "xformers.flash_attn_3._C"):
        try:
            importlib.import_module(name)
            return torch.ops.flash_attn_3
        except ImportError as error:
            reasons.append(str(error))
    raise LookupError("no FlashAttention-3: " + "; ".join(reasons))


class Peer:
    def __init__(self):
        self.ways = {}
        self.compiled = False  # has anything of the problem been

    def hello(self, request):
        try:
            import torch
        except ImportError as error:
            raise LookupError(f"no PyTorch in {sys.executable}: {error}") from None
        self.torch = torch
        self.device = torch_device(torch, request["pci_id"])
        if self.device.type == "cuda":
            torch.cuda.set_device(self.device)
        return {"version": f"PyTorch {torch.__version__}"}

    def load(self, request):
        self.drop(request)
        torch, problem = self.torch, request["problem"]
        self.problem, self.folder = problem, request["folder"]
        types = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32,
                 "tf32": torch.float32}
        if problem["dtype"] not in types:
            raise LookupError(f"no type {problem['dtype']} in SDPA")
        self.type = types[problem["dtype"]]
        torch.backends.cuda.matmul.allow_tf32 = problem["dtype"] == "tf32"
        torch.use_deterministic_algorithms(problem["deterministic"])
        self.q = self.read("q", "q", "hq", "sq", "d")
        self.k = self.read("k", "k", "hk", "sk", "d")
        self.v = self.read("v", "v", "hk", "sk", "dv")
        self.grad = self.read("do", "o", "hq", "sq", "dv") if problem["backward"] else None
        for tensor in (self.q, self.k, self.v):
            tensor.requires_grad_(problem["backward"])
        return {}

    def shape(self, heads, length, width):
        p = self.problem
        return p["b"], p[heads], p[length], p[width]

    def extent(self, shape, strides):
        return 1 + sum((n - 1) * s for n, s in zip(shape, [*strides, 1]))

    def read(self, name, strides_of, *sizes):
        shape, strides = self.shape(*sizes), self.problem[strides_of + "_strides"]
        flat = self.torch.from_file(os.path.join(self.folder, name), shared=False,
                                    size=self.extent(shape, strides), dtype=self.type)
        return flat.to(self.device).as_strided(shape, [*strides, 1]).detach()

    def write(self, name, tensor, strides_of):
        strides = self.problem[strides_of + "_strides"]
        path = os.path.join(self.folder, name)
        with contextlib.suppress(FileNotFoundError):
            os.unlink(path)
        flat = self.torch.from_file(path, shared=True, size=self.extent(tensor.shape, strides),
                                    dtype=self.type)
        flat.as_strided(tensor.shape, [*strides, 1]).copy_(tensor.detach())

    def options(self):
        p = self.problem
        options = {"scale": p["scale"], "enable_gqa": p["hq"] != p["hk"]}
        if p["causal"] and p["sq"] == p["sk"]:
            options["is_causal"] = True
        elif p["causal"]:
            from torch.nn.attention.bias import causal_lower_right
            options["attn_mask"] = causal_lower_right(p["sq"], p["sk"])
        return options

    def of_sdpa(self, launch, number):
        """SDPA of q, k, v, as it is or compiled for this way alone, and its gradients."""
        if not (self.problem["full"] or self.problem["causal"]):
            raise LookupError("SDPA takes a window as a mask tensor only, which is another problem; "
                              "accepted: torch-flash3")
        sdpa, options = self.torch.nn.functional.scaled_dot_product_attention, self.options()

        def attend(q, k, v):
            return sdpa(q, k, v, **options)

        def differentiate(out):
            return self.torch.autograd.grad(out, (self.q, self.k, self.v), self.grad, retain_graph=True)
        if launch in COMPILE_MODES:
            # Compiled code is kept by code object, whatever kernels the context chose: one for each way.
            name = f"attend_{number}"
            own = types.FunctionType(attend.__code__.replace(co_name=name), attend.__globals__, name,
                                     None, attend.__closure__)
            # A backward alone is run again and again on one forward.
            self.torch._functorch.config.donated_buffer = False
            self.compiled = True
            attend = self.torch.compile(own, mode=COMPILE_MODES[launch], fullgraph=True, dynamic=False)
        return lambda: (attend(self.q, self.k, self.v),), lambda made: differentiate(made[0])

    def of_flash3(self, launch):
        """Likewise, straight by its operators: rows of a head are those of all heads there."""
        if launch in COMPILE_MODES:
            raise LookupError("FlashAttention-3 is compiled already")
        if self.device.type != "cuda" or self.problem["dtype"] not in ("bf16", "fp16"):
            raise LookupError("FlashAttention-3 takes fp16 and bf16 on a GPU")
        ops, p = flash3(self.torch), self.problem
        options = {"softmax_scale": p["scale"], "is_causal": p["causal"]}
        if not (p["full"] or p["causal"]):  # keys on either side, from the last row and key on
            options["window_size_left"], options["window_size_right"] = p["window"]
        q, k, v = (t.detach().transpose(1, 2) for t in (self.q, self.k, self.v))

        def attend():
            out, lse, *_ = ops.fwd(q, k, v, **options)
            return out.transpose(1, 2), lse

        def differentiate(made):
            made = made[0].transpose(1, 2), made[1]
            gradients = [self.torch.empty_like(t) for t in (q, k, v)]
            dq, dk, dv = gradients
            ops.bwd(self.grad.transpose(1, 2), q, k, v, *made, dq=dq, dk=dk, dv=dv,
                    deterministic=p["deterministic"], **options)
            return [t.transpose(1, 2) for t in gradients]
        return attend, differentiate

    def chosen(self, kind):
        if kind == FLASH3:
            return contextlib.nullcontext()
        from torch.nn.attention import SDPBackend, sdpa_kernel
        return sdpa_kernel({"flash": SDPBackend.FLASH_ATTENTION, "cudnn": SDPBackend.CUDNN_ATTENTION,
                            "efficient": SDPBackend.EFFICIENT_ATTENTION,
                            "math": SDPBackend.MATH}[kind])

    def make(self, request):
        torch, p = self.torch, self.problem
        if request["launch"] in GRAPH_MODES and not p["forward"]:
            # Reading it later is an error of PyTorch's.
            raise LookupError(f"{request['launch']} keeps what a forward made until anything compiled runs "
                              "again, which a backward alone outlives; accepted: fwdbwd")
        if request["launch"] == "graph" and self.device.type != "cuda":
            raise LookupError("no graphs to replay on the host")
        stream = torch.cuda.Stream() if self.device.type == "cuda" else None
        on_stream = torch.cuda.stream(stream) if stream else contextlib.nullcontext()
        kind, launch = request["kind"], request["launch"]
        attend, differentiate = (self.of_flash3(launch) if kind == FLASH3 else
                                 self.of_sdpa(launch, request["id"]))
        with self.chosen(kind), on_stream, torch.set_grad_enabled(p["backward"]):
            kept = None if p["forward"] else attend()

            def call():
                made = attend() if p["forward"] else kept
                return (made[0], *differentiate(made)) if p["backward"] else (made[0],)

            results = call()
            self.synchronize()
            del results
            graph = None
            if request["launch"] == "graph":
                graph = torch.cuda.CUDAGraph()
                with torch.cuda.graph(graph, stream=stream):
                    for _ in range(request["calls"]):
                        replayed = call()
            way = {"kind": kind, "stream": on_stream, "call": call,
                   "calls": request["calls"], "graph": graph,
                   "replayed": replayed if graph else None}
        self.ways[request["id"]] = way
        return {}

    def queue(self, way, times=1):
        """What one call returns."""
        results = None
        for _ in range(times if way["graph"] else times * way["calls"]):
            if way["graph"]:
                way["graph"].replay()
                results = way["replayed"]
            else:
                results = way["call"]()
        return results

    def within(self, way):
        stack = contextlib.ExitStack()
        stack.enter_context(self.chosen(way["kind"]))
        stack.enter_context(way["stream"])
        stack.enter_context(self.torch.set_grad_enabled(self.problem["backward"]))
        return stack

    def synchronize(self):
        if self.device.type == "cuda":
            self.torch.cuda.synchronize()

    def run(self, request):
        way = self.ways[request["id"]]
        with self.within(way):
            self.queue(way, request["times"])
        self.synchronize()
        return {}

    def time(self, request):
        way = self.ways[request["id"]]
        with self.within(way):
            if self.device.type != "cuda":
                begin = time.perf_counter()
                self.queue(way)
                return {"seconds": time.perf_counter() - begin}
            start, stop = (self.torch.cuda.Event(enable_timing=True) for _ in range(2))
            start.record()
            self.queue(way)
            stop.record()
        stop.synchronize()
        return {"seconds": start.elapsed_time(stop) * 1e-3}

    def growth(self, request):
        if self.device.type != "cuda":
            return {"bytes": None}
        torch, way = self.torch, self.ways[request["id"]]
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        with self.within(way):
            results = way["call"]()
        self.synchronize()
        grown = torch.cuda.max_memory_allocated() - before
        # What it returns is among the problem's tensors, which are counted apart.
        if not self.problem["forward"]:
            results = results[1:]
        return {"bytes": max(0, grown - sum(r.untyped_storage().nbytes() for r in results))}

    def outputs(self, request):
        way = self.ways[request["id"]]
        with self.within(way):
            results = self.queue(way)
        self.synchronize()
        for name, tensor, strides in zip(("o", "dq", "dk", "dv"), results, "oqkv"):
            self.write(name, tensor, strides)
        return {}

    def drop(self, request):
        if self.compiled:
            self.torch.compiler.reset()  # its graphs, and what it knows of them
            self.compiled = False
        self.ways.clear()
        self.q = self.k = self.v = self.grad = None
        gc.collect()
        if self.device.type == "cuda":
            self.torch.cuda.empty_cache()
        return {}

    def answer(self, request):
        operations = ("hello", "load", "make", "run", "time", "growth", "outputs", "drop")
        if request["op"] not in operations:
            raise LookupError(f"unknown request {request['op']}")
        return {"ok": True, **getattr(self, request["op"])(request)}


UNSUPPORTED = ("No available kernel", "no viable backend", "not supported", "unsupported",
               "No valid execution plan", "No execution plan", "does not have a deterministic")


def status_of(error):
    if type(error).__name__ == "OutOfMemoryError" or "out of memory" in str(error):
        return "out_of_memory"
    if isinstance(error, LookupError) or any(text in str(error) for text in UNSUPPORTED):
        return "unsupported"
    return "failed"


def reason_of(error):
    """Its first line; of an error without words, where it was raised."""
    words = str(error).strip().splitlines()
    if words:
        return words[0][:300]
    at = traceback.extract_tb(error.__traceback__)[-1]
    return f"{type(error).__name__} at {os.path.basename(at.filename)}:{at.lineno}, {at.name}: {at.line}"[:300]


def main():
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):  # are for the study, which then closes us
        signal.signal(number, signal.SIG_IGN)
    replies = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what libraries print is no answer
    peer = Peer()
    for line in sys.stdin:
        try:
            answer = peer.answer(json.loads(line))
        except Exception as error:  # any failure of the library is a status of its case
            answer = {"ok": False, "status": status_of(error), "reason": reason_of(error)}
        print(json.dumps(answer), file=replies, flush=True)


if __name__ == "__main__":
    main()
