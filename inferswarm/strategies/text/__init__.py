"""Text of a model: its tokenizer, its chat template, and text that arrives token by token.

Importing this package loads neither `tokenizers` nor `jinja2` (extra `fabric`); building a codec or a template does.
"""

from inferswarm.strategies.text.chat import ChatIds, ChatPrompt, ChatTemplate, encode_chat
from inferswarm.strategies.text.detokenizer import Detokenizer
from inferswarm.strategies.text.stop import StopMatcher, StopResult
from inferswarm.strategies.text.tokenizer import TextCodec

__all__ = [
    "ChatIds",
    "ChatPrompt",
    "ChatTemplate",
    "Detokenizer",
    "StopMatcher",
    "StopResult",
    "TextCodec",
    "encode_chat",
]
