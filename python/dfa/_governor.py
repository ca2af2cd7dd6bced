"""A loop of the user's, held under a cap of watts or degrees."""

from dfa import _core
from dfa._meter import _wait_for_gpu
from dfa._policy import Policy


class Governor:
    """Holds a loop under a cap by gaps after its steps. No clock or limit of the card is touched.

        with dfa.Governor("power_cap:500W") as governor:
            for batch in batches:
                train_step(batch)
                governor.pace()

    policy: power_cap:500W or temp_cap:70C, text or dfa.Policy. device: "cuda", the GPU that dfa uses, or a PCI bus
    id or UUID. Entering takes two seconds in which the idle card is measured, unless idle_w is given:
    nothing may run on it then. For calibrate_s seconds the loop then runs freely, so that what it draws is
    known; the cap may be exceeded until then.

    pace() waits for the GPU (PyTorch, CuPy) and then as long as the cap asks. Gaps fall between steps: watts
    swing between those of a step and those of the idle card, and what is held is their mean, the more steadily the
    shorter the steps (a tenth of a second or less).

    status: calibrating, holding, stale (no readings: by what was learned), foreign or infeasible, then with the nearest
    value that can be had in `reachable`. duty: the share of the time that steps take. power_w, steps, waited_s,
    idle_w tell more. Raises RuntimeError where there is no power sensor, ValueError for other policies.
    """

    status: str
    duty: float
    power_w: float | None
    reachable: float | None
    steps: int
    waited_s: float
    idle_w: float | None

    def __init__(self, policy: Policy | str, *, device: str = "cuda", calibrate_s: float = 2.0,
                 idle_w: float | None = None):
        self._loop = _core.Loop(str(policy), device, calibrate_s, idle_w)

    def __enter__(self) -> "Governor":
        _wait_for_gpu()
        self._loop.begin()
        return self

    def __exit__(self, *exception: object) -> None:
        self._loop.end()

    def pace(self) -> None:
        """Waits for the GPU, then as long as the cap asks: after each step of the loop."""
        _wait_for_gpu()
        self._loop.pace()

    def __getattr__(self, name):
        if name in ("status", "duty", "power_w", "reachable", "steps", "waited_s", "idle_w"):
            return getattr(self._loop, name)
        raise AttributeError(f"dfa.Governor has no attribute '{name}'")
