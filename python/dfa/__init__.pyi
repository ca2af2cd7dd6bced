from dfa._attention import attention as attention
from dfa._core import Plan as Plan
from dfa._meter import EnergyMeter as EnergyMeter
from dfa._plan import backends as backends
from dfa._plan import plan as plan

__version__: str
__all__: list[str]
