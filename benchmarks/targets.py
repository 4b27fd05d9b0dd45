"""The whole models that are measured, in the order of the tables."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Target:
    """A model at a batch; `transformer` is onnxruntime.transformers' name for its kind."""

    model: str
    batch: int
    transformer: str = ""

    @property
    def name(self) -> str:
        return f"{self.model}-{self.batch}"


TARGETS = (
    Target("resnet50", 32),
    Target("vgg16", 32),
    Target("repvgg_a0_deploy", 32),
    Target("mobilenet_v3_large", 32),
    *(
        Target(model, 1)
        for model in ("resnet50", "vgg16", "repvgg_a0_deploy", "mobilenet_v3_large")
    ),
    Target("bert_base", 32, "bert"),
    Target("vit_b16", 1, "vit"),
    Target("vit_b16", 32, "vit"),
    *(
        Target(model, rows)
        for model in ("dlrm_mlp", "dlrm_bottom", "dlrm_top", "dcn_v2")
        for rows in (2048, 16384)
    ),
)
