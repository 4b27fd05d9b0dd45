"""RepVGG in Bolt's paper: accuracies and speeds, which benchmarks/variants.py is compared with."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Paper:
    """A row of Bolt's tables 4 to 6 (Xing et al. 2022, section 4.3): top-1 accuracy in percent, and
    images per second on a Tesla T4 at batch 32; `plain` has those of the same table's plain RepVGG
    of this size. The models of a table were trained alike, those of two tables were not."""

    table: int  # 0: named in the text behind table 6
    top1: float
    images: int
    plain: tuple[float, int]


BOLT = {
    "repvgg_a0_deploy_gelu": Paper(4, 72.38, 5645, (72.31, 5909)),
    "repvgg_a0_deploy_hard_swish": Paper(4, 72.98, 5713, (72.31, 5909)),
    "repvgg_a0_deploy_softplus": Paper(4, 72.57, 5453, (72.31, 5909)),
    "repvggaug_a0_deploy": Paper(5, 73.87, 6716, (73.05, 7861)),
    "repvggaug_a1_deploy": Paper(5, 75.52, 5241, (74.75, 6253)),
    "repvggaug_b0_deploy": Paper(5, 76.02, 4145, (75.28, 4888)),
    "repvggaug_a0_deploy_hard_swish": Paper(6, 74.54, 6338, (73.41, 7861)),
    "repvggaug_a1_deploy_hard_swish": Paper(6, 76.72, 4868, (74.89, 6253)),
    "repvggaug_b0_deploy_hard_swish": Paper(6, 77.22, 3842, (75.89, 4888)),
    "repvggaug3_a0_deploy_hard_swish": Paper(0, 74.02, 7288, (73.41, 7861)),
}
