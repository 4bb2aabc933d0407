"""Tokenizers: text to tokens and back, loading and training them.  Ground floor."""
from .loading import load_tokenizer, train_tokenizer, trained_size, training_options
from .tokenizer import END_TOKEN, Encoded, Tokenizer

__all__ = ["END_TOKEN", "Encoded", "Tokenizer", "load_tokenizer", "train_tokenizer", "trained_size", "training_options"]
