from dfa._attention import attention as attention
from dfa._core import Plan as Plan
from dfa._governor import Governor as Governor
from dfa._meter import EnergyMeter as EnergyMeter
from dfa._plan import backends as backends
from dfa._plan import plan as plan
from dfa._policy import Policy as Policy
from dfa._token_meter import TokenMeter as TokenMeter
from dfa._torch_quantize import quantize as quantize
from dfa._torch_rotate import rotate as rotate
from dfa._torch_varlen import attention_varlen as attention_varlen

__version__: str
__all__: list[str]
