"""Learn a tokenizer from your own text, for `train.py --tokenizer tokenizer.json`.

python tokenizer.py my_texts/ --vocab 8192 --out tokenizer.json
"""

import argparse
import sys
from pathlib import Path

from texts import text_of

from axonym.models import Vocabulary
from axonym.models.tokenizer import learn


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
