"""The models that are exported, from configurations alone: nothing is downloaded."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import timm
import torch
import transformers as hf
from torch import Tensor, nn

from tests.zoo.export.detr import PIXELS, QUERIES, Attention, inputs
from tests.zoo.export.forms import Form, convolutional, every, some, two
from tests.zoo.export.setr import IMAGE, Setr, naive, pup

PADDING = 7  # tokens at the end of the second text of a batch, where there is a mask
SYMBOLIC_BATCH = {0: "batch"}
SYMBOLIC_TEXT = {0: "batch", 1: "sequence"}
Inputs = dict[str, Tensor]


@dataclass(frozen=True)
class Subject:
    """A model, the inputs that it is exported with, and the forms in which it is.

    `build` takes a form's attention and `inputs` whether there is a mask. `result` is
    the field of the model's answer that is exported, or "" where it answers one tensor. `axes`
    names the symbolic dimensions of each input.
    """

    build: Callable[[str], nn.Module]
    result: str
    inputs: Callable[[bool], Inputs]
    axes: Mapping[str, Mapping[int, str]]
    forms: tuple[Form, ...]


class Pooled(nn.Module):
    """A sentence encoder: the mean of a text's tokens, of length 1."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        tokens = self.model(input_ids=input_ids, attention_mask=attention_mask).last_hidden_state
        kept = attention_mask.unsqueeze(-1).to(tokens.dtype)
        return nn.functional.normalize((tokens * kept).sum(1) / kept.sum(1).clamp(min=1e-9))


def _images(
    build: Callable[[str], nn.Module],
    forms: Iterable[Form],
    *size: int,
    batch: int = 2,
    result: str = "",
    name: str = "pixel_values",
) -> Subject:
    """A model of images (or spectra) of `size`, whose batch alone may be symbolic."""
    return Subject(
        build,
        result,
        lambda mask: {name: torch.randn(batch, *size)},
        {name: SYMBOLIC_BATCH},
        tuple(forms),
    )


def _texts(
    build: Callable[[str], nn.Module],
    forms: Iterable[Form],
    length: int = 40,
    vocabulary: int = 30522,
    result: str = "last_hidden_state",
) -> Subject:
    """A model of texts, two of them of `length` tokens."""

    def inputs(mask: bool) -> Inputs:
        kept = torch.ones(2, length, dtype=torch.int64)
        kept[1, -PADDING:] = 0
        ids = {"input_ids": torch.randint(1, vocabulary, (2, length))}
        return ids | ({"attention_mask": kept} if mask else {})

    axes = {"input_ids": SYMBOLIC_TEXT, "attention_mask": SYMBOLIC_TEXT}
    return Subject(build, result, inputs, axes, tuple(forms))


def _subgraph(
    build: Callable[[str], nn.Module], forms: Iterable[Form], result: str = "", **lengths: int
) -> Subject:
    """A part of DETR, whose inputs have these lengths and a symbolic batch."""
    axes = dict.fromkeys(lengths, SYMBOLIC_BATCH)
    return Subject(build, result, lambda mask: inputs(**lengths), axes, tuple(forms))


def _timm(name: str, **options: Any) -> Callable[[str], nn.Module]:
    """A builder of a model of timm, which reads the attention from a setting of its own."""

    def build(attention: str) -> nn.Module:
        timm.layers.set_fused_attn(attention == "sdpa", experimental=True)
        return timm.create_model(name, pretrained=False, **options)

    return build


def _hf(model: Any, config: Any, part: str = "", **options: Any) -> Callable[[str], nn.Module]:
    """A builder of a model of transformers or a part of it; `options` are its configuration's."""

    def build(attention: str) -> nn.Module:
        made = model._from_config(config(**options), attn_implementation=attention or "eager")
        return made.get_submodule(part)

    return build


def _minilm(attention: str) -> nn.Module:
    bert = _hf(
        hf.BertModel,
        hf.BertConfig,
        hidden_size=384,
        num_hidden_layers=6,
        num_attention_heads=12,
        intermediate_size=1536,
    )
    return Pooled(bert(attention))


def _setr(
    width: int, depth: int, heads: int, decoder: Callable[[int], nn.Module]
) -> Callable[[str], nn.Module]:
    def build(attention: str) -> nn.Module:
        timm.layers.set_fused_attn(attention == "sdpa", experimental=True)
        return Setr(width, depth, heads, decoder(width))

    return build


def _detr(layers: int) -> Callable[[str], nn.Module]:
    """DETR with `layers` in its encoder; the convolutions are timm's ResNet-50."""
    return _hf(hf.DetrForObjectDetection, hf.DetrConfig, encoder_layers=layers)


BERT_LARGE: dict[str, Any] = {
    "hidden_size": 1024,
    "num_hidden_layers": 24,
    "num_attention_heads": 16,
    "intermediate_size": 4096,
}
LLAMA_1B: dict[
    str, Any
] = {  # the layers' shape; four layers and a small vocabulary keep it testable
    "hidden_size": 2048,
    "intermediate_size": 8192,
    "num_hidden_layers": 4,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "head_dim": 64,
    "vocab_size": 8192,
    "use_cache": False,
}
WHISPER_SMALL: dict[str, Any] = {
    "d_model": 768,
    "encoder_layers": 12,
    "encoder_attention_heads": 12,
    "encoder_ffn_dim": 3072,
    "decoder_layers": 1,  # not exported
}
STATES, POOLED = "last_hidden_state", "pooler_output"
IMAGES = (3, 224, 224)
MASKS = (False, True)

SUBJECTS: Mapping[str, Subject] = {
    "vit_base": _images(_timm("vit_base_patch16_224"), every(), *IMAGES),
    "vit_large": _images(_timm("vit_large_patch16_224"), two(), *IMAGES, batch=1),
    "vit_huge": _images(_timm("vit_huge_patch14_224"), two(), *IMAGES, batch=1),
    "hf_vit_base": _images(_hf(hf.ViTModel, hf.ViTConfig), some(), *IMAGES, result=STATES),
    "dinov2_base": _images(_timm("vit_base_patch14_dinov2", img_size=224), some(), *IMAGES),
    "hf_dinov2_base": _images(
        _hf(hf.Dinov2Model, hf.Dinov2Config, image_size=224), two(), *IMAGES, result=STATES
    ),
    "siglip_vision": _images(
        _hf(hf.SiglipVisionModel, hf.SiglipVisionConfig), some(), *IMAGES, result=POOLED
    ),
    "clip_vision": _images(
        _hf(hf.CLIPVisionModelWithProjection, hf.CLIPVisionConfig),
        some(),
        *IMAGES,
        result="image_embeds",
    ),
    "clip_text": _texts(
        _hf(hf.CLIPTextModelWithProjection, hf.CLIPTextConfig),
        some(mask=True),
        length=77,
        vocabulary=49408,
        result="text_embeds",
    ),
    "swin_tiny": _images(_timm("swin_tiny_patch4_window7_224"), every(), *IMAGES),
    "hf_swin_tiny": _images(_hf(hf.SwinModel, hf.SwinConfig), some(), *IMAGES, result=STATES),
    "convnext_tiny": _images(_timm("convnext_tiny"), convolutional(), *IMAGES),
    "hf_convnext_tiny": _images(
        _hf(hf.ConvNextModel, hf.ConvNextConfig), convolutional(), *IMAGES, result=POOLED
    ),
    "segformer_b0": _images(
        _hf(hf.SegformerForSemanticSegmentation, hf.SegformerConfig),
        some(),
        3,
        512,
        512,
        batch=1,
        result="logits",
    ),
    "detr_r50_e3": _images(_detr(3), two(), 3, 800, 1333, batch=1, result="logits"),
    "detr_r50_e6": _images(_detr(6), some(), 3, 800, 1333, batch=1, result="logits"),
    "detr_r50_e12": _images(_detr(12), two(), 3, 800, 1333, batch=1, result="logits"),
    "detr_mha": _subgraph(
        lambda attention: Attention(), two(), query=PIXELS, key=PIXELS, value=PIXELS
    ),
    "detr_encoder": _subgraph(
        _hf(hf.DetrModel, hf.DetrConfig, part="encoder"),
        two(),
        STATES,
        inputs_embeds=PIXELS,
        spatial_position_embeddings=PIXELS,
    ),
    "detr_decoder": _subgraph(
        _hf(hf.DetrModel, hf.DetrConfig, part="decoder"),
        two(),
        STATES,
        inputs_embeds=QUERIES,
        object_queries_position_embeddings=QUERIES,
        encoder_hidden_states=PIXELS,
        spatial_position_embeddings=PIXELS,
    ),
    "setr_naive_base": _images(_setr(768, 12, 12, naive), two(), 3, IMAGE, IMAGE, batch=1),
    "setr_naive": _images(_setr(1024, 24, 16, naive), two(), 3, IMAGE, IMAGE, batch=1),
    "setr_pup": _images(_setr(1024, 24, 16, pup), two(), 3, IMAGE, IMAGE, batch=1),
    "whisper_small_encoder": _images(
        _hf(hf.WhisperModel, hf.WhisperConfig, part="encoder", **WHISPER_SMALL),
        some(),
        80,
        3000,
        batch=1,
        result=STATES,
        name="input_features",
    ),
    "bert_base": _texts(_hf(hf.BertModel, hf.BertConfig), every(MASKS)),
    "bert_large": _texts(_hf(hf.BertModel, hf.BertConfig, **BERT_LARGE), two(mask=True), 64),
    "minilm": _texts(
        _minilm, [form for form in (*some(mask=True), *two(mask=True)) if form.mask], result=""
    ),
    "modernbert": _texts(
        _hf(hf.ModernBertModel, hf.ModernBertConfig),
        some(mask=True),
        length=192,  # local attention reads 64 tokens to either side
        vocabulary=50368,
    ),
    "t5_encoder": _texts(_hf(hf.T5EncoderModel, hf.T5Config), some(mask=True), vocabulary=32128),
    "gpt2": _texts(_hf(hf.GPT2Model, hf.GPT2Config, use_cache=False), some(mask=True), 128, 50257),
    "llama_1b": _texts(_hf(hf.LlamaModel, hf.LlamaConfig, **LLAMA_1B), some(mask=True), 64, 8192),
}
