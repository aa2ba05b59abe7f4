"""The zoo: models that are not ours, tiny and random, each with a batch that has padding where the kind of model knows it."""

import warnings
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import torch
from torch import Tensor, nn

import sparring as sp
from sparring.passes import call

CLASSES, WORDS, BATCH, LENGTH = 3, 30, 3, 6
LENGTHS = (6, 4, 2)


@dataclass(frozen=True)
class Specimen:
    """A model and how to feed it.

    Attributes:
        name: row of the table.
        build: makes the model.
        inputs: (batch, padding side) -> inputs.
        at: where embeddings come out; None for the input itself.
        valid: the padding mask, where the inputs do not carry it under a name that is known.
        pads: whether examples have padding.
        options: what an objective or a target needs beside: `outputs`, `tokens` (labels for every word), `square` (classes = batch).
    """

    name: str
    build: Callable[[], nn.Module]
    inputs: Callable[[int, str], Any]
    at: str | None = None
    valid: Callable[[int, str], Tensor] | None = None
    pads: bool = False
    options: dict[str, Any] = field(default_factory=dict)

    @cache  # noqa: B019  # specimens live as long as the session
    def model(self) -> nn.Module:
        """The model, built once for all tests that look at it."""
        torch.manual_seed(0)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            model = self.build()
        with torch.no_grad():  # fresh weights are so small that every prediction is the same
            for parameter in model.parameters():
                if parameter.dim() > 1:
                    parameter.add_(torch.randn_like(parameter) * 0.1)
        model.train()
        call(model, self.inputs(BATCH, "right"))  # some models put hooks of their own in place when they first run
        return model

    def site(self) -> sp.Site:
        if self.at is None:
            return sp.Input()
        if self.at != "embeddings":
            return sp.Output(self.at)
        model: Any = self.model()
        wanted = model.get_input_embeddings()
        return sp.Output(next(name for name, module in model.named_modules() if module is wanted))

    def __hash__(self) -> int:
        return hash(self.name)


def mask(batch: int, side: str) -> Tensor:
    """(B, T) True on words; sentences of 6, 4 and 2 words."""
    lengths = torch.tensor([LENGTHS[k % 3] for k in range(batch)])
    words = torch.arange(LENGTH) < lengths[:, None]
    return words if side == "right" else words.flip(1)


def ids(batch: int, side: str) -> Tensor:
    generator = torch.Generator().manual_seed(1)
    words = torch.randint(5, WORDS, (batch, LENGTH), generator=generator)
    return words.masked_fill(~mask(batch, side), 0)


def text(batch: int, side: str) -> dict[str, Tensor]:
    return {"input_ids": ids(batch, side), "attention_mask": mask(batch, side).long()}


def image(channels: int = 3, size: int = 16) -> Callable[[int, str], dict[str, Tensor]]:
    def make(batch: int, side: str) -> dict[str, Tensor]:
        generator = torch.Generator().manual_seed(1)
        return {"pixel_values": torch.randn(batch, channels, size, size, generator=generator)}

    return make


def noise(*shape: int, key: str | None = None) -> Callable[[int, str], Any]:
    def make(batch: int, side: str) -> Any:
        values = torch.randn(batch, *shape, generator=torch.Generator().manual_seed(1))
        return values if key is None else {key: values}

    return make


def targets(batch: int) -> Tensor:
    return torch.arange(batch) % CLASSES


# -- Hugging Face ------------------------------------------------------------------------------------------------

SIZES = {
    "vocab_size": WORDS,
    "hidden_size": 8,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 16,
    "max_position_embeddings": 32,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "num_labels": CLASSES,
}


def _classifier(kind: str, task: str = "AutoModelForSequenceClassification", **changes: Any) -> Callable[[], nn.Module]:
    def build() -> nn.Module:
        import transformers

        sizes = {key: value for key, value in (SIZES | changes).items() if value is not None}
        config = transformers.AutoConfig.for_model(kind, **sizes)
        return getattr(transformers, task).from_config(config)

    return build


def _text(name: str, at: str | None = "embeddings", **changes: Any) -> Specimen:
    kind = changes.pop("kind", name)
    return Specimen(name, _classifier(kind, **changes), text, at, pads=True)


def _gpt2(kind: str, **more: Any) -> Specimen:
    return _text(kind, n_embd=8, n_layer=2, n_head=2, n_positions=32, **more)


def _image(name: str, size: int = 16, **changes: Any) -> Specimen:
    sizes = {"image_size": size, "patch_size": 4, "num_channels": 3} | changes
    return Specimen(name, _classifier(name, "AutoModelForImageClassification", **sizes), image(3, size))


_BART = {
    "d_model": 8, "encoder_layers": 1, "decoder_layers": 1, "encoder_attention_heads": 2, "decoder_attention_heads": 2,
    "encoder_ffn_dim": 16, "decoder_ffn_dim": 16,
}  # fmt: skip
_T5 = {"d_model": 8, "d_kv": 4, "d_ff": 16, "num_layers": 1, "num_decoder_layers": 1, "num_heads": 2}
_SPEECH = {
    "hidden_size": 16, "conv_dim": (8, 8), "conv_stride": (4, 2), "conv_kernel": (8, 4), "num_feat_extract_layers": 2,
    "num_conv_pos_embeddings": 4, "num_conv_pos_embedding_groups": 2, "mask_time_length": 2, "classifier_proj_size": 8, "layerdrop": 0.0,
}  # fmt: skip


def sentences(batch: int, side: str) -> dict[str, Tensor]:
    """A source and the beginning of a target, of equal length and with padding of their own."""
    generator = torch.Generator().manual_seed(2)
    decoder = torch.randint(5, WORDS, (batch, LENGTH), generator=generator)
    own = mask(batch, side).flip(0)
    return text(batch, side) | {"decoder_input_ids": decoder, "decoder_attention_mask": own.long()}


def _translator(name: str, at: str, **changes: Any) -> Specimen:
    build = _classifier(name, "AutoModelForSeq2SeqLM", decoder_start_token_id=1, **changes)
    return Specimen(name, build, sentences, at, pads=True, options={"tokens": WORDS})


def _two_towers() -> nn.Module:
    import transformers

    config = transformers.CLIPConfig(
        text_config={k: v for k, v in SIZES.items() if k != "num_labels"},
        vision_config={"hidden_size": 8, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "image_size": 16, "patch_size": 4},
        projection_dim=8,
    )  # fmt: skip
    return transformers.CLIPModel(config)


def _both(batch: int, side: str) -> dict[str, Tensor]:
    given = text(batch, side)
    given["input_ids"] = given["input_ids"].clone()
    given["input_ids"][:, -1] = 2
    return given | image()(batch, side)


def _lora() -> nn.Module:
    import peft

    config = peft.LoraConfig(task_type="SEQ_CLS", r=2, target_modules=["query", "value"], lora_dropout=0.1)
    return peft.get_peft_model(_classifier("bert")(), config)


ENCODERS = (
    _text("bert"), _text("roberta"), _text("electra", embedding_size=8), _text("albert", embedding_size=8),
    _text("distilbert", dim=8, n_layers=2, n_heads=2, hidden_dim=16), _text("xlm-roberta"), _text("camembert"), _text("mpnet"),
    _text("ernie"), _text("megatron-bert"), _text("roformer", embedding_size=8), _text("convbert", embedding_size=8),
    _text("squeezebert", embedding_size=8, q_groups=1, k_groups=1, v_groups=1, post_attention_groups=1, intermediate_groups=1, output_groups=1),
    _text("mobilebert", embedding_size=8, intra_bottleneck_size=8, true_hidden_size=8), 
    _text("fnet"), _text("modernbert", global_attn_every_n_layers=1), _text("layoutlm"), _text("esm", position_embedding_type="rotary"),
    _text("big_bird", attention_type="original_full"), _text("deberta", relative_attention=True, pos_att_type=["c2p", "p2c"]),
    _text("deberta-v2", relative_attention=True, pos_att_type=["c2p", "p2c"]),
    _text("xlnet", d_model=8, n_layer=2, n_head=2, d_inner=16, max_position_embeddings=None), _text("funnel", d_model=8, n_head=2, d_head=4, d_inner=16, block_sizes=[1, 1], num_hidden_layers=None),
    _text("ibert"), _text("data2vec-text"), _text("rembert", input_embedding_size=8, output_embedding_size=8), _text("xmod", languages=["en_XX"], default_language="en_XX"),
)  # fmt: skip
_ROWS = {"num_key_value_heads": 1, "head_dim": 4}
DECODERS = (
    _gpt2("gpt2"), _text("gpt_neo", num_layers=2, num_heads=2, attention_types=[[["global"], 2]]), _text("gpt_neox"), _text("llama", **_ROWS),
    _text("mistral", **_ROWS), _text("qwen2", **_ROWS), _text("qwen3", **_ROWS), _text("gemma", **_ROWS),
    _text("gemma2", **_ROWS, attn_implementation="eager"), _text("phi"), _text("opt", ffn_dim=16, word_embed_proj_dim=8), _text("bloom", n_layer=2, n_head=2),
    _text("falcon", attn_implementation="eager"), _text("mixtral", **_ROWS, num_local_experts=2, num_experts_per_tok=1),
    _text("gpt_oss", **_ROWS, num_local_experts=2, num_experts_per_tok=1, attn_implementation="eager"), _text("persimmon"),
)  # fmt: skip
TRANSLATORS = (
    _translator("bart", "model.encoder.layers.0", **_BART), _translator("mbart", "model.decoder.layers.0", **_BART),
    _translator("t5", "decoder.block.0", **_T5), _translator("pegasus", "model.encoder.layers.0", **_BART),
)  # fmt: skip
OTHERS = (
    _image("vit"), _image("beit"), _image("dinov2"),
    _image("swin", embed_dim=8, depths=[2], num_heads=[2], window_size=2, patch_size=2, num_attention_heads=None, num_hidden_layers=None, hidden_size=None, intermediate_size=None),
    _image("convnext", hidden_sizes=[8, 8], depths=[1, 1], num_stages=2), _image("resnet", embedding_size=8, hidden_sizes=[8, 8], depths=[1, 1], layer_type="basic"),
    Specimen("wav2vec2", _classifier("wav2vec2", "AutoModelForAudioClassification", **_SPEECH), noise(400, key="input_values"), "wav2vec2.feature_projection"),
    Specimen("hubert", _classifier("hubert", "AutoModelForAudioClassification", **_SPEECH), noise(400, key="input_values"), "hubert.feature_projection"),
    Specimen("clip", _two_towers, _both, "text_model.embeddings", pads=True, options={"outputs": lambda o: o.logits_per_image, "square": True}),
    Specimen("bert + LoRA", _lora, text, "base_model.model.bert.embeddings.word_embeddings", pads=True),
)  # fmt: skip


# -- torch's own -------------------------------------------------------------------------------------------------


class Reader(nn.Module):
    """Words, some layer of torch's, a classifier of the mean over words."""

    def __init__(
        self, layer: nn.Module, call: Callable[[nn.Module, Tensor, Tensor], Tensor], tied: bool = False
    ) -> None:
        super().__init__()
        self.embedding, self.layer, self.call = nn.Embedding(WORDS, 8), layer, call
        self.dropout, self.head = nn.Dropout(0.2), nn.Linear(8, WORDS if tied else CLASSES, bias=False)
        if tied:
            self.head.weight = self.embedding.weight

    def forward(self, words: Tensor) -> Tensor:
        valid = words != 0
        x = self.call(self.layer, self.embedding(words), valid)
        x = (x * valid.unsqueeze(-1)).sum(1) / valid.sum(1, keepdim=True)
        return self.head(self.dropout(x))[:, :CLASSES]


def _first(layer: nn.Module, x: Tensor, valid: Tensor) -> Tensor:
    return layer(x)[0]


def _turned(layer: nn.Module, x: Tensor, valid: Tensor) -> Tensor:
    return layer(x.transpose(0, 1))[0].transpose(0, 1)


def _padded(layer: nn.Module, x: Tensor, valid: Tensor) -> Tensor:
    return layer(x, src_key_padding_mask=~valid)


def _padded_turned(layer: nn.Module, x: Tensor, valid: Tensor) -> Tensor:
    return layer(x.transpose(0, 1), src_key_padding_mask=~valid).transpose(0, 1)


def _attending(layer: nn.Module, x: Tensor, valid: Tensor) -> Tensor:
    return layer(x, x, x, key_padding_mask=~valid, need_weights=False)[0]


def _both_sides(layer: nn.Module, x: Tensor, valid: Tensor) -> Tensor:
    return layer(x, x.flip(1), src_key_padding_mask=~valid)


def _twice(layer: nn.Module, x: Tensor, valid: Tensor) -> Tensor:
    return torch.tanh(layer(torch.tanh(layer(x))))


def _encoder(batch_first: bool = True) -> nn.Module:
    return nn.TransformerEncoderLayer(8, 2, 16, batch_first=batch_first)


def _stack(batch_first: bool = True) -> nn.Module:
    return nn.TransformerEncoder(_encoder(batch_first), 2, enable_nested_tensor=False)


class Pair(nn.Module):
    """Two inputs: a tensor of numbers and one of words, by position."""

    def __init__(self) -> None:
        super().__init__()
        self.numbers, self.embedding, self.dropout = nn.Linear(4, 8), nn.EmbeddingBag(WORDS, 8), nn.Dropout(0.2)
        self.head = nn.Linear(8, CLASSES)

    def forward(self, numbers: Tensor, words: Tensor) -> Tensor:
        return self.head(self.dropout(torch.tanh(self.numbers(numbers)) + self.embedding(words)))


def _pair(batch: int, side: str) -> tuple[Tensor, Tensor]:
    return noise(4)(batch, side), ids(batch, side)


def _reader(name: str, make: Callable[[], nn.Module], call: Any, tied: bool = False) -> Specimen:
    return Specimen(name, lambda: Reader(make(), call, tied), ids, "embedding", valid=mask, pads=True)


TORCH = (
    _reader("nn.LSTM", lambda: nn.LSTM(8, 8, batch_first=True), _first),
    _reader("nn.LSTM, time-major", lambda: nn.LSTM(8, 8), _turned),
    _reader("nn.GRU, 2 layers, both ways", lambda: nn.GRU(8, 4, 2, batch_first=True, bidirectional=True, dropout=0.2), _first),
    _reader("nn.RNN", lambda: nn.RNN(8, 8, batch_first=True), _first),
    _reader("nn.MultiheadAttention", lambda: nn.MultiheadAttention(8, 2, 0.1, batch_first=True), _attending),
    _reader("nn.TransformerEncoder", _stack, _padded),
    _reader("nn.TransformerEncoder, time-major", lambda: _stack(False), _padded_turned),
    _reader("nn.Transformer", lambda: nn.Transformer(8, 2, 1, 1, 16, batch_first=True), _both_sides),
    _reader("tied weights", lambda: nn.GRU(8, 8, batch_first=True), _first, tied=True),
    _reader("one layer used twice", lambda: nn.Linear(8, 8), _twice),
    Specimen("two inputs", Pair, _pair, "numbers"),
    Specimen("convolutions with batch norm", lambda: nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Dropout2d(0.2), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, CLASSES)), noise(3, 8, 8)),
)  # fmt: skip

HUGGING_FACE = (*ENCODERS, *DECODERS, *TRANSLATORS, *OTHERS)
SPECIMENS = (*HUGGING_FACE, *TORCH)
