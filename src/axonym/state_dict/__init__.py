"""State dicts: the arrays of a model by key, as torch and Hugging Face store them, and safetensors files."""

from .axes import *
from .convert import *
from .files import *
from .layouts import *
