"""Decoders with published weights: load and save them, generate text, and tune them on conversations."""

from .chats import conversations, read_template
from .config import DecoderConfig, DeltaConfig, ExpertsConfig, LatentConfig, Rope
from .decoder import Decoder
from .generation import Sampling, TextGenerator, generate, read_sampling
from .huggingface import load, save
from .settings import read_config, write_config
from .tokenizer import Bytes, Tokenizer, Vocabulary, read_tokenizer

__all__ = [
    "Bytes",
    "Decoder",
    "DecoderConfig",
    "DeltaConfig",
    "ExpertsConfig",
    "LatentConfig",
    "Rope",
    "Sampling",
    "TextGenerator",
    "Tokenizer",
    "Vocabulary",
    "conversations",
    "generate",
    "load",
    "read_config",
    "read_sampling",
    "read_template",
    "read_tokenizer",
    "save",
    "write_config",
]
