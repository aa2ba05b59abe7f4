"""Byte-pair pieces: words cut into parts that a training text taught (Sennrich et al. 2016).

>>> pieces = Pieces.learn(["low lower lowest", "new newer newest"], size=40)
>>> pieces.decode(pieces.encode("lower newest"))
'lower newest'
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

SPECIAL = ("<pad>", "<s>", "</s>", "<unk>")  # 0 to 3


@dataclass(frozen=True)
class Pieces:
    """A learned table of pieces.

    Args:
        table: a `tokenizers.Tokenizer`.
    """

    table: Any

    @staticmethod
    def learn(texts: Iterable[str], size: int) -> "Pieces":
        """Merge the most frequent neighbours, from letters on, until there are `size` pieces.

        Args:
            texts: what to learn from; both languages for a table that they share.
            size: pieces in all, the four special ones included.
        """
        from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

        table = Tokenizer(models.BPE(unk_token=SPECIAL[3]))
        table.pre_tokenizer = pre_tokenizers.Metaspace()
        table.decoder = decoders.Metaspace()
        trainer = trainers.BpeTrainer(vocab_size=size, special_tokens=list(SPECIAL), show_progress=False)
        table.train_from_iterator(map(_without_marks, texts), trainer)
        return Pieces(table)

    def __len__(self) -> int:
        return int(self.table.get_vocab_size())

    def encode(self, text: str) -> list[int]:
        """The pieces of a text; letters never seen become `<unk>`."""
        return self.encode_all([text])[0]

    def encode_all(self, texts: Sequence[str]) -> list[list[int]]:
        """The pieces of every text. A `</s>` that somebody wrote is letters: only we say where a sentence ends."""
        self.table.encode_special_tokens = True  # here and not in `learn`: a saved or pickled table forgets it
        return [list(found.ids) for found in self.table.encode_batch(list(texts))]

    def decode(self, numbers: Sequence[int]) -> str:
        """The text of some pieces, special ones left out."""
        return str(self.table.decode(list(numbers)))


def _without_marks(text: str) -> str:
    """A text to learn from in which the letters of a mark stand apart, so that no merge spells one."""
    for mark in SPECIAL:
        text = text.replace(mark, " ".join(mark))
    return text
