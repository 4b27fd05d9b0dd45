"""The models that are exported, from configurations alone: nothing is downloaded."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import timm
import torch
import transformers as hf
from torch import Tensor, nn

from tests.zoo.export.detr import PIXELS, QUERIES, Attention, inputs
from tests.zoo.export.forms import Form, convolutional, decoders, every, resizable, sized, some, two
from tests.zoo.export.setr import IMAGE, Setr, naive, pup
from tests.zoo.export.speech import Stem, Vocoder
from tests.zoo.export.vision import (
    PROPOSALS,
    Detector,
    Flow,
    NnUNetBlock,
    Pyramid,
    Segmenter,
    TextDetector,
    TextRecognizer,
    UNet,
    Yolo,
)

PADDING = 7  # tokens at the end of the second text of a batch, where there is a mask
SYMBOLIC_BATCH = {0: "batch"}
SYMBOLIC_TEXT = {0: "batch", 1: "sequence"}
SYMBOLIC_IMAGE = {0: "batch", 2: "height", 3: "width"}
Inputs = dict[str, Tensor]


@dataclass(frozen=True)
class Subject:
    """A model, the inputs that it is exported with, and the forms in which it is.

    `build` takes a form's attention and `inputs` whether there is a mask. `result` is
    the field of the model's answer that is exported, or "" where it answers tensors. `axes`
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


def _resized(
    build: Callable[[], nn.Module],
    *size: int,
    forms: Iterable[Form] = resizable(),
    batch: int = 2,
    axes: Mapping[int, str] = SYMBOLIC_IMAGE,
    names: Iterable[str] = ("image",),
    result: str = "",
) -> Subject:
    """A model of images or sounds of any size; [batch, *size] is that of the export."""
    shape = (batch, *size) if batch else size
    return Subject(
        lambda attention: build(),
        result,
        lambda mask: {name: torch.rand(shape) for name in names},
        dict.fromkeys(names, axes),
        tuple(forms),
    )


def _detector(name: str, **options: Any) -> Subject:
    """A detector of torchvision, which takes one image [3, H, W] and resizes it."""
    return _resized(
        lambda: Detector(name, **options), 3, 240, 320, batch=0, axes={1: "height", 2: "width"}
    )


def _sounds(build: Callable[[str], nn.Module], *size: int, name: str = "input_values") -> Subject:
    """A model of sounds [N, length, ..] of transformers."""
    return Subject(
        build,
        STATES,
        lambda mask: {name: torch.randn(2, *size)},
        {name: {0: "batch", 1: "length"}},
        sized(),
    )


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
QWEN3: dict[str, Any] = {  # small layers; heads have a size of their own
    "hidden_size": 256,
    "intermediate_size": 512,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 64,
    "vocab_size": 512,
    "use_cache": False,
}
GEMMA3: dict[str, Any] = {  # a layer of sliding windows, and one of all tokens
    **QWEN3,
    "sliding_window": 8,
    "layer_types": ["sliding_attention", "full_attention"],
    "query_pre_attn_scalar": 64,
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

SMALL: dict[str, Any] = {"min_size": 224, "max_size": 320}  # sizes of resized images
REGIONS: dict[str, Any] = {  # many boxes, although the weights are random
    "rpn_post_nms_top_n_test": PROPOSALS,
    "box_score_thresh": 0.01,
    "box_detections_per_img": 10,
}
SCORES: dict[str, Any] = {"score_thresh": 0.001, "topk_candidates": 50, "detections_per_img": 20}
LAYERS: dict[str, Any] = {"num_hidden_layers": 3}  # 12 or 24 are alike
WAV2VEC2: dict[str, Any] = {**LAYERS, "do_stable_layer_norm": False}
CONFORMER: dict[str, Any] = {
    **LAYERS,
    "hidden_size": 512,
    "intermediate_size": 1024,
    "num_attention_heads": 8,
}
PARAKEET: dict[str, Any] = {**LAYERS, "hidden_size": 512, "intermediate_size": 2048}

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
    "qwen3": _texts(_hf(hf.Qwen3Model, hf.Qwen3Config, **QWEN3), decoders(), 24, 512),
    "gemma3": _texts(_hf(hf.Gemma3TextModel, hf.Gemma3TextConfig, **GEMMA3), decoders(), 24, 512),
    "fasterrcnn_r50": _detector("fasterrcnn_resnet50_fpn", **SMALL, **REGIONS),
    "keypointrcnn_r50": _detector("keypointrcnn_resnet50_fpn", **SMALL, **REGIONS),
    "retinanet_r50": _detector("retinanet_resnet50_fpn", **SMALL, **SCORES),
    "fcos_r50": _detector("fcos_resnet50_fpn", **SMALL, **SCORES),
    "ssdlite_mobilenet_v3": _detector("ssdlite320_mobilenet_v3_large", **SCORES),
    "lraspp_mobilenet_v3": _resized(lambda: Segmenter("lraspp_mobilenet_v3_large"), 3, 192, 256),
    "fcn_r50": _resized(lambda: Segmenter("fcn_resnet50"), 3, 96, 128),
    "raft_small": _resized(
        lambda: Flow("raft_small"), 3, 128, 160, batch=1, names=("first", "second")
    ),
    **{
        f"fpn_{name}": _resized(partial(Pyramid, name), 3, 128, 160)
        for name in (
            "resnet50",
            "mobilenetv3_large_100",
            "tf_efficientnetv2_b0",
            "hrnet_w18_small",
            "convnext_atto",
            "res2net50_14w_8s",
            "ghostnet_100",
        )
    },
    "unet": _resized(UNet, 3, 96, 128),
    "nnunet_block": _resized(
        NnUNetBlock, 32, 16, 24, 24, batch=1, axes={2: "depth", 3: "height", 4: "width"}
    ),
    "db_text_detector": _resized(TextDetector, 3, 96, 128),
    "crnn": _resized(TextRecognizer, 1, 32, 104, axes={0: "batch", 3: "width"}),
    "yolo": _resized(Yolo, 3, 96, 128),
    "rt_detr_r50": _images(
        _hf(hf.RTDetrForObjectDetection, hf.RTDetrConfig),
        sized("eager"),
        3,
        320,
        320,
        batch=1,
        result="logits",
    ),
    "mask2former_swin": _images(
        _hf(hf.Mask2FormerForUniversalSegmentation, hf.Mask2FormerConfig),
        sized("eager"),
        3,
        256,
        256,
        batch=1,
        result="masks_queries_logits",
    ),
    "wav2vec2": _sounds(_hf(hf.Wav2Vec2Model, hf.Wav2Vec2Config, **WAV2VEC2), 4000),
    "wav2vec2_conformer": _sounds(
        _hf(hf.Wav2Vec2ConformerModel, hf.Wav2Vec2ConformerConfig, **CONFORMER), 4000
    ),
    "parakeet_encoder": _sounds(
        _hf(hf.ParakeetEncoder, hf.ParakeetEncoderConfig, **PARAKEET),
        200,
        80,
        name="input_features",
    ),
    "hifigan": _resized(Vocoder, 40, 80, axes={0: "batch", 1: "frames"}, names=("spectrogram",)),
    "whisper_stem": _resized(
        Stem, 80, 300, axes={0: "batch", 2: "frames"}, names=("input_features",)
    ),
}
