"""From the header of any format to one `DecoderDescription` and tensors by their canonical names."""

from inferswarm.strategies.dense.readers.gguf import understand_gguf
from inferswarm.strategies.dense.readers.hugging_face import understand_directory
from inferswarm.strategies.dense.readers.understood import Understood

__all__ = ["Understood", "understand_directory", "understand_gguf"]
