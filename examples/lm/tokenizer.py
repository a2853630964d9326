"""Learn a tokenizer from your own text, for `train.py --tokenizer tokenizer.json`.

python tokenizer.py my_texts/ --vocab 8192 --out tokenizer.json
"""

import argparse
import re
import sys
from collections.abc import Iterator
from pathlib import Path

from texts import text_of

from axonym.models import Vocabulary
from axonym.models.tokenizer import END

LONGEST = 1000  # characters of a word
# Text whose words are short; or a long word.
PIECES = re.compile(rf"((?:\S{{1,{LONGEST}}}(?:\s+|$)|\s+)+)|(\S+)")


def learn(texts: Iterator[str], vocab: int, out: Path) -> None:
    """Learn pairs of bytes to join (BPE) from texts, and write the tokenizer."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    made = Tokenizer(models.BPE())
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=vocab, special_tokens=[END], initial_alphabet=alphabet)
    made.train_from_iterator((piece for text in texts for piece in pieces(text)), trainer)
    made.save(str(out))


def pieces(text: str) -> Iterator[str]:
    """Cut words that are longer than any token, such as a file in base64: time grows with their square."""
    for found in PIECES.finditer(text):
        if found[1] is not None:
            yield found[1]
        else:
            yield from (found[2][start : start + LONGEST] for start in range(0, len(found[2]), LONGEST))


def main() -> None:
    """Learn a tokenizer from files."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("text", type=Path, help="a text file, or a folder of them")
    parser.add_argument("--vocab", type=int, default=8192, help="number of tokens")
    parser.add_argument("--out", type=Path, default=Path("tokenizer.json"))
    options = parser.parse_args()
    learn(text_of(options.text), options.vocab, options.out)
    print(f"{Vocabulary(options.out).vocab} tokens: {options.out}")


if __name__ == "__main__":
    try:
        main()
    except (ValueError, OSError) as error:
        sys.exit(f"error: {error}")
